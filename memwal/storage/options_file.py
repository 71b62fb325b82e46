"""Storage options from a file, which keeps secrets off command lines."""

from __future__ import annotations

import json
from pathlib import Path

from memwal.errors import InvalidInputError


def read_options_file(path: Path) -> dict[str, str]:
    """Read storage options from a JSON file: one object, names and values text.

    No message repeats what the file holds.

    Raises
    ------
    InvalidInputError
        The file cannot be read or holds something else.
    """
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(
            f"cannot read the storage options in {path}: {error.strerror}"
        ) from error
    except ValueError:
        # The message of the parser quotes the file; so would the cause.
        raise InvalidInputError(f"the storage options in {path} are not JSON") from None
    if not isinstance(options, dict) or not all(
        isinstance(value, str) for value in options.values()
    ):
        raise InvalidInputError(
            f"the storage options in {path} must be one JSON object whose values are text: "
            '{"aws_region": "eu-central-1", "allow_http": "true"}'
        )
    return options
