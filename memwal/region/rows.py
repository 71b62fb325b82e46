"""Stored form of rows: schema, columns matched by field id, and the key of each row.

A field keeps its Lance id when it is renamed, and no other field ever gets that id. Lance writes
the ids into the metadata of the fields of its WAL entries, at every level. Rows that were stored
before the schema of the table evolved are converted by these ids. Fields without an id are matched
by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import InvalidInputError, NewerFormatError
from memwal.format.keys import encode_composite_keys
from memwal.format.paths import TOMBSTONE
from memwal.format.values import single_array, with_children

if TYPE_CHECKING:
    from lance.lance.schema import LanceField


_OWN_METADATA = {b"memwal": b"1"}
_FIELD_ID: Final = b"lance:field_id"
_PROTOCOL_PREFIX: Final = "__"


def stored_schema(schema: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    """Return the schema of a table's WAL entries and flushed generations (spec: Flushed MemTable).

    All columns outside of the key are nullable, and a tombstone column is added.
    """
    fields = [f if f.name in primary_key else f.with_nullable(True) for f in schema]
    # If all fields of a WAL entry equal those of Lance's MemTable, Lance uses the batches without
    # conversion, and then refuses them because of the schema metadata, which has our checksum. One
    # field that differs makes Lance convert the batches to its own schema, at no cost.
    tombstone = pa.field(TOMBSTONE, pa.bool_(), nullable=False, metadata=_OWN_METADATA)
    return pa.schema([*fields, tombstone])


def with_field_ids(schema: pa.Schema, lance_fields: Sequence[LanceField]) -> pa.Schema:
    """Return the schema with the Lance id of each field in its metadata, at every level."""
    return pa.schema(
        [_with_id(field, lance) for field, lance in _zip_fields(schema, lance_fields)],
        metadata=schema.metadata,
    )


def has_same_fields(stored: pa.Schema, target: pa.Schema) -> bool:
    """Return whether ``stored`` has every field of ``target``, with its name and children."""
    return all(
        _is_same(stored.field(index), field)
        for field in target
        if (index := stored.get_field_index(field.name)) >= 0
    ) and all(name in stored.names for name in target.names)


def check_known_columns(stored: pa.Schema, target: pa.Schema, *, name: str) -> None:
    """Raise NewerFormatError if stored rows have a column of a newer protocol.

    The names of such columns begin with two underscores. Dropping one may lose values that must
    last, such as ids that rows got when they were logged. A column of that form which is, or was,
    the table's own has a field id of the table. ``name`` is the key of the object that holds the
    rows.
    """
    own = {field.name for field in target}
    unknown = [f for f in stored if f.name.startswith(_PROTOCOL_PREFIX) and f.name not in own]
    if not unknown:
        return
    newest = max((int(field_id) for f in target if (field_id := _id_of(f)) is not None), default=-1)
    unknown = [f for f in unknown if not 0 <= int(_id_of(f) or -1) <= newest]
    if unknown:
        raise NewerFormatError(
            f"{name} has the column {unknown[0].name}, which this release of memwal does not know; "
            "upgrade memwal and pylance"
        )


def align_rows(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Convert rows to the schema ``target``: each column from the field with its id, or null.

    Fields without an id in their metadata are matched by name; ``target`` has ids, see
    :func:`with_field_ids`. Raises InvalidInputError if a value cannot be converted, or a column
    without nulls is missing.
    """
    columns = []
    for field, index in zip(target, _sources(list(rows.schema), list(target)), strict=True):
        if index is None:
            if not field.nullable:
                raise InvalidInputError(f"column {field.name} is missing and may have no nulls")
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        stored = rows.schema.field(index)
        try:
            chunks = [_align(chunk, stored, field) for chunk in rows.column(index).chunks]
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(f"column {field.name}: {error}") from error
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.Table.from_arrays(columns, schema=target)


def align_known(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Convert rows to those columns of ``target`` that they have, as :func:`align_rows`."""
    sources = _sources(list(rows.schema), list(target))
    known = [field for field, index in zip(target, sources, strict=True) if index is not None]
    return align_rows(rows, pa.schema(known))


def unknown_fields(rows: pa.Table, target: pa.Schema) -> set[bytes]:
    """Return the ids of the fields that ``target`` lacks, at every level of columns with values."""
    if rows.schema.equals(target, check_metadata=True):
        return set()
    used = [f for f, c in zip(rows.schema, rows.columns, strict=True) if c.null_count < len(c)]
    return _ids(used) - _ids(target)


def key_column(rows: pa.RecordBatch | pa.Table, primary_key: Sequence[str]) -> pa.Array:
    """Return the primary key of each row as one comparable value.

    A single key column is returned unchanged; several get an order-preserving encoding. Rows of a
    table without a key have nulls, which take no memory: none of them replaces another.
    """
    if not primary_key:
        return pa.nulls(rows.num_rows)
    columns = [single_array(rows.column(name)) for name in primary_key]
    return columns[0] if len(columns) == 1 else encode_composite_keys(columns)


def _align(array: pa.Array, stored: pa.Field, target: pa.Field) -> pa.Array:
    name = getattr(target.type, "extension_name", None)
    if array.type != target.type and name and name == getattr(array.type, "extension_name", None):
        # The same type with fewer parts, or with more: blobs have two or four.
        storage, kind = array.storage, target.type.storage_type
        for part in storage.type if pt.is_struct(storage.type) else ():
            if kind.get_field_index(part.name) < 0 and storage.field(part.name).null_count < len(
                array
            ):
                raise pa.ArrowInvalid(f"{part.name} has values, and {kind} has no place for them")
        sides = pa.field("", storage.type), pa.field("", kind)
        return pa.ExtensionArray.from_storage(target.type, _align(storage, *sides))
    if _is_same(stored, target):
        return array.cast(target.type) if array.type != target.type else array
    old, new = _children(stored.type), _children(target.type)
    if pt.is_struct(stored.type) and pt.is_struct(target.type):
        parts = [
            pa.nulls(len(array), field.type)
            if index is None
            else _align(array.field(index), old[index], field)
            for field, index in zip(new, _sources(old, new), strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=new, mask=array.is_null())
    if old and new and type(stored.type) is type(target.type) and not pt.is_map(stored.type):
        return pa.Array.from_buffers(
            target.type,
            len(array),
            array.buffers()[: 1 if pt.is_fixed_size_list(array.type) else 2],
            offset=array.offset,
            children=[_align(array.values, old[0], new[0])],
        )
    return array.cast(target.type)


def _sources(stored: Sequence[pa.Field], target: Sequence[pa.Field]) -> list[int | None]:
    """Return the position of the stored field for each target field; None if there is none."""
    by_id = {i: n for n, field in enumerate(stored) if (i := _id_of(field)) is not None}
    by_name = {field.name: n for n, field in enumerate(stored) if _id_of(field) is None}
    positions: list[int | None] = []
    for field in target:
        field_id = _id_of(field)
        position = by_id.get(field_id) if field_id is not None else None
        positions.append(position if position is not None else by_name.get(field.name))
    return positions


def _is_same(stored: pa.Field, target: pa.Field) -> bool:
    old, new = _children(stored.type), _children(target.type)
    return (
        stored.name == target.name
        and _id_of(stored) in (None, _id_of(target))
        and len(old) == len(new)
        and all(_is_same(a, b) for a, b in zip(old, new, strict=True))
    )


def _with_id(field: pa.Field, lance: LanceField) -> pa.Field:
    children = [_with_id(a, b) for a, b in _zip_fields(_children(field.type), lance.children())]
    if children:
        field = field.with_type(with_children(field.type, children))
    return field.with_metadata({**(field.metadata or {}), _FIELD_ID: str(lance.id()).encode()})


def _children(data_type: pa.DataType) -> list[pa.Field]:
    return [data_type.field(number) for number in range(data_type.num_fields)]


def _zip_fields(
    fields: Sequence[pa.Field], lance: Sequence[LanceField]
) -> Iterable[tuple[pa.Field, LanceField]]:
    """Pair each field with its Lance field.

    Lance has none for the items of a plain vector, and Arrow none within an extension type.
    """
    return zip(fields, lance, strict=True) if lance and fields else ()


def _ids(fields: Iterable[pa.Field]) -> set[bytes]:
    ids = set()
    for field in fields:
        ids |= {_id_of(field) or b""} | _ids(_children(field.type))
    return ids


def _id_of(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(_FIELD_ID)
