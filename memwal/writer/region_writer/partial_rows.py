"""Partial upserts: a row without some of its columns, which keep their values.

Rows are completed before they go to the log, so every stored row is whole and readers need no
special case. The current rows are looked up without holding the log; rows that are written in the
meantime are applied on top of them when the write gets its place in the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.format.paths import TOMBSTONE
from memwal.lsm.memtable.indexes import UnflushedRows
from memwal.lsm.row_schema import RowSchema
from memwal.reader.lookup import lookup_rows
from memwal.reader.sources.generation import open_sources, retry_if_collected
from memwal.reader.sources.plan import plan_read
from memwal.region.rows import align_rows, key_column, newest_row_positions
from memwal.storage.location import TableLocation


class PartialRows:
    """Rows of one region with the key and some other columns; the last of a key counts."""

    def __init__(self, row_schema: RowSchema, batches: Sequence[pa.RecordBatch]) -> None:
        rows = pa.Table.from_batches(batches)
        newest = newest_row_positions(key_column(rows, row_schema.primary_key))
        self.row_schema = row_schema
        self._rows = rows.take(pa.array(newest)).combine_chunks()
        # The key columns, one row per distinct key.
        self.keys = self._rows.select(row_schema.primary_key)

    def complete(self, current: Sequence[pa.Table]) -> list[pa.RecordBatch]:
        """Return whole stored rows, with the missing columns taken from the current rows.

        ``current`` are stored rows, oldest first; the newest row of a key counts. A key without a
        row, or whose row is a delete, does not exist yet: its missing columns become null. Raises
        InvalidInputError if one of these may not be null.
        """
        primary_key = self.row_schema.primary_key
        before = pa.concat_tables(
            [
                self.row_schema.schema.empty_table(),
                *(align_rows(rows, self.row_schema.schema) for rows in current),
            ]
        )
        before = before.take(pa.array(newest_row_positions(key_column(before, primary_key))))
        alive = before.filter(pc.invert(before.column(TOMBSTONE)))
        at = pc.index_in(
            key_column(self.keys, primary_key), value_set=key_column(alive, primary_key)
        )
        columns = [
            self._rows.column(field.name)
            if field.name in self._rows.column_names
            else alive.column(field.name).take(at)
            for field in self.row_schema.base_schema
        ]
        for field, column in zip(self.row_schema.base_schema, columns, strict=True):
            if column.null_count and not field.nullable:
                raise InvalidInputError(
                    f"{column.null_count} rows do not exist yet and lack column {field.name}, "
                    "which may not be null; give it"
                )
        columns.append(pa.repeat(pa.scalar(False), self.keys.num_rows))
        rows = pa.Table.from_arrays(columns, schema=self.row_schema.schema)
        return list(rows.combine_chunks().to_batches())


def current_rows(
    location: TableLocation,
    region_id: UUID,
    rows: PartialRows,
    unflushed: Sequence[UnflushedRows],
) -> list[pa.Table]:
    """Return the stored rows of keys: from MemTables, given oldest first, then from storage."""
    current: list[pa.Table] = []
    missing = rows.keys
    for table in reversed(unflushed):
        if not missing.num_rows:
            return current
        snapshot = table.snapshot
        at = snapshot.lookup([column.combine_chunks() for column in missing.columns])
        current.append(snapshot.view.take(at[at >= 0]))
        missing = missing.filter(pa.array(at < 0))
    if missing.num_rows:
        current.append(_stored_rows(location, region_id, rows.row_schema, missing))
    return current


def group_by_schema(batches: Sequence[pa.RecordBatch]) -> list[pa.Table]:
    """Return batches as tables, in order; adjacent batches of one schema share a table."""
    tables: list[list[pa.RecordBatch]] = []
    for batch in batches:
        if tables and tables[-1][0].schema == batch.schema:
            tables[-1].append(batch)
        else:
            tables.append([batch])
    return [pa.Table.from_batches(part) for part in tables]


def _stored_rows(
    location: TableLocation, region_id: UUID, row_schema: RowSchema, keys: pa.Table
) -> pa.Table:
    """Return the stored rows of keys in a region's generations and in the base table."""

    def look_up_keys() -> tuple[BaseTable, pa.Table]:
        sources = open_sources(lambda reuse: plan_read(location, regions=[region_id], reuse=reuse))
        names = sources.base.schema.names
        return sources.base, lookup_rows(sources, keys, columns=names, blob_values=True)

    base, rows = retry_if_collected(look_up_keys)
    identified = pa.Table.from_arrays(rows.columns, schema=base.identified_schema)
    return align_rows(
        identified.append_column(
            row_schema.schema.field(TOMBSTONE), pa.repeat(pa.scalar(False), rows.num_rows)
        ),
        row_schema.schema,
    )
