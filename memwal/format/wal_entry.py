"""Decoder of a region's WAL entries (spec: WAL Entry Format), and bounds on their stated sizes.

Arrow trusts the decompressed size that a compressed buffer states, and the number of rows that a
batch states. A few bytes could claim terabytes, or unpack to them. This module therefore reads the
metadata of the messages field by field (Arrow columnar format: Encapsulated message format, and
``Message.fbs`` for the numbers of the fields).
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa
import xxhash

from memwal.errors import CorruptDataError
from memwal.format.paths import MAX_COUNTER
from memwal.format.wal_layout import (
    ALIGNED,
    APPLIED,
    CHECKSUM,
    CONTINUATION,
    END_OF_STREAM,
    EPOCH,
    GENERATION,
    OWN_KEYS,
    PLACEHOLDER,
    PREFIX,
    SENTINEL,
    WRITER_ID,
    AppliedSteps,
    blob_folder,
    children_of,
    decode_applied,
    has_dictionaries,
    has_wide_values,
    importable,
)

_DECIMAL = re.compile(rb"[0-9]{1,20}")


class TornEntryError(CorruptDataError):
    """A WAL entry was not written completely, or its bytes changed since.

    At the tip of a WAL it counts as absent: its rows were not acknowledged as durable.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class WalEntry:
    """A decoded WAL entry."""

    writer_epoch: int
    generation: int | None  # of its rows; None if the writer did not record it
    is_sentinel: bool  # whether it is a fence sentinel, which has no rows
    # Its rows in the order they were written. They share the memory of the decoded bytes.
    batches: tuple[pa.RecordBatch, ...]
    schema: pa.Schema  # of the rows, without the metadata that describes the entry
    writer_id: str | None  # None for entries of other clients
    # The newest step of each source that the region has applied, including this entry. Empty for an
    # entry that is not a step, which says nothing about earlier steps.
    applied: AppliedSteps = dataclasses.field(default_factory=dict)


def decode_entry(data: bytes | bytearray | memoryview | pa.Buffer, *, name: str) -> WalEntry:
    """Decode a WAL entry of memwal or of another client.

    The batches keep ``data`` alive and share its memory. ``name`` is the key of the object, for
    error messages. Raises TornEntryError if the object is empty, cut off or unreadable, or does not
    match its checksum. Raises CorruptDataError if a complete entry lacks required metadata, claims
    an impossible size, or cannot be read although it matches its checksum; and MemoryError if the
    machine has no memory left for the rows.
    """
    global _last_head
    buffer = pa.py_buffer(data)
    view = memoryview(buffer).cast("B")
    size = _schema_message_size(view, name)
    header = bytes(view[:size])
    last = _last_head
    if last is not None and last[0].fits(header):
        head, entry = last
    else:
        head, entry = _Head.of(header, name), None
    if head.hashed is not None:
        head.verify(view, name)
    elif WRITER_ID in header or CHECKSUM in header:
        # memwal wrote it. The raw bytes are searched: one damaged byte, the count of metadata
        # entries, can hide all of them.
        raise _torn(name, "it was written with a checksum and has none")
    with _torn_if_unreadable(name, "its batches", is_whole=head.hashed is not None):
        places = check_claimed_sizes(view, start=size, name=name)
        batches, end = head.read(buffer, [size, *places])
        _validate(batches)
    if view[end:] != END_OF_STREAM:
        raise _torn(name, f"it does not end after batch {len(batches) - 1} as it must")
    if entry is None:
        entry = _without_rows(head, name)
        _last_head = head, entry
    return dataclasses.replace(entry, batches=tuple(batches))


def _without_rows(head: _Head, name: str) -> WalEntry:
    metadata = head.metadata
    writer_epoch = _metadata_number(metadata, EPOCH, name)
    if writer_epoch is None:
        raise CorruptDataError(
            f"WAL entry {name} has no writer_epoch, so it is not known whether it may be replayed; "
            "find out who wrote it and keep the object"
        )
    return WalEntry(
        writer_epoch=writer_epoch,
        generation=_metadata_number(metadata, GENERATION, name),
        is_sentinel=metadata.get(SENTINEL) == b"true",
        batches=(),
        schema=head.schema,
        writer_id=_metadata_text(metadata, WRITER_ID, name),
        applied=_applied(metadata, name),
    )


@dataclass(frozen=True, slots=True)
class _Head:
    """The schema message of an entry, without its checksum."""

    before: bytes  # the bytes around the checksum; all of them if there is none
    after: bytes
    hashed: xxhash.xxh64 | None  # hash state after the message; None without a checksum
    schema: pa.Schema  # of the rows, without the metadata that describes the entry
    metadata: Mapping[bytes, bytes]
    # A dictionary is a separate message, and wide values must be aligned when they are read.
    has_dictionaries: bool
    has_wide_values: bool

    @classmethod
    def of(cls, header: bytes, name: str) -> _Head:
        """Parse the message; TornEntryError if it cannot be read."""
        with _torn_if_unreadable(name, "its schema"):
            schema = pa.ipc.read_schema(pa.py_buffer(importable(header, len(header))))
            metadata: dict[bytes, bytes] = schema.metadata or {}
            rest = {key: value for key, value in metadata.items() if key not in OWN_KEYS}
            schema = schema.with_metadata(rest) if rest else schema.remove_metadata()
            _check_names(schema)
        before, after, hashed = header, b"", None
        stored = metadata.get(CHECKSUM)
        if stored is not None:
            before, _, after = header.partition(stored)
            hashed = xxhash.xxh64(b"".join((before, PLACEHOLDER, after)))
        return cls(
            before,
            after,
            hashed,
            schema,
            metadata,
            has_dictionaries(schema),
            has_wide_values(schema),
        )

    def fits(self, header: bytes) -> bool:
        """Return whether another entry has this message, apart from the checksum."""
        checksum = 0 if self.hashed is None else len(PLACEHOLDER)
        return (
            len(header) == len(self.before) + checksum + len(self.after)
            and header.startswith(self.before)
            and header.endswith(self.after)
        )

    def verify(self, entry: memoryview, name: str) -> None:
        """Raise TornEntryError unless an entry with this message matches its checksum."""
        if self.hashed is None:
            return
        start = len(self.before)
        end = start + len(PLACEHOLDER)
        digest = self.hashed.copy()
        digest.update(entry[end + len(self.after) :])
        if digest.hexdigest().encode() != entry[start:end]:
            raise _torn(name, "its bytes do not match its checksum")

    def read(self, buffer: pa.Buffer, places: Sequence[int]) -> tuple[list[pa.RecordBatch], int]:
        """Return the batches of an entry, and the position after the last one.

        ``places`` are where its messages behind the schema start, and where the last one ends.
        """
        if not (self.has_dictionaries or self.has_wide_values):
            return [
                pa.ipc.read_record_batch(buffer[start:end], self.schema)
                for start, end in pairwise(places)
            ], places[-1]
        source = pa.BufferReader(pa.py_buffer(importable(memoryview(buffer).cast("B"), places[0])))
        options = ALIGNED if self.has_wide_values else None
        with pa.ipc.open_stream(source, options=options) as reader:
            batches, end = _read_batches(reader, source)
        metadata = self.schema.metadata
        return [batch.replace_schema_metadata(metadata) for batch in batches], end


# The last head, and its entry without rows: the entries of a log have the same one, one after
# another. Threads replace the pair as a whole.
_last_head: tuple[_Head, WalEntry] | None = None


@dataclass(frozen=True, slots=True)
class EntryHead:
    """Metadata from the first message of an entry, without its rows."""

    writer_epoch: int
    is_sentinel: bool
    writer_id: str | None  # as in :class:`WalEntry`
    applied: AppliedSteps  # as in :class:`WalEntry`
    # Folder of a generation with large blobs of the entry, as Lance's own writer stores them.
    blob_folder: str | None = None


def decode_head(data: bytes, *, name: str) -> EntryHead | int:
    """Decode the first message of an entry, without verifying its checksum.

    ``data`` is the beginning of the object. If it is too short, the number of bytes that are needed
    is returned. Raises TornEntryError if the message is empty or unreadable, and CorruptDataError
    if its applied steps are invalid.
    """
    if len(data) < PREFIX or data[:4] != CONTINUATION:
        raise _torn(name, "it does not start as an Arrow stream")
    size = PREFIX + int.from_bytes(data[4:PREFIX], "little")
    if size > len(data):
        return size
    with _torn_if_unreadable(name, "its schema"):
        schema = pa.ipc.read_schema(pa.py_buffer(importable(data[:size], size)))
    metadata: dict[bytes, bytes] = schema.metadata or {}
    return EntryHead(
        writer_epoch=_metadata_number(metadata, EPOCH, name) or 0,
        is_sentinel=metadata.get(SENTINEL) == b"true",
        writer_id=_metadata_text(metadata, WRITER_ID, name),
        applied=_applied(metadata, name),
        blob_folder=blob_folder(metadata),
    )


def _schema_message_size(view: memoryview, name: str) -> int:
    if len(view) < PREFIX + len(END_OF_STREAM) or view[:4] != CONTINUATION:
        raise _torn(name, "it does not start as an Arrow stream")
    size = PREFIX + int.from_bytes(view[4:PREFIX], "little")
    if size > len(view) - len(END_OF_STREAM):
        raise _torn(name, "it ends within its schema")
    return size


@contextmanager
def _torn_if_unreadable(name: str, what: str, *, is_whole: bool = False) -> Iterator[None]:
    """Raise TornEntryError for any error of the block.

    Arrow raises its own errors, and those of the readers of extension types, which any library may
    have registered. A MemoryError says nothing about the bytes and passes. If the bytes of an entry
    match its checksum, they are whole, and may have been acknowledged: then CorruptDataError is
    raised, since a torn entry at the tip counts as absent.
    """
    try:
        yield
    except (CorruptDataError, MemoryError):
        raise
    except Exception as error:
        if is_whole:
            raise CorruptDataError(
                f"WAL entry {name} matches its checksum, but {what} cannot be read: {error}. Keep "
                "the object, and read it with the versions of Python's libraries that wrote it"
            ) from error
        raise _torn(name, f"{what} cannot be read: {error}") from error


def _read_batches(
    reader: pa.RecordBatchStreamReader, source: pa.BufferReader
) -> tuple[list[pa.RecordBatch], int]:
    """Return all batches, and the position after the last one."""
    batches = []
    while True:
        end = source.tell()
        try:
            batches.append(reader.read_next_batch())
        except StopIteration:
            return batches, end


def _validate(batches: Sequence[pa.RecordBatch]) -> None:
    # An offset beyond its buffer must be detected here, before any code follows it. A checksum
    # detects changed bytes, not a writer with invalid ones.
    for batch in batches:
        batch.validate(full=True)


def _check_names(fields: Iterable[pa.Field]) -> None:
    """Raise UnicodeDecodeError if the name of a column, or of a part of one, is not UTF-8."""
    for field in fields:
        _ = field.name
        _check_names(children_of(field.type))


def _torn(name: str, reason: str) -> TornEntryError:
    return TornEntryError(
        f"WAL entry {name} is torn: {reason}. At the tip of the WAL it may be ignored; anywhere "
        "else keep the object and look at its bytes"
    )


def _metadata_number(metadata: Mapping[bytes, bytes], key: bytes, name: str) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if _DECIMAL.fullmatch(value) is None or int(value) > MAX_COUNTER:
        raise CorruptDataError(
            f"WAL entry {name} has {key.decode()} {value!r}, which is not a possible "
            "number; keep the object and look at who wrote it"
        )
    return int(value)


def _applied(metadata: Mapping[bytes, bytes], name: str) -> AppliedSteps:
    value = metadata.get(APPLIED)
    return {} if value is None else decode_applied(value, name=f"WAL entry {name}")


def _metadata_text(metadata: Mapping[bytes, bytes], key: bytes, name: str) -> str | None:
    value = metadata.get(key)
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError(
            f"WAL entry {name} has {key.decode()} {value!r}, which is not UTF-8; keep the "
            "object and look at who wrote it"
        ) from error


MAX_UNPACKED_BYTES: Final = 1 << 30
"""Maximum decompressed size of all buffers of an entry. No client compresses today."""

_DICTIONARY: Final = 2
_BATCH: Final = 3
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")


def check_claimed_sizes(view: memoryview, *, start: int, name: str) -> list[int]:
    """Refuse an entry that claims an impossible size; return the ends of its messages.

    ``start`` is the position of the first message after the schema. Raises CorruptDataError if
    compressed buffers claim more than :data:`MAX_UNPACKED_BYTES`, or a batch claims more rows than
    it has bits: every row has a key. Raises ValueError if the messages cannot be parsed, or their
    buffers exceed the entry.
    """
    unpacked = 0
    at = start
    ends = []
    while view[at : at + 4] == CONTINUATION:
        (length,) = _U32.unpack_from(view, at + 4)
        body = at + PREFIX + length
        if not length:
            break
        try:
            size, claimed, rows = _claimed_sizes(view[at + PREFIX : body], view[body:])
        except struct.error as error:
            raise ValueError(f"a message at byte {at} cannot be followed: {error}") from error
        unpacked += claimed
        if unpacked > MAX_UNPACKED_BYTES:
            raise _refused(name, f"compressed data become {unpacked} bytes or more")
        if rows > 8 * (claimed or size):
            raise _refused(name, f"a batch has {rows} rows")
        at = body + size
        ends.append(at)
    return ends


def _claimed_sizes(metadata: memoryview, body: memoryview) -> tuple[int, int, int]:
    """Return the length of a message's body, the decompressed size of its buffers, and its rows.

    The decompressed size is 0 if the buffers are not compressed.
    """
    message = _FlatTable(metadata, _U32.unpack_from(metadata)[0])
    size = message.number(3, _I64)
    if not 0 <= size <= len(body):
        raise struct.error(f"its body has {size} bytes, and {len(body)} are there")
    kind = message.number(1, struct.Struct("<B"))
    if kind not in (_DICTIONARY, _BATCH):
        return size, 0, 0
    batch = message.table(2)
    if kind == _DICTIONARY:
        batch = batch.table(1)
    offsets, lengths = batch.buffers(2)
    if not batch.has(3):
        if sum(lengths) > size:
            raise struct.error("its buffers have more bytes than its body")
        return size, 0, batch.number(0, _I64)
    claimed = 0
    for offset, length in zip(offsets, lengths, strict=True):
        if length:
            # Each buffer begins with its decompressed length, or -1 if it is not compressed.
            (decompressed,) = _I64.unpack_from(body, offset)
            claimed += max(decompressed, length)
    return size, claimed, batch.number(0, _I64)


class _FlatTable:
    """Reader of a flatbuffer table. An absent number is 0.

    Raises struct.error if an offset leads outside of the buffer.
    """

    __slots__ = ("_at", "_buffer", "_offsets")

    def __init__(self, buffer: memoryview, at: int) -> None:
        self._buffer = buffer
        self._at = at
        fields = at - _I32.unpack_from(buffer, at)[0]
        if not 0 <= fields < len(buffer):
            raise struct.error("the fields of a table are not there")
        (size,) = _U16.unpack_from(buffer, fields)
        self._offsets = struct.unpack_from(f"<{size // 2 - 2}H", buffer, fields + 4)

    def has(self, field: int) -> bool:
        """Return whether a field is present."""
        return self._position(field) != 0

    def number(self, field: int, kind: struct.Struct) -> int:
        """Return the number in a field."""
        at = self._position(field)
        return int(kind.unpack_from(self._buffer, at)[0]) if at else 0

    def table(self, field: int) -> _FlatTable:
        """Return the table in a field."""
        return _FlatTable(self._buffer, self._target(field))

    def buffers(self, field: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the offsets and lengths of a list of buffers."""
        if not self.has(field):
            return (), ()
        at = self._target(field)
        (count,) = _U32.unpack_from(self._buffer, at)
        if at + 4 + 16 * count > len(self._buffer):
            raise struct.error("a list of buffers is not there")
        numbers = struct.unpack_from(f"<{2 * count}q", self._buffer, at + 4)
        if count and min(numbers) < 0:
            raise struct.error("a buffer has a negative place or length")
        return numbers[::2], numbers[1::2]

    def _position(self, field: int) -> int:
        offset = self._offsets[field] if field < len(self._offsets) else 0
        return self._at + int(offset) if offset else 0

    def _target(self, field: int) -> int:
        at = self._position(field)
        if not at:
            raise struct.error("a table lacks what it must have")
        return at + int(_U32.unpack_from(self._buffer, at)[0])


def _refused(name: str, claim: str) -> CorruptDataError:
    return CorruptDataError(
        f"WAL entry {name} claims that {claim}, and was not read; keep the object and find out "
        "who wrote it"
    )
