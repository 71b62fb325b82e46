"""Making the entries of a region's WAL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from memwal.errors import InvalidInputError
from memwal.format.paths import MAX_COUNTER
from memwal.format.wal_layout import (
    ALIGNED,
    APPLIED,
    CHECKSUM,
    END_OF_STREAM,
    EPOCH,
    GENERATION,
    OWN_KEYS,
    PLACEHOLDER,
    PREFIX,
    SENTINEL,
    WRITER_ID,
    AppliedSteps,
    encode_applied,
    has_dictionaries,
    has_wide_values,
)


@dataclass(frozen=True, slots=True)
class EncodedEntry:
    """The bytes of an entry, and its rows as they stand there.

    Attributes
    ----------
    data : bytes
        The whole object.
    batches : tuple of pyarrow.RecordBatch
        The rows. They share the memory of ``data`` and nothing with the batches they were made of.
    """

    data: bytes
    batches: tuple[pa.RecordBatch, ...]


class EntryEncoder:
    """Makes the entries of one writer.

    What all entries of a generation begin with is made once: for a row or two, a schema takes
    several times as long to write, and again to read, as the rows.

    Parameters
    ----------
    schema : pyarrow.Schema
        Schema of the rows. Its metadata is kept, except for the keys that describe the entry.
    writer_epoch : int
        Epoch that the writer claimed.
    writer_id : str
        Who writes; unique to this writer, so that it can tell its own entry from another's.

    Raises
    ------
    InvalidInputError
        The epoch is out of range, or the schema contains a reserved word.
    """

    def __init__(self, schema: pa.Schema, *, writer_epoch: int, writer_id: str) -> None:
        kept = {k: v for k, v in (schema.metadata or {}).items() if k not in OWN_KEYS}
        self._schema = schema.with_metadata(kept) if kept else schema.remove_metadata()
        self._described = {
            **kept,
            EPOCH: _decimal("writer_epoch", writer_epoch),
            WRITER_ID: writer_id.encode(),
        }
        # A dictionary is a message of its own, and wide values are aligned when they are read.
        self._is_plain = not has_dictionaries(schema) and not has_wide_values(schema)
        self._head = self._head_of(0)

    def encode(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        generation: int,
        applied: AppliedSteps | None = None,
    ) -> EncodedEntry:
        """Make an entry.

        Parameters
        ----------
        batches : sequence of pyarrow.RecordBatch
            The rows, all in the schema of this encoder.
        generation : int
            Generation of the MemTable that takes these rows.
        applied : mapping of str to int, optional
            The newest step of each source that the region has with this entry, if it is one.

        Raises
        ------
        InvalidInputError
            A batch has another schema, or the generation is out of range.
        """
        head = self._head
        if applied:
            head = self._head_of(generation, {APPLIED: encode_applied(applied)})
        elif head.generation != generation:
            self._head = head = self._head_of(generation)
        messages = self._messages(batches)
        data = head.joined(messages)
        if not self._is_plain:
            return EncodedEntry(data, self._read_stream(data))
        buffer = pa.py_buffer(data)
        rows = []
        start = head.size
        for message in messages:
            end = start + message.size
            rows.append(pa.ipc.read_record_batch(buffer[start:end], self._schema))
            start = end
        return EncodedEntry(data, tuple(rows))

    def _read_stream(self, data: bytes) -> tuple[pa.RecordBatch, ...]:
        metadata = self._schema.metadata
        with pa.ipc.open_stream(data, options=ALIGNED) as reader:
            return tuple(batch.replace_schema_metadata(metadata) for batch in reader)

    def _head_of(self, generation: int, more: Mapping[bytes, bytes] | None = None) -> _Head:
        number = _decimal("generation", generation)
        described = {**self._described, GENERATION: number, **(more or {})}
        return _Head.of(self._schema, described, generation)

    def _messages(self, batches: Sequence[pa.RecordBatch]) -> list[pa.Buffer]:
        """Everything between the schema and the end of the stream."""
        try:
            if not self._is_plain:
                return [_stream_without_schema(self._schema, batches)]
            for batch in batches:
                if not batch.schema.equals(self._schema):
                    raise pa.ArrowInvalid(f"the rows have the schema {batch.schema}")
            return [batch.serialize() for batch in batches]
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"the rows cannot be written as a WAL entry: {error}"
            ) from error


def encode_entry(
    batches: Sequence[pa.RecordBatch],
    *,
    schema: pa.Schema,
    writer_epoch: int,
    generation: int,
    writer_id: str,
) -> bytes:
    """Return the bytes of a single entry; see :class:`EntryEncoder` for more than one."""
    encoder = EntryEncoder(schema, writer_epoch=writer_epoch, writer_id=writer_id)
    return encoder.encode(batches, generation=generation).data


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
        When the epoch is out of range.
    """
    empty = pa.schema([])
    described = {SENTINEL: b"true", EPOCH: _decimal("writer_epoch", writer_epoch)}
    if writer_id is None:
        return bytes(empty.with_metadata(described).serialize()) + END_OF_STREAM
    return _Head.of(empty, {**described, WRITER_ID: writer_id.encode()}, 0).joined(())


@dataclass(frozen=True, slots=True)
class _Head:
    """The schema message of an entry, with room for the checksum.

    Attributes
    ----------
    generation : int
    before, after : bytes
        What stands around the checksum.
    hashed : xxhash.xxh64
        The checksum as far as it depends on the message.
    """

    generation: int
    before: bytes
    after: bytes
    hashed: xxhash.xxh64

    @classmethod
    def of(cls, schema: pa.Schema, metadata: Mapping[bytes, bytes], generation: int) -> _Head:
        described = schema.with_metadata({**metadata, CHECKSUM: PLACEHOLDER})
        before, *rest = bytes(described.serialize()).split(PLACEHOLDER)
        if len(rest) != 1:
            raise InvalidInputError(
                f"the schema of the rows contains {PLACEHOLDER!r}, which is reserved; rename it"
            )
        hashed = xxhash.xxh64(b"".join((before, PLACEHOLDER, rest[0])))
        return cls(generation, before, rest[0], hashed)

    @property
    def size(self) -> int:
        return len(self.before) + len(PLACEHOLDER) + len(self.after)

    def joined(self, messages: Sequence[pa.Buffer]) -> bytes:
        """The whole entry."""
        checksum = self.hashed.copy()
        for message in messages:
            checksum.update(message)
        checksum.update(END_OF_STREAM)
        digest = checksum.hexdigest().encode()
        return b"".join((self.before, digest, self.after, *messages, END_OF_STREAM))


def _stream_without_schema(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    stream = sink.getvalue()
    start = PREFIX + int.from_bytes(stream[4:PREFIX], "little")
    return stream[start : stream.size - len(END_OF_STREAM)]


def _decimal(what: str, number: int) -> bytes:
    if not 0 <= number <= MAX_COUNTER:
        raise InvalidInputError(f"{what} {number} is not from 0 to {MAX_COUNTER}")
    return str(number).encode()
