"""Options of a write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from memwal.errors import InvalidInputError
from memwal.spark.options.values import (
    STORAGE_FILE,
    parse_boolean,
    parse_count,
    parse_names,
    parse_text,
    parse_values,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of a write."""

    uri: str
    """Address of the table; ``path``, the argument of ``save()``."""
    op_column: str | None = None
    """Column that tells deletes from upserts. Of a deleted row only the key columns and the region
    columns are used."""
    delete_ops: tuple[str, ...] = ("d", "delete")
    """Values of ``op_column`` that mean a delete, separated by commas. All others are upserts."""
    sequence_by: str | None = None
    """Column that orders the rows of one key: the highest value wins, and of equal ones a delete.
    Without it, a key that is twice in a write is refused."""
    partial: bool = False
    """Whether columns other than the key may be missing: they keep their value."""
    drop_extra_columns: bool = False
    """Leave out the columns that the table does not have, instead of refusing the rows."""
    source: str | None = None
    """Name of a sequence of writes, each of which is written once: see ``version``."""
    version: int | None = None
    """Number of this write in its ``source``: a region that has it, or a later one, writes nothing.
    For a program that repeats a write after a failure."""
    storage_options_file: Path | None = None
    """JSON object of storage options, as Lance takes them; read by the driver."""


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write, whose names Spark passes in lower case.

    InvalidInputError names an option that is unknown, missing or wrong.
    """
    uri, values = parse_values(options, _PARSERS)
    if ("source" in values) != ("version" in values):
        raise InvalidInputError(
            "source and version belong together: the name of a sequence of writes, and the number "
            "of this one"
        )
    if "source" in values and values.get("partial"):
        raise InvalidInputError("partial rows cannot be written as a step: leave source out")
    return WriteOptions(uri=uri, **values)  # type: ignore[arg-type]


def is_for_writes(options: Mapping[str, str]) -> bool:
    """Return whether an option is given that only writes have."""
    return any(name in _WRITE_ONLY for name in options)


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "op_column": parse_text,
    "delete_ops": parse_names,
    "sequence_by": parse_text,
    "partial": parse_boolean,
    "drop_extra_columns": parse_boolean,
    "source": parse_text,
    "version": parse_count,
    STORAGE_FILE: Path,
}
_WRITE_ONLY: Final = _PARSERS.keys() - {"version", STORAGE_FILE}
