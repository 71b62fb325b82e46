"""Rows of a data frame as changes of a table: in its types, the newest of each key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.inputs.casts import cast_column, plan_cast
from memwal.lsm.key_matches import newest_row_positions
from memwal.region.rows import key_column

_DELETED = "\x00deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeColumns:
    """Columns of a batch that tell deletes from upserts, and which row of a key is the newest."""

    op_column: str | None  # None if all rows are upserts.
    delete_ops: tuple[str, ...]  # Values of ``op_column`` that mean a delete.
    sequence_by: str | None  # Its highest value is in the newest of several rows with one key.

    def names(self, schema: pa.Schema) -> list[str]:
        """Return the columns that a batch must have: these and those of the table."""
        own = (name for name in (self.op_column, self.sequence_by) if name is not None)
        return list(dict.fromkeys([*schema.names, *own]))

    def newest(
        self, rows: pa.Table, schema: pa.Schema, primary_key: Sequence[str]
    ) -> tuple[pa.Table, pa.Table]:
        """Select the newest row of each key, and divide these rows into upserts and deletes."""
        is_delete = self._is_delete(rows)
        order = self._order(rows, is_delete)
        if order is not None:
            rows, is_delete = rows.take(order), is_delete.take(order)
        table = as_table_types(rows, schema, primary_key)
        keep = newest_row_positions(key_column(table, primary_key))
        if len(keep) != table.num_rows:
            if order is None:
                raise InvalidInputError(
                    f"{table.num_rows - len(keep)} rows of the batch have a key that another one "
                    "has, and nothing tells which is newer: name the column that does, as "
                    "sequence_by"
                )
            table, is_delete = table.take(pa.array(keep)), is_delete.take(pa.array(keep))
        if self.op_column is None:
            return table, table.slice(0, 0)
        return table.filter(pc.invert(is_delete)), table.filter(is_delete)

    def _is_delete(self, rows: pa.Table) -> pa.Array:
        if self.op_column is None:
            return pa.repeat(pa.scalar(False), rows.num_rows)
        ops = _column(rows, self.op_column)
        if ops.null_count:
            raise InvalidInputError(
                f"column {self.op_column!r} is null in {ops.null_count} rows, which are neither "
                "upserts nor deletes; fill it in"
            )
        return pc.is_in(ops.cast(pa.string()), pa.array(self.delete_ops)).combine_chunks()

    def _order(self, rows: pa.Table, is_delete: pa.Array) -> pa.Array | None:
        """Return positions from the oldest row to the newest; among ties a delete is newer."""
        if self.sequence_by is None:
            return None
        sequence = _column(rows, self.sequence_by)
        if sequence.null_count:
            raise InvalidInputError(
                f"column {self.sequence_by!r} is null in {sequence.null_count} rows, so that "
                "nothing tells which row is the newest; fill it in"
            )
        by = pa.table({self.sequence_by: sequence, _DELETED: is_delete.cast(pa.uint8())})
        return pc.sort_indices(
            by, sort_keys=[(self.sequence_by, "ascending"), (_DELETED, "ascending")]
        )


def as_table_types(rows: pa.Table, schema: pa.Schema, required: Collection[str] = ()) -> pa.Table:
    """Select the columns of a table, in its order, and cast them to its types; no value changes."""
    columns = []
    for target in schema:
        column = _column(rows, target.name)
        columns.append(column if column.type == target.type else _cast(column, target))
        if target.name in required and columns[-1].null_count:
            raise InvalidInputError(
                f"key column {target.name!r} is null in {columns[-1].null_count} rows of the "
                "batch; drop those rows or fill them in"
            )
    return pa.Table.from_arrays(
        columns, schema=pa.schema([pa.field(f.name, f.type) for f in schema])
    )


def _cast(column: pa.ChunkedArray, target: pa.Field) -> pa.ChunkedArray:
    """Cast a column as writers do, timestamps with a zone to UTC, and whole numbers to times."""
    local = _without_zones(column.type)
    cast = plan_cast(local, target.type)
    if pt.is_integer(local) and pt.is_time(target.type):
        cast = partial(_to_time, kind=target.type)
    if cast is None:
        raise InvalidInputError(
            f"column {target.name!r} is {column.type} in the batch, which {target.type}, its type "
            "in the table, does not hold; cast it before the sink"
        )
    starts = accumulate(map(len, column.chunks), initial=0)
    chunks = [
        cast_column(target.name, cast, chunk.cast(local), target.type, start)
        for chunk, start in zip(column.chunks, starts, strict=False)
    ]
    return pa.chunked_array(chunks, target.type)


def _to_time(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return whole numbers as times of day in their unit: Spark has no type for these."""
    times = array.cast(pa.int32() if pt.is_time32(kind) else pa.int64()).cast(kind)
    times.validate(full=True)
    return times


def _without_zones(kind: pa.DataType) -> pa.DataType:
    """Return a type of Spark with timestamps without a time zone, also in nested types."""
    if pt.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_zones(kind.value_type)))
    if pt.is_map(kind):
        return pa.map_(_without_zones(kind.key_type), _without_zones(kind.item_type))
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_without_zones(field.type)) for field in kind])
    return kind


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if rows.schema.get_field_index(name) < 0:
        raise InvalidInputError(
            f"the batch has no column {name!r}, or has it twice; it has "
            f"{', '.join(rows.schema.names)}"
        )
    return rows.column(name)
