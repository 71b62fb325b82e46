"""From what a caller hands in to the rows that are stored, or a clear refusal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.format.names import TOMBSTONE
from memwal.region.field_ids import aligned
from memwal.region.row_schema import stored_schema


class RowShape:
    """The stored form of a table's rows: its columns, and a flag that marks a delete.

    Columns outside the primary key are nullable in it whatever the base table says, since a
    deleted row carries nothing but its key.

    Parameters
    ----------
    schema : pyarrow.Schema
        Schema of the base table, with field ids.
    primary_key : sequence of str
        Key columns.
    """

    def __init__(self, schema: pa.Schema, primary_key: Sequence[str]) -> None:
        self.base_schema = schema
        self.primary_key = tuple(primary_key)
        self.schema = stored_schema(schema, primary_key)

    def upserts(self, data: Any) -> list[pa.RecordBatch]:
        """Stored form of whole rows.

        Parameters
        ----------
        data : anything Arrow
            Table, record batch, reader, or an object with ``__arrow_c_stream__``. Columns in any
            order; types equal to the table's, or widened to them without loss.

        Raises
        ------
        InvalidInputError
            A column is unknown or missing, has another type, or a null where none may be.
        """
        table = _as_table(data)
        names = table.column_names
        self._check_names(names, self.base_schema.names)
        missing = [name for name in self.base_schema.names if name not in names]
        if missing:
            raise InvalidInputError(
                f"columns are missing: {', '.join(missing)}; an upsert gives whole rows"
            )
        columns = [self._column(table, field) for field in self.base_schema]
        for field, column in zip(self.base_schema, columns, strict=True):
            if field.name in self.primary_key or not field.nullable:
                self._check_nulls(field.name, column)
        return self._batches(columns, _constant(False, table.num_rows))

    def deletes(self, keys: Any) -> list[pa.RecordBatch]:
        """Stored form of deleted rows: the key, nulls, and the flag.

        Parameters
        ----------
        keys : anything Arrow
            The key columns; other columns of the table may be there and are ignored. For a
            single key column, an array of its values does as well.

        Raises
        ------
        InvalidInputError
            A key column is missing, has another type or a null.
        """
        if isinstance(keys, (pa.Array, pa.ChunkedArray)) and not pt.is_struct(keys.type):
            if len(self.primary_key) != 1:
                raise InvalidInputError(
                    f"the key has columns {', '.join(self.primary_key)}; give a table of them"
                )
            keys = pa.table({self.primary_key[0]: keys})
        table = _as_table(keys)
        self._check_names(table.column_names, self.base_schema.names)
        missing = [name for name in self.primary_key if name not in table.column_names]
        if missing:
            raise InvalidInputError(f"key columns are missing: {', '.join(missing)}")
        columns = [
            self._column(table, field)
            if field.name in self.primary_key
            else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
            for field in self.base_schema
        ]
        for name in self.primary_key:
            self._check_nulls(name, columns[self.base_schema.get_field_index(name)])
        return self._batches(columns, _constant(True, table.num_rows))

    def adopt(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Stored form of a batch that was read from the log, whoever wrote it.

        Lance accepts reordered columns, further ones, and a missing tombstone column; so do we.
        Columns are told apart by their field ids, as far as the writer recorded them.

        Raises
        ------
        InvalidInputError
            A column is missing or cannot become the table's type.
        """
        if batch.schema.equals(self.schema, check_metadata=True):
            return [batch]
        table = pa.Table.from_batches([batch])
        if TOMBSTONE not in table.column_names:
            table = table.append_column(
                self.schema.field(TOMBSTONE), _constant(False, table.num_rows)
            )
        return [part for part in aligned(table, self.schema).to_batches() if part.num_rows]

    def _check_names(self, names: Sequence[str], known: Sequence[str]) -> None:
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InvalidInputError(
                f"unknown columns: {', '.join(unknown)}; the table has {', '.join(known)}"
            )
        if len(set(names)) != len(names):
            raise InvalidInputError(f"a column is given twice: {', '.join(names)}")

    def _check_nulls(self, name: str, column: pa.ChunkedArray) -> None:
        if column.null_count:
            what = "key column" if name in self.primary_key else "column"
            raise InvalidInputError(
                f"{what} {name} has {column.null_count} null values and may have none; "
                "drop those rows or fill them in"
            )

    def _batches(
        self, columns: list[pa.ChunkedArray], tombstone: pa.Array | pa.ChunkedArray
    ) -> list[pa.RecordBatch]:
        table = pa.Table.from_arrays([*columns, tombstone], schema=self.schema)
        return [batch for batch in table.to_batches() if batch.num_rows]

    def _column(self, table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
        if field.name not in table.column_names:
            raise InvalidInputError(f"column {field.name} is missing")
        column = table.column(field.name)
        if column.type != field.type:
            if not _widens(column.type, field.type):
                raise InvalidInputError(
                    f"column {field.name} is {column.type}, the table has {field.type}; cast it"
                )
            try:
                column = column.cast(field.type)
            except pa.ArrowInvalid as error:
                raise InvalidInputError(f"column {field.name}: {error}") from error
        return column


def _as_table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    raise InvalidInputError(
        f"rows must be Arrow data (a table, a record batch, a reader), not {type(data).__name__}; "
        "pyarrow.Table.from_pandas or from_pylist make it from others"
    )


def _constant(value: bool, length: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), length)


def _widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of one type is the same value in the other."""
    if pt.is_null(given):
        return True
    if pt.is_dictionary(given):
        return _widens(given.value_type, wanted)
    if pt.is_dictionary(wanted):
        return _widens(given, wanted.value_type)
    text = (pt.is_string, pt.is_large_string, pt.is_string_view)
    binary = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
    if any(is_(given) for is_ in text):
        return any(is_(wanted) for is_ in text)
    if any(is_(given) for is_ in binary):
        return any(is_(wanted) for is_ in binary[:3])
    if pt.is_integer(given) and pt.is_integer(wanted):
        if pt.is_signed_integer(given):
            return bool(pt.is_signed_integer(wanted) and wanted.bit_width >= given.bit_width)
        if pt.is_signed_integer(wanted):
            return bool(wanted.bit_width > given.bit_width)
        return bool(wanted.bit_width >= given.bit_width)
    if pt.is_floating(given) and pt.is_floating(wanted):
        return bool(wanted.bit_width >= given.bit_width)
    if pt.is_timestamp(given) and pt.is_timestamp(wanted):
        units = ["s", "ms", "us", "ns"]
        return given.tz == wanted.tz and units.index(wanted.unit) >= units.index(given.unit)
    if (pt.is_list(given) or pt.is_large_list(given)) and (
        pt.is_list(wanted) or pt.is_large_list(wanted)
    ):
        return given.value_type == wanted.value_type or _widens(given.value_type, wanted.value_type)
    if pt.is_fixed_size_list(given) and pt.is_fixed_size_list(wanted):
        return given.list_size == wanted.list_size and (
            given.value_type == wanted.value_type or _widens(given.value_type, wanted.value_type)
        )
    if pt.is_struct(given) and pt.is_struct(wanted):
        return [f.name for f in given] == [f.name for f in wanted] and all(
            g.type == w.type or _widens(g.type, w.type) for g, w in zip(given, wanted, strict=True)
        )
    return False
