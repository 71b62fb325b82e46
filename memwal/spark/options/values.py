"""Values of options, which Spark passes as texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from memwal.errors import InvalidInputError
from memwal.util.safe_json import read_json

STORAGE_FILE: Final = "storage_options_file"
_HINT: Final = (
    f"storage options do not belong here: put them into a JSON file and name it as {STORAGE_FILE},"
    " give them to memwal.spark.register(spark, storage_options=...), or set them in the "
    "environment of driver and executors"
)
# A tag that is not renewed keeps all generations that are merged after its version.
_MAX_SECONDS: Final = 30 * 86_400


def parse_values(
    options: Mapping[str, str], parsers: Mapping[str, Callable[[str], object]]
) -> tuple[str, dict[str, object]]:
    """Return the address of the table, and the value of each option that is given.

    InvalidInputError names an option that is unknown, missing or wrong. No message repeats the
    value of an unknown option, which may be a secret.
    """
    unknown = dict(options)
    uri = unknown.pop("path", "")
    texts = {name: unknown.pop(name) for name in parsers if name in unknown}
    if unknown:
        names = ", ".join(sorted(unknown))
        raise InvalidInputError(
            f"unknown options: {names}; known are path, {', '.join(parsers)}; {_HINT}"
        )
    if not uri:
        raise InvalidInputError("no table: give its address to load() or save()")
    values = {}
    for name, text in texts.items():
        try:
            values[name] = parsers[name](text)
        except ValueError as error:
            raise InvalidInputError(
                f"the option {name} is {text!r}: it must be {_EXPECTED[parsers[name]]}"
            ) from error
    return uri, values


def parse_names(text: str) -> tuple[str, ...]:
    """Parse names that are separated by commas, or a JSON list of names."""
    if not text.lstrip().startswith("["):
        return tuple(name for part in text.split(",") if (name := part.strip()))
    names = read_json(text)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(text)
    return tuple(names)


def parse_uuids(text: str) -> frozenset[UUID]:
    """Parse UUIDs that are separated by commas."""
    return frozenset(UUID(name) for name in parse_names(text))


def parse_positive(text: str) -> int:
    """Parse a whole number from 1 up."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def parse_count(text: str) -> int:
    """Parse a whole number from 0 up."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def parse_seconds(text: str) -> int:
    """Parse whole seconds, at most 30 days."""
    number = int(text)
    if not 0 <= number <= _MAX_SECONDS:
        raise ValueError(text)
    return number


def parse_boolean(text: str) -> bool:
    """Parse ``true`` or ``false``."""
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def parse_restart(text: str) -> str:
    """Parse ``continue`` or ``new``."""
    if text.lower() not in ("continue", "new"):
        raise ValueError(text)
    return text.lower()


def parse_text(text: str) -> str:
    """Return a text that is not blank."""
    if not text.strip():
        raise ValueError(text)
    return text


_EXPECTED: Final[Mapping[Callable[[str], object], str]] = {
    parse_names: "names separated by commas, or a JSON list of names",
    parse_text: "text",
    parse_uuids: "UUIDs separated by commas",
    parse_positive: "a whole number from 1 up",
    parse_count: "a whole number from 0 up",
    parse_seconds: f"a whole number from 0 to {_MAX_SECONDS}",
    parse_restart: "continue or new",
    parse_boolean: "true or false",
}
