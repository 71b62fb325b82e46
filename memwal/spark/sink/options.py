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
    parse_restart,
    parse_text,
    parse_values,
)
from memwal.spark.sink.numbering import OnRestart


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
    """Name under which regions record the newest ``version``, or the newest batch of a stream. By
    default the id of the streaming query, which is in its checkpoint: with a new checkpoint, whose
    batches are counted from 0 again, the query is another source, and all its batches are written.
    """
    version: int | None = None
    """Number of this write in its ``source``: a region that has it, or a later one, writes nothing.
    For a program that repeats a write after a failure. Spark numbers the batches of a stream."""
    on_restart: OnRestart | None = None
    """Treatment of a stream, or a data frame of ``foreachBatch``, whose ``source`` has batches of a
    query with another checkpoint. ``new`` writes all batches, and refuses those of the earlier
    query. ``continue`` takes the batches up to the newest recorded number for written, without a
    check of their rows: for a checkpoint whose numbers were carried over. By default this is an
    error.
    """
    storage_options_file: Path | None = None
    """JSON object of storage options, as Lance takes them; read by the driver."""


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write, whose names Spark passes in lower case.

    InvalidInputError names an option that is unknown, missing or wrong.
    """
    given = {name: text for name, text in options.items() if name not in _OF_QUERY}
    uri, values = parse_values(given, _PARSERS)
    return WriteOptions(uri=uri, **values)  # type: ignore[arg-type]


def check_batch_options(options: WriteOptions) -> None:
    """Raise InvalidInputError for options that the write of a data frame cannot have."""
    if (options.source is None) != (options.version is None):
        raise InvalidInputError(
            "source and version belong together: the name of a sequence of writes, and the number "
            "of this one"
        )
    if options.source is not None and options.partial:
        raise InvalidInputError("partial rows cannot be written as a step: leave source out")
    if options.on_restart is not None and options.source is None:
        raise InvalidInputError("on_restart needs a source: leave it out")


def check_stream_options(options: WriteOptions) -> None:
    """Raise InvalidInputError for options that a stream cannot have."""
    if options.version is not None:
        raise InvalidInputError("Spark numbers the batches of a stream: leave version out")
    if options.partial:
        raise InvalidInputError("a stream writes whole rows, as steps: leave partial out")


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
    "on_restart": parse_restart,
    STORAGE_FILE: Path,
}
# Options of a streaming query, which Spark passes as well.
_OF_QUERY: Final = frozenset({"checkpointlocation", "queryname"})
_WRITE_ONLY: Final = {*_PARSERS, *_OF_QUERY} - {"version", STORAGE_FILE}
