"""The form in which rows stand in the log and in flushed generations."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from memwal.format.names import TOMBSTONE

_OURS = {b"memwal": b"1"}


def stored_schema(schema: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    """Schema of log entries and flushed generations of a table (spec: Flushed MemTable)."""
    fields = [f if f.name in primary_key else f.with_nullable(True) for f in schema]
    # When all fields of a log entry equal those of its MemTable, Lance takes its batches as they
    # are, and then refuses them for the schema's metadata, where our checksum is. A field that
    # differs has it bring the batches to its own schema, which costs it nothing.
    tombstone = pa.field(TOMBSTONE, pa.bool_(), nullable=False, metadata=_OURS)
    return pa.schema([*fields, tombstone])
