"""One entry of a region's WAL: an Arrow IPC stream (spec: WAL Entry Format).

The epoch and the generation stand in the schema's metadata, as Lance writes them. Beside them
memwal writes who wrote the entry, so that an ambiguous answer of the store can be settled by
reading the entry back, and a checksum of every byte of the entry except the checksum's own digits,
so that a torn or changed entry is never taken for a whole one. Lance ignores both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from memwal.errors import CorruptDataError, InvalidInputError

_EPOCH = b"writer_epoch"
_GENERATION = b"generation"
_SENTINEL = b"fence_sentinel"
_WRITER_ID = b"memwal.writer_id"
_CHECKSUM = b"memwal.checksum"
_OWN_KEYS = frozenset({_EPOCH, _GENERATION, _SENTINEL, _WRITER_ID, _CHECKSUM})

_CONTINUATION = b"\xff\xff\xff\xff"
_END_OF_STREAM = _CONTINUATION + b"\0\0\0\0"
# Stands where the checksum goes while the checksum is computed; as long as 16 hex digits.
_PLACEHOLDER = b"\x11memwal.unset.\x11\x11"
# Continuation marker and length of a message.
_PREFIX = 8
_DECIMAL = re.compile(rb"[0-9]{1,20}")
# A stream aligns its buffers to 8 bytes, and Lance panics at 16-byte values that are not aligned to
# theirs. Arrow's own idea of a type's alignment stops at 8 too.
_ALIGNED = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)
_MAX_U64 = (1 << 64) - 1


class TornEntryError(CorruptDataError):
    """A WAL entry was not written to its end, or its bytes changed since.

    At the tip of a WAL it counts as absent: nobody was told that its rows are durable.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class WalEntry:
    """What one WAL entry holds.

    Parameters
    ----------
    writer_epoch : int
        Epoch of the writer that appended it.
    generation : int or None
        Generation its rows belong to; None when the writer did not say.
    is_sentinel : bool
        Whether it only fences: it then has no rows.
    batches : tuple of pyarrow.RecordBatch
        Its rows in the order they were written; they share the memory of the bytes given.
    schema : pyarrow.Schema
        Their schema, without the metadata that describes the entry.
    writer_id : str or None
        Who wrote it; None for entries of other clients.
    """

    writer_epoch: int
    generation: int | None
    is_sentinel: bool
    batches: tuple[pa.RecordBatch, ...]
    schema: pa.Schema
    writer_id: str | None


def encode_entry(
    batches: Sequence[pa.RecordBatch],
    *,
    schema: pa.Schema,
    writer_epoch: int,
    generation: int,
    writer_id: str,
) -> pa.Buffer:
    """Return the bytes of an entry that holds ``batches``.

    The batches are serialised once, and the checksum is patched into the finished bytes.

    Parameters
    ----------
    batches : sequence of pyarrow.RecordBatch
        The rows, all in ``schema``.
    schema : pyarrow.Schema
        Schema of the rows. Its metadata is kept, except for the keys that describe the entry.
    writer_epoch : int
        Epoch that the writer claimed.
    generation : int
        Generation of the MemTable that takes these rows.
    writer_id : str
        Who writes; unique to this writer, so that it can tell its own entry from another's.

    Returns
    -------
    pyarrow.Buffer
        The whole object.

    Raises
    ------
    InvalidInputError
        When a batch has another schema or a number is out of range.
    """
    kept = {key: value for key, value in (schema.metadata or {}).items() if key not in _OWN_KEYS}
    described = {
        **kept,
        _GENERATION: _decimal("generation", generation),
        _EPOCH: _decimal("writer_epoch", writer_epoch),
        _WRITER_ID: writer_id.encode(),
    }
    return _write_checked(schema, described, batches)


def encode_sentinel(*, writer_epoch: int, writer_id: str | None = None) -> bytes:
    """Return the bytes of a fence sentinel: an entry without rows that stops older writers.

    Parameters
    ----------
    writer_epoch : int
        Epoch that the new writer claimed.
    writer_id : str or None, default None
        Who writes. Without it the entry says exactly what a sentinel of Lance says.

    Raises
    ------
    InvalidInputError
        When the epoch is no unsigned 64-bit integer.
    """
    empty = pa.schema([])
    described = {_SENTINEL: b"true", _EPOCH: _decimal("writer_epoch", writer_epoch)}
    if writer_id is None:
        buffer = _write(empty, described, ())
    else:
        buffer = _write_checked(empty, {**described, _WRITER_ID: writer_id.encode()}, ())
    return bytes(buffer)


def decode_entry(data: bytes | bytearray | memoryview | pa.Buffer, *, name: str) -> WalEntry:
    """Read a WAL entry, written here or by another client.

    Parameters
    ----------
    data : bytes-like or pyarrow.Buffer
        The whole object. The batches keep it alive and share its memory.
    name : str
        Key of the object, for error messages.

    Raises
    ------
    TornEntryError
        When the object is empty, cut off, unreadable, or does not match its checksum.
    CorruptDataError
        When a whole entry does not say what it must.
    """
    buffer = pa.py_buffer(data)
    view = memoryview(buffer).cast("B")
    header = _schema_message_size(view, name)
    source = pa.BufferReader(buffer)
    try:
        reader = pa.ipc.open_stream(source)
        if _has_wide_values(reader.schema):
            source = pa.BufferReader(buffer)
            reader = pa.ipc.open_stream(source, options=_ALIGNED)
    except (pa.ArrowException, OSError) as error:
        raise _torn(name, f"its schema cannot be read: {error}") from error
    metadata: dict[bytes, bytes] = reader.schema.metadata or {}
    stored = metadata.get(_CHECKSUM)
    if stored is not None:
        _verify(view, header, stored, name)
    elif _WRITER_ID in metadata:
        raise _torn(name, "it names its writer but has no checksum")
    batches = _read_batches(reader, source, view, name)
    if stored is None:
        _validate(reader.schema, batches, name)
    rest = {key: value for key, value in metadata.items() if key not in _OWN_KEYS}
    schema = reader.schema.with_metadata(rest) if rest else reader.schema.remove_metadata()
    writer_epoch = _number(metadata, _EPOCH, name)
    if writer_epoch is None:
        raise CorruptDataError(
            f"WAL entry {name} has no writer_epoch, so nobody can tell whether it may be replayed; "
            "find out who wrote it and keep the object"
        )
    return WalEntry(
        writer_epoch=writer_epoch,
        generation=_number(metadata, _GENERATION, name),
        is_sentinel=metadata.get(_SENTINEL) == b"true",
        batches=tuple(batch.replace_schema_metadata(schema.metadata) for batch in batches),
        schema=schema,
        writer_id=_text(metadata, _WRITER_ID, name),
    )


def _write_checked(
    schema: pa.Schema, metadata: Mapping[bytes, bytes], batches: Sequence[pa.RecordBatch]
) -> pa.Buffer:
    buffer = _write(schema, {**metadata, _CHECKSUM: _PLACEHOLDER}, batches)
    view = memoryview(buffer).cast("B")
    header = bytes(view[: _PREFIX + int.from_bytes(view[4:_PREFIX], "little")])
    slot = header.find(_PLACEHOLDER)
    if slot != header.rfind(_PLACEHOLDER):
        raise InvalidInputError(
            f"the schema of the rows contains {_PLACEHOLDER!r}, which is reserved; rename it"
        )
    view[slot : slot + len(_PLACEHOLDER)] = xxhash.xxh64_hexdigest(view).encode()
    return buffer


def _write(
    schema: pa.Schema, metadata: Mapping[bytes, bytes], batches: Sequence[pa.RecordBatch]
) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    try:
        with pa.ipc.new_stream(sink, schema.with_metadata(metadata)) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(f"the rows cannot be written as a WAL entry: {error}") from error
    return sink.getvalue()


def _schema_message_size(view: memoryview, name: str) -> int:
    if len(view) < _PREFIX + len(_END_OF_STREAM) or view[:4] != _CONTINUATION:
        raise _torn(name, "it does not start as an Arrow stream")
    size = _PREFIX + int.from_bytes(view[4:_PREFIX], "little")
    if size > len(view) - len(_END_OF_STREAM):
        raise _torn(name, "it ends within its schema")
    return size


def _verify(view: memoryview, header: int, stored: bytes, name: str) -> None:
    slot = bytes(view[:header]).find(stored)
    digest = xxhash.xxh64(view[:slot])
    digest.update(_PLACEHOLDER)
    digest.update(view[slot + len(_PLACEHOLDER) :])
    if digest.hexdigest().encode() != stored:
        raise _torn(name, "its bytes do not match its checksum")


def _read_batches(
    reader: pa.RecordBatchStreamReader, source: pa.BufferReader, view: memoryview, name: str
) -> list[pa.RecordBatch]:
    batches = []
    while True:
        position = source.tell()
        try:
            batches.append(reader.read_next_batch())
        except StopIteration:
            break
        except (pa.ArrowException, OSError) as error:
            raise _torn(name, f"batch {len(batches)} cannot be read: {error}") from error
    if view[position:] != _END_OF_STREAM:
        raise _torn(name, f"it does not end after batch {len(batches) - 1} as it must")
    return batches


def _validate(schema: pa.Schema, batches: Sequence[pa.RecordBatch], name: str) -> None:
    # Nothing vouches for the bytes of other clients: an offset beyond its buffer, or a column name
    # that is no text, must be found here, before something follows it.
    try:
        _column_names(schema)
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _torn(name, f"its rows are not valid Arrow data: {error}") from error


def _has_wide_values(fields: Iterable[pa.Field]) -> bool:
    """Whether values somewhere in the columns are wider than what a stream aligns them to."""
    return any(
        pa.types.is_decimal128(field.type)
        or pa.types.is_decimal256(field.type)
        or pa.types.is_interval(field.type)
        or _has_wide_values(field.type.field(n) for n in range(field.type.num_fields))
        for field in fields
    )


def _column_names(fields: Iterable[pa.Field]) -> list[str]:
    names = []
    for field in fields:
        children = (field.type.field(number) for number in range(field.type.num_fields))
        names += [field.name, *_column_names(children)]
    return names


def _torn(name: str, reason: str) -> TornEntryError:
    return TornEntryError(
        f"WAL entry {name} is torn: {reason}. At the tip of the WAL it may be ignored; anywhere "
        "else keep the object and look at its bytes"
    )


def _decimal(what: str, number: int) -> bytes:
    if not 0 <= number <= _MAX_U64:
        raise InvalidInputError(f"{what} {number} is not an unsigned 64-bit integer")
    return str(number).encode()


def _number(metadata: Mapping[bytes, bytes], key: bytes, name: str) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if _DECIMAL.fullmatch(value) is None or int(value) > _MAX_U64:
        raise CorruptDataError(
            f"WAL entry {name} says {key.decode()} is {value!r}, which is not an unsigned 64-bit "
            "integer; keep the object and look at who wrote it"
        )
    return int(value)


def _text(metadata: Mapping[bytes, bytes], key: bytes, name: str) -> str | None:
    value = metadata.get(key)
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError(
            f"WAL entry {name} says {key.decode()} is {value!r}, which is not UTF-8; keep the "
            "object and look at who wrote it"
        ) from error
