"""Blobs of version 2 in log entries.

Lance logs them as structs, see :mod:`memwal.base_table.blobs`. memwal logs every blob that is not
external as kind 0, with its bytes: an entry is then whole by itself, and Lance replays it. Lance's
own writer has stored large blobs before it appends the entry, in the folder of the generation that
it is going to flush. A replay reads them from there, for as long as the folder may be needed:
:func:`memwal.format.wal_layout.blob_folder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.blob import BlobType

from memwal.base_table.blobs import EXTERNAL, blob_parts, is_blob_v2
from memwal.errors import CorruptDataError, InvalidInputError, ObjectNotFoundError
from memwal.format.paths import blob_key
from memwal.format.wal_layout import LOGGED_TYPE_KEYS, TARGET_FILE, blob_folder
from memwal.storage.object_store import ObjectStore

ReadBlob = Callable[[int, int, int], bytes]
"""Reads a blob by the number of its file, its position there, and its size."""

_NAME: Final = b"lance.blob.v2"
_TYPE_METADATA: Final = b"ARROW:extension:metadata"
_LOGGED: Final = pa.struct(
    [
        ("kind", pa.uint8()),
        ("data", pa.large_binary()),
        ("uri", pa.string()),
        ("blob_id", pa.uint32()),
        ("blob_size", pa.uint64()),
        ("position", pa.uint64()),
    ]
)


# Before more is read, the size of the file is asked: a damaged entry may claim any.
_MAX_UNCHECKED: Final = 64 << 20


def log_schema(schema: pa.Schema) -> pa.Schema | None:
    """Return a schema with the columns that log entries have; None if none has another form."""
    if not any(map(is_blob_v2, schema)):
        return None
    type_keys = {LOGGED_TYPE_KEYS[0]: _NAME, _TYPE_METADATA: b""}
    fields = [
        pa.field(f.name, _LOGGED, f.nullable, {**(f.metadata or {}), **type_keys})
        if is_blob_v2(f)
        else f
        for f in schema
    ]
    return pa.schema(fields, schema.metadata)


def to_logged(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with blobs in the form of the log; the bytes are not copied."""
    schema = log_schema(rows.schema)
    if schema is None:
        return rows
    columns = [
        _logged(column) if is_blob_v2(field) else column
        for field, column in zip(rows.schema, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _logged(values: pa.ExtensionArray) -> pa.Array:
    data, uri, position, size = blob_parts(values)
    is_external = uri.is_valid()

    def of_external(numbers: pa.Array) -> pa.Array:
        return pc.if_else(is_external, pc.fill_null(numbers, 0), pa.scalar(None, numbers.type))

    parts = [
        pc.if_else(is_external, EXTERNAL, 0).cast(pa.uint8()),
        data,
        uri,
        of_external(pa.nulls(len(values), pa.uint32())),
        of_external(size),
        of_external(position),
    ]
    return pa.StructArray.from_arrays(parts, fields=[*_LOGGED], mask=values.is_null())


def from_logged(rows: pa.RecordBatch, read: ReadBlob) -> pa.RecordBatch:
    """Return rows with blobs in the form of the table; only those in other files are copied."""
    if not any(map(_is_logged, rows.schema)):
        return rows
    columns, fields = [], []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if _is_logged(field):
            column = _from_logged(column, read)
            dropped = {*LOGGED_TYPE_KEYS, _TYPE_METADATA}
            metadata = {k: v for k, v in field.metadata.items() if k not in dropped}
            field = pa.field(field.name, column.type, field.nullable, metadata)
        columns.append(column)
        fields.append(field)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, rows.schema.metadata))


def _is_logged(field: pa.Field) -> bool:
    metadata = field.metadata or {}
    return pa.types.is_struct(field.type) and any(
        metadata.get(key) == _NAME for key in LOGGED_TYPE_KEYS
    )


def _from_logged(values: pa.StructArray, read: ReadBlob) -> pa.Array:
    names = [field.name for field in values.type]
    missing = {field.name for field in _LOGGED}.difference(names)
    if missing:
        raise InvalidInputError(f"a blob of the log lacks {', '.join(sorted(missing))}")
    parts = dict(zip(names, values.flatten(), strict=True))
    try:
        parts = {field.name: parts[field.name].cast(field.type) for field in _LOGGED}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(f"a blob of the log cannot be read: {error}") from error
    kind = pc.fill_null(parts["kind"], 0).to_numpy()
    is_external = pa.array(kind == EXTERNAL)
    # A number of Python would be compared as a signed one.
    zero = pa.scalar(0, pa.uint64())
    is_range = pc.and_(is_external, pc.greater(pc.fill_null(parts["blob_size"], zero), zero))
    storage = [
        _with_files(parts, kind, read),
        _where(is_external, parts["uri"]),
        _where(is_range, parts["position"]),
        _where(is_range, parts["blob_size"]),
    ]
    kept = pa.StructArray.from_arrays(
        storage, fields=[*BlobType().storage_type], mask=values.is_null()
    )
    return pa.ExtensionArray.from_storage(BlobType(), kept)


def _with_files(parts: Mapping[str, pa.Array], kind: np.ndarray, read: ReadBlob) -> pa.Array:
    """Return the bytes of blobs, also of blobs in files of their own."""
    data: pa.Array = parts["data"]
    apart = np.flatnonzero((kind != 0) & (kind != EXTERNAL))
    if not len(apart):
        return data
    numbers, starts, sizes = (
        pc.fill_null(parts[name], 0).take(pa.array(apart)).to_pylist()
        for name in ("blob_id", "position", "blob_size")
    )
    found = pa.array(map(read, numbers, starts, sizes), pa.large_binary())
    place = np.arange(len(data))
    place[apart] = len(data) + np.arange(len(apart))
    return pa.concat_arrays([data, found]).take(pa.array(place))


def _where(mask: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(mask, values, pa.scalar(None, values.type))


def no_file(number: int, start: int, size: int) -> bytes:
    """Refuse to read a blob: entries of memwal have all their blobs."""
    raise CorruptDataError("an entry of this writer lacks the bytes of a blob")


def blob_reader(
    store: ObjectStore | None, region_id: UUID, metadata: Mapping[bytes, bytes] | None
) -> ReadBlob:
    """Return a function that reads blobs that an entry does not have itself."""
    folder = blob_folder(metadata)
    file = (metadata or {}).get(TARGET_FILE, b"").decode(errors="replace").removesuffix(".lance")

    def read(number: int, start: int, size: int) -> bytes:
        if store is None or folder is None or not file.isalnum():
            raise CorruptDataError(
                f"an entry of the log of region {region_id} does not tell where its blobs are; "
                "keep the object and find out who wrote it"
            )
        key = blob_key(region_id, folder, file, number)
        try:
            info = store.head(key) if start + size > _MAX_UNCHECKED else None
            if info is not None and start + size > info.size:
                raise CorruptDataError(
                    f"{key} has not the bytes that an entry of the log has in it"
                )
            data = store.get_range(key, start=start, length=size) if size else b""
        except ObjectNotFoundError as error:
            raise CorruptDataError(
                f"the log of region {region_id} has rows whose blobs are in {key}, which is not "
                "there; restore the object from a backup"
            ) from error
        if len(data) != size:
            raise CorruptDataError(f"{key} has not the bytes that an entry of the log has in it")
        return data

    return read
