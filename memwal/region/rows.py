"""Stored form of rows: schema, columns matched by field id, and the newest row of each key.

Lance keeps the id of a field when the field is renamed, and never gives an id to another field; it
writes the ids into the metadata of the fields of its log entries, at every level. By these ids,
rows that were stored before the table's schema evolved are brought into its present form. Rows
whose writer recorded no ids are matched by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.format.keys import encode_composite_keys
from memwal.format.paths import TOMBSTONE

if TYPE_CHECKING:
    from lance.lance.schema import LanceField
    from lance.schema import LanceSchema


_OURS = {b"memwal": b"1"}
_FIELD_ID: Final = b"lance:field_id"


def stored_schema(schema: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    """Schema of log entries and flushed generations of a table (spec: Flushed MemTable)."""
    fields = [f if f.name in primary_key else f.with_nullable(True) for f in schema]
    # When all fields of a log entry equal those of its MemTable, Lance takes its batches as they
    # are, and then refuses them for the schema's metadata, where our checksum is. A field that
    # differs has it bring the batches to its own schema, which costs it nothing.
    tombstone = pa.field(TOMBSTONE, pa.bool_(), nullable=False, metadata=_OURS)
    return pa.schema([*fields, tombstone])


def with_field_ids(schema: pa.Schema, lance_schema: LanceSchema) -> pa.Schema:
    """The schema with the id of each field in its metadata, at every level."""
    return pa.schema(
        [_identified(field, lance) for field, lance in _zip(schema, lance_schema.fields())],
        metadata=schema.metadata,
    )


def has_same_fields(stored: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether every field of ``wanted`` is in ``stored``, under its name and with its children."""
    return all(
        _same(stored.field(index), field)
        for field in wanted
        if (index := stored.get_field_index(field.name)) >= 0
    ) and all(name in stored.names for name in wanted.names)


def align_rows(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Rows in the form of ``wanted``: each column from the field with its id, or null.

    Parameters
    ----------
    rows : pyarrow.Table
        Stored rows; fields without an id in their metadata are matched by name.
    wanted : pyarrow.Schema
        With field ids, see :func:`with_field_ids`.

    Raises
    ------
    InvalidInputError
        A value cannot become the wanted type, or may not be absent.
    """
    columns = []
    for field, index in zip(wanted, _sources(list(rows.schema), list(wanted)), strict=True):
        if index is None:
            if not field.nullable:
                raise InvalidInputError(f"column {field.name} is missing and may have no nulls")
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        stored = rows.schema.field(index)
        try:
            chunks = [_aligned(chunk, stored, field) for chunk in rows.column(index).chunks]
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(f"column {field.name}: {error}") from error
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.Table.from_arrays(columns, schema=wanted)


def key_column(rows: pa.RecordBatch | pa.Table, primary_key: Sequence[str]) -> pa.Array:
    """One comparable value per row for its primary key, however many columns that has.

    A single key column is returned as it is; several become their order-preserving encoding.
    """
    columns = [_one_chunk(rows.column(name)) for name in primary_key]
    return columns[0] if len(columns) == 1 else encode_composite_keys(columns)


def newest_row_positions(keys: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Positions of the last occurrence of each key, ascending.

    Parameters
    ----------
    keys : pyarrow.Array
        One key per row, oldest row first.

    Returns
    -------
    numpy.ndarray of int64
        One position per distinct key.
    """
    encoded = keys.dictionary_encode()
    distinct = len(encoded.dictionary)
    if distinct == len(keys):
        return np.arange(len(keys), dtype=np.int64)
    newest = np.empty(distinct, dtype=np.int64)
    # Assignment in index order leaves the last position of each key in place.
    newest[encoded.indices.to_numpy(zero_copy_only=False)] = np.arange(len(keys), dtype=np.int64)
    newest.sort()
    return newest


def _aligned(array: pa.Array, stored: pa.Field, wanted: pa.Field) -> pa.Array:
    if _same(stored, wanted):
        return array.cast(wanted.type) if array.type != wanted.type else array
    old, new = _children(stored.type), _children(wanted.type)
    if pt.is_struct(stored.type) and pt.is_struct(wanted.type):
        parts = [
            pa.nulls(len(array), field.type)
            if index is None
            else _aligned(array.field(index), old[index], field)
            for field, index in zip(new, _sources(old, new), strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=new, mask=array.is_null())
    if old and new and type(stored.type) is type(wanted.type) and not pt.is_map(stored.type):
        return pa.Array.from_buffers(
            wanted.type,
            len(array),
            array.buffers()[: 1 if pt.is_fixed_size_list(array.type) else 2],
            offset=array.offset,
            children=[_aligned(array.values, old[0], new[0])],
        )
    return array.cast(wanted.type)


def _sources(stored: Sequence[pa.Field], wanted: Sequence[pa.Field]) -> list[int | None]:
    """Position of the stored field that each wanted one comes from."""
    by_id = {i: n for n, field in enumerate(stored) if (i := _id_of(field)) is not None}
    by_name = {field.name: n for n, field in enumerate(stored) if _id_of(field) is None}
    found: list[int | None] = []
    for field in wanted:
        wanted_id = _id_of(field)
        known = by_id.get(wanted_id) if wanted_id is not None else None
        found.append(known if known is not None else by_name.get(field.name))
    return found


def _same(stored: pa.Field, wanted: pa.Field) -> bool:
    old, new = _children(stored.type), _children(wanted.type)
    return (
        stored.name == wanted.name
        and _id_of(stored) in (None, _id_of(wanted))
        and len(old) == len(new)
        and all(_same(a, b) for a, b in zip(old, new, strict=True))
    )


def _identified(field: pa.Field, lance: LanceField) -> pa.Field:
    children = [_identified(a, b) for a, b in _zip(_children(field.type), lance.children())]
    if children:
        field = field.with_type(_with_children(field.type, children))
    return field.with_metadata({**(field.metadata or {}), _FIELD_ID: str(lance.id()).encode()})


def _with_children(data_type: pa.DataType, children: list[pa.Field]) -> pa.DataType:
    if pt.is_struct(data_type):
        return pa.struct(children)
    if pt.is_list(data_type):
        return pa.list_(children[0])
    if pt.is_large_list(data_type):
        return pa.large_list(children[0])
    if pt.is_fixed_size_list(data_type):
        return pa.list_(children[0], data_type.list_size)
    return data_type


def _children(data_type: pa.DataType) -> list[pa.Field]:
    return [data_type.field(number) for number in range(data_type.num_fields)]


def _zip(
    fields: Iterable[pa.Field], lance: Sequence[LanceField]
) -> Iterable[tuple[pa.Field, LanceField]]:
    """Pairs of the same field; Lance has no fields for the items of a plain vector."""
    return zip(fields, lance, strict=True) if lance else ()


def _id_of(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(_FIELD_ID)


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        combined = column.combine_chunks()
        return (
            pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
        )
    return column
