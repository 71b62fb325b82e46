"""Rows of a stream's batch as a writer takes them: in the table's types, the newest of each key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import InvalidInputError
from memwal.region.newest import key_column, newest_rows
from memwal.region.routing import Router

_DELETED = "\x00deleted"
_ROW = "\x00row"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchForm:
    """How the rows of a batch are to be understood.

    Attributes
    ----------
    op_column : str or None
        Column that tells a delete from an upsert; None when all rows are upserts.
    delete_ops : tuple of str
        Its values that mean a delete.
    sequence_by : str or None
        Column that tells which of several rows with one key is the newest.
    """

    op_column: str | None
    delete_ops: tuple[str, ...]
    sequence_by: str | None

    def names(self, schema: pa.Schema) -> list[str]:
        """Columns of a batch that are needed, those of a table included."""
        return list(dict.fromkeys([*schema.names, *self._extra()]))

    def _extra(self) -> list[str]:
        return [name for name in (self.op_column, self.sequence_by) if name is not None]

    def newest(
        self, rows: pa.Table, schema: pa.Schema, primary_key: Sequence[str]
    ) -> tuple[pa.Table, pa.Table]:
        """The newest row of each key, as upserts and as deletes.

        Parameters
        ----------
        rows : pyarrow.Table
            Rows of a batch, in any order.
        schema : pyarrow.Schema
            Of the table.

        Raises
        ------
        InvalidInputError
            A column is missing or does not fit; the batch does not say which of two rows is newer.
        """
        flags = self._deleted(rows)
        order = self._order(rows, flags)
        if order is not None:
            rows, flags = rows.take(order), flags.take(order)
        table = as_table_types(rows, schema, primary_key)
        keep = newest_rows(key_column(table, primary_key))
        if order is None and len(keep) != table.num_rows:
            raise InvalidInputError(
                f"{table.num_rows - len(keep)} rows of the batch have a key that another one has, "
                "and nothing tells which is newer: name the column that does, as sequence_by"
            )
        table, flags = table.take(pa.array(keep)), flags.take(pa.array(keep))
        return table.filter(pc.invert(flags)), table.filter(flags)

    def _deleted(self, rows: pa.Table) -> pa.Array:
        if self.op_column is None:
            return pa.repeat(pa.scalar(False), rows.num_rows)
        ops = _column(rows, self.op_column)
        if ops.null_count:
            raise InvalidInputError(
                f"column {self.op_column!r} is null in {ops.null_count} rows, which are neither "
                "upserts nor deletes; fill it in"
            )
        return pc.is_in(ops.cast(pa.string()), pa.array(self.delete_ops)).combine_chunks()

    def _order(self, rows: pa.Table, flags: pa.Array) -> pa.Array | None:
        """Positions from the oldest row to the newest; of equal ones a delete counts."""
        if self.sequence_by is None:
            return None
        sequence = _column(rows, self.sequence_by)
        if sequence.null_count:
            raise InvalidInputError(
                f"column {self.sequence_by!r} is null in {sequence.null_count} rows, so that "
                "nothing tells which row is the newest; fill it in"
            )
        by = pa.table({self.sequence_by: sequence, _DELETED: flags.cast(pa.uint8())})
        return pc.sort_indices(
            by, sort_keys=[(self.sequence_by, "ascending"), (_DELETED, "ascending")]
        )


def as_table_types(rows: pa.Table, schema: pa.Schema, required: Collection[str] = ()) -> pa.Table:
    """The columns of a table, in its order and types.

    Spark has fewer types than Arrow: vectors come as lists of any length, unsigned numbers as wider
    ones. Values are checked, so that none is changed.

    Raises
    ------
    InvalidInputError
        A column is missing, or a value does not fit.
    """
    columns = []
    for field in schema:
        column = _column(rows, field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"column {field.name!r} is {column.type} in the batch and {field.type} in the "
                f"table, and does not fit: {error}; cast it before the sink"
            ) from error
        if field.name in required and columns[-1].null_count:
            raise InvalidInputError(
                f"key column {field.name!r} is null in {columns[-1].null_count} rows of the batch; "
                "drop those rows or fill them in"
            )
    return pa.Table.from_arrays(
        columns, schema=pa.schema([pa.field(f.name, f.type) for f in schema])
    )


def region_names(router: Router, columns: pa.RecordBatch) -> pa.Array:
    """The region of each row, as text.

    Parameters
    ----------
    columns : pyarrow.RecordBatch
        The region columns in the types of the table.
    """
    names: npt.NDArray[Any] = np.empty(columns.num_rows, dtype=object)
    numbered = columns.append_column(_ROW, pa.array(np.arange(columns.num_rows)))
    for assignment, part in router.route(numbered):
        names[part.column(_ROW).to_numpy()] = str(assignment.region_id)
    return pa.array(names, pa.string())


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if rows.schema.get_field_index(name) < 0:
        raise InvalidInputError(
            f"the batch has no column {name!r}, or has it twice; it has "
            f"{', '.join(rows.schema.names)}"
        )
    return rows.column(name)
