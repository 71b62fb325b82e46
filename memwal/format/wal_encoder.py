"""Encoder of a region's WAL entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    BlobTarget,
    encode_applied,
    has_dictionaries,
    has_wide_values,
    importable,
)


@dataclass(frozen=True, slots=True)
class EncodedEntry:
    """An encoded entry, and its rows as zero-copy views of it."""

    data: bytes
    # The rows. They share the memory of ``data``, and none with the batches that were encoded.
    batches: tuple[pa.RecordBatch, ...]


class EntryEncoder:
    """Encodes the WAL entries of one writer.

    The schema message is encoded once per generation: for one or two rows, a schema takes several
    times as long to encode, and again to decode, as the rows.

    The metadata of the schema is kept, except for the keys that describe the entry. ``writer_id``
    is unique to the writer, so that it can tell its own entries from others. ``target_of`` returns
    metadata that all entries of a generation have. Raises
    InvalidInputError if the epoch is out of range, or the schema contains a reserved word.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        writer_epoch: int,
        writer_id: str,
        target_of: Callable[[int], BlobTarget] = lambda _: {},
    ) -> None:
        metadata = {k: v for k, v in (schema.metadata or {}).items() if k not in OWN_KEYS}
        self._schema = schema.with_metadata(metadata) if metadata else schema.remove_metadata()
        self._metadata = {
            **metadata,
            EPOCH: _decimal("writer_epoch", writer_epoch),
            WRITER_ID: writer_id.encode(),
        }
        self._target_of = target_of
        # A dictionary is a separate message, and wide values must be aligned when they are read.
        self._is_simple = not has_dictionaries(schema) and not has_wide_values(schema)
        self._head = self._make_head(0)

    def encode(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        generation: int,
        applied: AppliedSteps | None = None,
    ) -> EncodedEntry:
        """Encode an entry of rows of one generation.

        For a step of a source, ``applied`` has the newest step of each source that the region has
        applied, including this entry. Raises InvalidInputError if a batch has another schema, or
        the generation is out of range.
        """
        head = self._head
        if applied:
            head = self._make_head(generation, {APPLIED: encode_applied(applied)})
        elif head.generation != generation:
            self._head = head = self._make_head(generation)
        messages = self._encode_batches(batches)
        data = head.join(messages)
        if not self._is_simple:
            metadata = self._schema.metadata
            with pa.ipc.open_stream(importable(data, head.size), options=ALIGNED) as reader:
                batches = [batch.replace_schema_metadata(metadata) for batch in reader]
            return EncodedEntry(data, tuple(batches))
        buffer = pa.py_buffer(data)
        rows = []
        start = head.size
        for message in messages:
            end = start + message.size
            rows.append(pa.ipc.read_record_batch(buffer[start:end], self._schema))
            start = end
        return EncodedEntry(data, tuple(rows))

    def _make_head(
        self, generation: int, extra: Mapping[bytes, bytes] | None = None
    ) -> _HeadTemplate:
        number = _decimal("generation", generation)
        target = self._target_of(generation)
        metadata = {**self._metadata, GENERATION: number, **target, **(extra or {})}
        return _HeadTemplate.of(self._schema, metadata, generation)

    def _encode_batches(self, batches: Sequence[pa.RecordBatch]) -> list[pa.Buffer]:
        """Return the messages between the schema and the end of the stream."""
        try:
            if not self._is_simple:
                return [_stream_without_schema(self._schema, batches)]
            for batch in batches:
                if not batch.schema.equals(self._schema):
                    raise pa.ArrowInvalid(f"the rows have the schema {batch.schema}")
            return [batch.serialize() for batch in batches]
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"the rows cannot be written as a WAL entry: {error}"
            ) from error


def encode_sentinel(*, writer_epoch: int, writer_id: str | None = None) -> bytes:
    """Encode a fence sentinel: an entry without rows that stops older writers.

    Without ``writer_id``, the metadata is exactly that of Lance's own sentinels. Raises
    InvalidInputError if the epoch is out of range.
    """
    empty = pa.schema([])
    metadata = {SENTINEL: b"true", EPOCH: _decimal("writer_epoch", writer_epoch)}
    if writer_id is None:
        return bytes(empty.with_metadata(metadata).serialize()) + END_OF_STREAM
    return _HeadTemplate.of(empty, {**metadata, WRITER_ID: writer_id.encode()}, 0).join(())


@dataclass(frozen=True, slots=True)
class _HeadTemplate:
    """The schema message of an entry, with room for the checksum."""

    generation: int
    before: bytes  # the bytes around the checksum
    after: bytes
    hashed: xxhash.xxh64  # hash state after the message

    @classmethod
    def of(
        cls, schema: pa.Schema, metadata: Mapping[bytes, bytes], generation: int
    ) -> _HeadTemplate:
        with_checksum = schema.with_metadata({**metadata, CHECKSUM: PLACEHOLDER})
        before, *rest = bytes(with_checksum.serialize()).split(PLACEHOLDER)
        if len(rest) != 1:
            raise InvalidInputError(
                f"the schema of the rows contains {PLACEHOLDER!r}, which is reserved; rename it"
            )
        hashed = xxhash.xxh64(b"".join((before, PLACEHOLDER, rest[0])))
        return cls(generation, before, rest[0], hashed)

    @property
    def size(self) -> int:
        return len(self.before) + len(PLACEHOLDER) + len(self.after)

    def join(self, messages: Sequence[pa.Buffer]) -> bytes:
        """Return the whole entry with these messages."""
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
