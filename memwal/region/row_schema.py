"""The form in which rows stand in the log and in flushed generations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from memwal.format.names import TOMBSTONE


@dataclass(frozen=True, slots=True)
class UnflushedRows:
    """What a writer holds of one generation that is not flushed yet.

    Attributes
    ----------
    generation : int
        What it will be flushed as.
    rows : pyarrow.Table
        Stored rows, oldest first.
    field_ids : mapping of str to int
        Lance field ids of the columns, as the writer knows them.
    """

    generation: int
    rows: pa.Table
    field_ids: Mapping[str, int]


def stored_schema(schema: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    """Schema of log entries and flushed generations of a table (spec: Flushed MemTable)."""
    fields = [f if f.name in primary_key else f.with_nullable(True) for f in schema]
    return pa.schema([*fields, pa.field(TOMBSTONE, pa.bool_(), nullable=False)])
