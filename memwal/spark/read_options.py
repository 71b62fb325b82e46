"""The options of ``spark.read.format("memwal")``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from memwal.errors import InvalidInputError
from memwal.given_data import read_json
from memwal.spark.protection import DEFAULT_PROTECT_SECONDS

DEFAULT_PARTITION_BYTES: Final = 128 << 20

# A protection that nobody renews holds everything that is merged after it.
_MAX_SECONDS: Final = 30 * 86_400
_STORAGE_FILE: Final = "storage_options_file"
_HINT: Final = (
    f"storage options do not belong here: put them into a JSON file and name it as {_STORAGE_FILE},"
    " give them to memwal.spark.register(spark, storage_options=...), or set them in the "
    "environment of driver and executors"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a load was told.

    Attributes
    ----------
    uri : str
        ``path``, the argument of ``load()``: address of the table.
    columns : tuple of str or None
        Columns in this order, as a JSON list or divided by commas; None for all, empty for rows
        that are only counted.
    filter : str or None
        SQL predicate in the dialect of Lance, over any columns of the table.
    version, tag : int or str or None
        Read the base table alone, as it was then.
    regions : frozenset of UUID or None
        Only rows of these regions, divided by commas.
    partitions : int or None
        How many partitions to make at most, instead of what ``target_partition_bytes`` gives.
    target_partition_bytes : int, default 128 MiB
        Stored bytes that one partition reads, about. Neither a fragment nor what a region has
        flushed is ever split.
    omit_unsupported : bool, default False
        Leave out columns of types that Spark does not have.
    truncate_nanoseconds : bool, default False
        Cut times to the microseconds that Spark has; otherwise a value that has more is an error.
    protect_seconds : int, default 6 hours
        How long what the load needs stays stored when nobody reads it: every query and task
        starts the time anew. It takes a tag on the table, and permission to write one. 0 for none.
    storage_options_file : Path or None
        JSON object of storage options, as Lance takes them; read by the driver.
    """

    uri: str
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    version: int | None = None
    tag: str | None = None
    regions: frozenset[UUID] | None = None
    partitions: int | None = None
    target_partition_bytes: int = DEFAULT_PARTITION_BYTES
    omit_unsupported: bool = False
    truncate_nanoseconds: bool = False
    protect_seconds: int = DEFAULT_PROTECT_SECONDS
    storage_options_file: Path | None = None


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Understand the options of a load.

    Parameters
    ----------
    options : mapping of str to str
        Spark hands names over in lower case.

    Raises
    ------
    InvalidInputError
        An option is unknown, missing or wrong. No message repeats the value of an unknown one,
        which may be a secret.
    """
    given = dict(options)
    uri = given.pop("path", "")
    known = {name: given.pop(name) for name in _PARSERS if name in given}
    if given:
        names = ", ".join(sorted(given))
        raise InvalidInputError(
            f"unknown options: {names}; known are path, {', '.join(_PARSERS)}; {_HINT}"
        )
    if not uri:
        raise InvalidInputError("which table? give its address to load()")
    if "version" in known and "tag" in known:
        raise InvalidInputError("give a version or a tag, not both")
    # Every name is one of the attributes, with the parser of its type.
    parsed = {name: _parse(name, text) for name, text in known.items()}
    return ReadOptions(uri=uri, **parsed)  # type: ignore[arg-type]


def _parse(name: str, text: str) -> object:
    try:
        return _PARSERS[name](text)
    except ValueError as error:
        raise InvalidInputError(
            f"the option {name} is {text!r}: it must be {_EXPECTED[_PARSERS[name]]}"
        ) from error


def _names(text: str) -> tuple[str, ...]:
    if not text.lstrip().startswith("["):
        return tuple(name for part in text.split(",") if (name := part.strip()))
    names = read_json(text)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(text)
    return tuple(names)


def _uuids(text: str) -> frozenset[UUID]:
    return frozenset(UUID(name) for name in _names(text))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _seconds(text: str) -> int:
    number = int(text)
    if not 0 <= number <= _MAX_SECONDS:
        raise ValueError(text)
    return number


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "columns": _names,
    "filter": _text,
    "version": _positive,
    "tag": _text,
    "regions": _uuids,
    "partitions": _positive,
    "target_partition_bytes": _positive,
    "omit_unsupported": _boolean,
    "truncate_nanoseconds": _boolean,
    "protect_seconds": _seconds,
    _STORAGE_FILE: Path,
}
_EXPECTED: Final[Mapping[Callable[[str], object], str]] = {
    _names: "names divided by commas, or a JSON list of names",
    _text: "text",
    _uuids: "UUIDs divided by commas",
    _positive: "a whole number from 1 up",
    _seconds: f"a whole number from 0 to {_MAX_SECONDS}",
    _boolean: "true or false",
}
