"""Upserts that need the current rows: partial and conditional ones.

A partial row lacks some columns, which keep their values. A conditional row is written only if the
row of its key is still the one that the caller has read. Both are decided before they go to the
log, so every stored row is whole and readers need no special case. The current rows are looked up
without holding the log; rows that are written in the meantime are applied on top of them when the
write gets its place in the queue.

Conditional upserts of processes that pause, die or repeat:

* It pauses before the write is queued: rows that were queued in the meantime are compared.
* It pauses later: only a claim by another writer can change a row before the entry is stored. Then
  the entry is refused, and the write fails or is decided anew. Without a row to write there is no
  entry, so that the epoch is verified instead: the region was this writer's when it was decided.
* A queued write with which rows were compared fails: the conditional write fails with it, even if
  it has no row. Else it would report a change that never happened.
* It dies: the entry is in the log or not. A repetition compares anew. It writes the same rows again
  if they have the compared values still, and otherwise reports them as changed.
* Another program changes the base table directly, which no claim prevents, or a fenced client that
  does not notice it appends: its rows may be overwritten as if they had come before.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.format.paths import TOMBSTONE
from memwal.format.values import single_array
from memwal.inputs.rows import Rows
from memwal.lsm.key_matches import newest_row_positions
from memwal.lsm.memtable.indexes import UnflushedRows
from memwal.lsm.row_schema import RowSchema
from memwal.reader.lookup import lookup_rows
from memwal.reader.sources.generation import open_sources, retry_if_collected
from memwal.reader.sources.plan import plan_read
from memwal.region.rows import align_known, align_rows, key_column, unknown_fields
from memwal.storage.location import TableLocation


class PartialRows:
    """Rows of one region with the key and some other columns; the last of a key counts.

    ``condition`` are the rows that must be unchanged, see :func:`convert_condition`.
    """

    def __init__(
        self,
        row_schema: RowSchema,
        batches: Sequence[pa.RecordBatch],
        *,
        condition: pa.RecordBatch | None = None,
    ) -> None:
        rows = pa.Table.from_batches(batches)
        newest = newest_row_positions(key_column(rows, row_schema.primary_key))
        self.row_schema = row_schema
        self._condition = condition
        self._rows = rows.take(pa.array(newest)).combine_chunks()
        # The key columns, one row per distinct key.
        self.keys = self._rows.select(row_schema.primary_key)

    def unknown_fields(self, current: Sequence[pa.Table]) -> set[bytes]:
        """Return the ids of the fields with values in stored rows that the schema lacks."""
        unknown: set[bytes] = set()
        return unknown.union(*(unknown_fields(rows, self.row_schema.schema) for rows in current))

    def convert(self, row_schema: RowSchema) -> PartialRows:
        """Return the rows in another schema of the table, without the columns that it lacks.

        Raises InvalidInputError if the condition has such a column.
        """
        condition = self._condition
        if condition is not None:
            known = align_known(pa.Table.from_batches([condition]), row_schema.schema)
            if known.num_columns < condition.num_columns:
                raise InvalidInputError(
                    f"a column of only_if_unchanged ({', '.join(condition.schema.names)}) was "
                    f"dropped; the table has {', '.join(row_schema.base_schema.names)}"
                )
            columns = list(map(single_array, known.columns))
            condition = pa.RecordBatch.from_arrays(columns, schema=known.schema)
        rows = align_known(self._rows, row_schema.schema)
        return PartialRows(row_schema, rows.to_batches(), condition=condition)

    def complete(self, current: Sequence[pa.Table]) -> tuple[list[pa.RecordBatch], pa.Table]:
        """Return whole stored rows, and the keys of the rows that the condition leaves out.

        ``current`` are stored rows, oldest first; the newest row of a key counts, and gives the
        missing columns. A key without a row, or whose row is a delete, does not exist yet: its
        missing columns become null. Raises InvalidInputError if one of these may not be null.
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
        given, changed = self._rows, self.keys.slice(0, 0)
        if self._condition is not None:
            unchanged = self._unchanged(self._condition, alive, at)
            changed = self.keys.filter(pc.invert(unchanged))
            if changed.num_rows:
                given, at = given.filter(unchanged), at.filter(unchanged)
        columns = [
            given.column(field.name)
            if field.name in given.column_names
            else alive.column(field.name).take(at)
            for field in self.row_schema.base_schema
        ]
        for field, column in zip(self.row_schema.base_schema, columns, strict=True):
            if column.null_count and not field.nullable:
                raise InvalidInputError(
                    f"{column.null_count} rows do not exist yet and lack column {field.name}, "
                    "which may not be null; give it"
                )
        columns.append(pa.repeat(pa.scalar(False), given.num_rows))
        rows = pa.Table.from_arrays(columns, schema=self.row_schema.schema)
        whole = [batch for batch in rows.combine_chunks().to_batches() if batch.num_rows]
        return whole, changed

    def _unchanged(self, condition: pa.RecordBatch, alive: pa.Table, at: pa.Array) -> pa.Array:
        """Tell for each key whether its row, number ``at`` of ``alive``, is as the condition says.

        Null for a key that is in neither: it does not exist, as it did not before.
        """
        primary_key = self.row_schema.primary_key
        before = pc.index_in(
            key_column(self.keys, primary_key), value_set=key_column(condition, primary_key)
        )
        unchanged = pc.equal(before.is_null(), at.is_null())
        for name in condition.schema.names:
            if name not in primary_key:
                was, now = condition.column(name).take(before), alive.column(name).take(at)
                unchanged = pc.and_(unchanged, _equal(was, now))
        return unchanged


def convert_condition(row_schema: RowSchema, rows: Rows) -> pa.RecordBatch:
    """Convert rows that must be unchanged: one for each key, with the columns to compare.

    A key without a row must not exist. Raises InvalidInputError as
    :meth:`RowSchema.convert_partial`, or if a column has a type whose values cannot be compared.
    """
    batches = row_schema.convert_partial(rows)
    key = [row_schema.schema.field(name) for name in row_schema.primary_key]
    schema = batches[0].schema if batches else pa.schema(key)
    for field in schema:
        if field in key:
            continue
        try:
            _equal(pa.nulls(1, field.type), pa.nulls(1, field.type))
        except pa.ArrowNotImplementedError as error:
            raise InvalidInputError(
                f"only_if_unchanged cannot compare column {field.name}, which is {field.type}; "
                "give others, such as the text from which it is computed, or a version"
            ) from error
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    newest = newest_row_positions(key_column(table, row_schema.primary_key))
    if len(newest) < table.num_rows:
        table = table.take(pa.array(newest))
    return pa.RecordBatch.from_arrays(list(map(single_array, table.columns)), schema=schema)


def _equal(one: pa.Array, other: pa.Array) -> pa.Array:
    """Compare values; null equals null, and NaN equals NaN."""
    same = pc.equal(one, other)
    if pt.is_floating(one.type):
        same = pc.or_(same, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return pc.coalesce(same, pc.and_(pc.is_null(one), pc.is_null(other)))


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
    return identified.append_column(
        row_schema.schema.field(TOMBSTONE), pa.repeat(pa.scalar(False), rows.num_rows)
    )
