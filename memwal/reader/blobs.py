"""Blob columns of rows in memory, as a scan of Lance gives them."""

from __future__ import annotations

import pyarrow as pa

from memwal.base_table.blobs import (
    BlobHandling,
    describe,
    has_external,
    is_blob,
    own_bytes,
    read_schema,
)
from memwal.reader.sources.generation import write_in_memory


def read_in_memory(batch: pa.RecordBatch, handling: BlobHandling | None) -> pa.RecordBatch:
    """Return rows of a MemTable as a scan would give them."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not is_blob(field):
            columns.append(column)
        elif handling != "all_binary":
            columns.append(describe(column, field))
        elif has_external(column, field):
            dataset = write_in_memory(pa.table([column], schema=pa.schema([field])))
            rows = dataset.scanner(blob_handling="all_binary", scan_in_order=True).to_table()
            columns.append(rows.column(0).combine_chunks())
        else:
            columns.append(own_bytes(column, field))
    return pa.RecordBatch.from_arrays(columns, schema=read_schema(batch.schema, handling))


def described(rows: pa.Table) -> pa.Table:
    """Return rows of a MemTable as a scan would give them, with descriptions."""
    if not any(map(is_blob, rows.schema)):
        return rows
    batches = [read_in_memory(batch, None) for batch in rows.to_batches()]
    return pa.Table.from_batches(batches, read_schema(rows.schema))
