"""Storage options from a file, which keeps secrets off command lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memwal.errors import InvalidInputError
from memwal.given_data import read_json


def read_options_file(path: Path) -> dict[str, str]:
    """Read storage options from a JSON file with one flat object.

    No message repeats what the file holds.

    Raises
    ------
    InvalidInputError
        The file cannot be read or holds something else.
    """
    try:
        options = read_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(
            f"cannot read the storage options in {path}: {error.strerror}"
        ) from error
    except ValueError:
        # The message of the parser quotes the file; so would the cause.
        raise InvalidInputError(f"the storage options in {path} are not JSON") from None
    return as_options(options, f"the storage options in {path}")


def as_options(content: Any, what: str) -> dict[str, str]:
    """Storage options from what a JSON document holds; numbers and booleans become text.

    Raises
    ------
    InvalidInputError
        It is not one flat object. The message calls it ``what`` and shows nothing of it.
    """
    if not isinstance(content, dict) or any(
        isinstance(value, dict | list) or value is None for value in content.values()
    ):
        raise InvalidInputError(
            f"{what} must be one JSON object whose values are text: "
            '{"aws_region": "eu-central-1", "allow_http": "true"}'
        )
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in content.items()
    }
