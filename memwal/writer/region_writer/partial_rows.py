"""Partial upserts: some columns of a row are given, the others keep their value.

Rows are completed before they go to the log, so every stored row is whole and no reader needs to
know. The present row is looked up without holding the log; what was written meanwhile is applied on
top of it when the write gets its place in the log's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.format.paths import TOMBSTONE
from memwal.lsm.memtable.unflushed import UnflushedRows
from memwal.reader.lookup import lookup_rows
from memwal.reader.sources.collect import open_sources, retry_if_collected
from memwal.reader.sources.plan import plan_read
from memwal.region.rows import aligned, key_column, newest_rows
from memwal.storage.location import TableLocation
from memwal.writer.region_writer.rows import RowShape


class PartialRows:
    """Rows of one region of which some columns are given.

    Parameters
    ----------
    shape : RowShape
        What whole rows look like.
    batches : sequence of pyarrow.RecordBatch
        The key columns and others, in the table's types. Of several rows with one key the last
        counts.

    Attributes
    ----------
    keys : pyarrow.Table
        The key columns, once per distinct key.
    """

    def __init__(self, shape: RowShape, batches: Sequence[pa.RecordBatch]) -> None:
        rows = pa.Table.from_batches(batches)
        kept = newest_rows(key_column(rows, shape.primary_key))
        self.shape = shape
        self._given = rows.take(pa.array(kept)).combine_chunks()
        self.keys = self._given.select(shape.primary_key)

    def completed(self, known: Sequence[pa.Table]) -> list[pa.RecordBatch]:
        """Whole stored rows.

        Parameters
        ----------
        known : sequence of pyarrow.Table
            Stored rows as they were, oldest first; the newest of a key counts. Keys that are not
            among them, or were deleted, do not exist yet.

        Raises
        ------
        InvalidInputError
            A row does not exist yet, and a column that may not be null is not given.
        """
        primary_key = self.shape.primary_key
        before = pa.concat_tables(
            [self.shape.schema.empty_table(), *(aligned(rows, self.shape.schema) for rows in known)]
        )
        before = before.take(pa.array(newest_rows(key_column(before, primary_key))))
        alive = before.filter(pc.invert(before.column(TOMBSTONE)))
        at = pc.index_in(
            key_column(self.keys, primary_key), value_set=key_column(alive, primary_key)
        )
        columns = [
            self._given.column(field.name)
            if field.name in self._given.column_names
            else alive.column(field.name).take(at)
            for field in self.shape.base_schema
        ]
        for field, column in zip(self.shape.base_schema, columns, strict=True):
            if column.null_count and not field.nullable:
                raise InvalidInputError(
                    f"{column.null_count} rows do not exist yet and lack column {field.name}, "
                    "which may not be null; give it"
                )
        columns.append(pa.repeat(pa.scalar(False), self.keys.num_rows))
        rows = pa.Table.from_arrays(columns, schema=self.shape.schema)
        return list(rows.combine_chunks().to_batches())


def known_rows(
    location: TableLocation,
    region_id: UUID,
    rows: PartialRows,
    unflushed: Sequence[UnflushedRows],
) -> list[pa.Table]:
    """Stored rows of those keys that exist, from memory and, for the rest, from storage.

    Parameters
    ----------
    unflushed : sequence of UnflushedRows
        What the region's writer holds, oldest first.
    """
    known: list[pa.Table] = []
    missing = rows.keys
    for table in reversed(unflushed):
        if not missing.num_rows:
            return known
        snapshot = table.snapshot
        at = snapshot.lookup([column.combine_chunks() for column in missing.columns])
        known.append(snapshot.take(at[at >= 0]))
        missing = missing.filter(pa.array(at < 0))
    if missing.num_rows:
        known.append(stored_rows(location, region_id, rows.shape, missing))
    return known


def as_tables(batches: Sequence[pa.RecordBatch]) -> list[pa.Table]:
    """Batches as tables, in order; neighbours of one schema share one."""
    tables: list[list[pa.RecordBatch]] = []
    for batch in batches:
        if tables and tables[-1][0].schema == batch.schema:
            tables[-1].append(batch)
        else:
            tables.append([batch])
    return [pa.Table.from_batches(part) for part in tables]


def stored_rows(
    location: TableLocation, region_id: UUID, shape: RowShape, keys: pa.Table
) -> pa.Table:
    """What storage knows of some keys of a region: the base table and its generations.

    Parameters
    ----------
    keys : pyarrow.Table
        The key columns.

    Returns
    -------
    pyarrow.Table
        Stored rows of those keys that exist, in today's columns of the table.
    """

    def look() -> tuple[BaseTable, pa.Table]:
        sources = open_sources(lambda: plan_read(location, regions=[region_id]))
        return sources.base, lookup_rows(sources, keys)

    base, found = retry_if_collected(look)
    identified = pa.Table.from_arrays(found.columns, schema=base.identified_schema)
    return aligned(
        identified.append_column(
            shape.schema.field(TOMBSTONE), pa.repeat(pa.scalar(False), found.num_rows)
        ),
        shape.schema,
    )
