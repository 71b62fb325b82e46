"""Bounds on the sizes that a WAL entry claims, checked before memory is reserved.

Arrow trusts the decompressed size that a compressed buffer states, and the number of rows that a
batch states. A few bytes could claim terabytes, or unpack to them. This module therefore reads the
metadata of the messages field by field (Arrow columnar format: Encapsulated message format, and
``Message.fbs`` for the numbers of the fields).
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from memwal.errors import CorruptDataError
from memwal.format.wal_layout import CONTINUATION, PREFIX

MAX_UNPACKED_BYTES: Final = 1 << 30
"""Maximum decompressed size of all buffers of an entry. No client compresses today."""

_DICTIONARY: Final = 2
_BATCH: Final = 3
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")


def check_claimed_sizes(view: memoryview, *, start: int, name: str) -> None:
    """Refuse an entry that claims an impossible size.

    ``start`` is the position of the first message after the schema. Raises CorruptDataError if
    compressed buffers claim more than :data:`MAX_UNPACKED_BYTES`, or a batch claims more rows than
    it has bits: every row has a key. Raises ValueError if the messages cannot be parsed, or their
    buffers exceed the entry.
    """
    unpacked = 0
    at = start
    while view[at : at + 4] == CONTINUATION:
        (length,) = _U32.unpack_from(view, at + 4)
        body = at + PREFIX + length
        if not length:
            return
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
        if int(lengths.sum()) > size:
            raise struct.error("its buffers have more bytes than its body")
        return size, 0, batch.number(0, _I64)
    claimed = 0
    for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        if length:
            # Each buffer begins with its decompressed length, or -1 if it is not compressed.
            (decompressed,) = _I64.unpack_from(body, offset)
            claimed += max(decompressed, length)
    return size, claimed, batch.number(0, _I64)


class _FlatTable:
    """Reader of a flatbuffer table. An absent number is 0.

    Raises struct.error if an offset leads outside of the buffer.
    """

    __slots__ = ("_at", "_buffer", "_fields", "_size")

    def __init__(self, buffer: memoryview, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._fields = at - _I32.unpack_from(buffer, at)[0]
        if not 0 <= self._fields < len(buffer):
            raise struct.error("the fields of a table are not there")
        (self._size,) = _U16.unpack_from(buffer, self._fields)

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

    def buffers(self, field: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the offsets and lengths of a list of buffers."""
        if not self.has(field):
            none = np.empty(0, np.int64)
            return none, none
        at = self._target(field)
        (count,) = _U32.unpack_from(self._buffer, at)
        if at + 4 + 16 * count > len(self._buffer):
            raise struct.error("a list of buffers is not there")
        pairs = np.frombuffer(self._buffer, "<i8", 2 * count, at + 4).reshape(-1, 2)
        if (pairs < 0).any():
            raise struct.error("a buffer has a negative place or length")
        return pairs[:, 0], pairs[:, 1]

    def _position(self, field: int) -> int:
        slot = 4 + 2 * field
        if slot + 2 > self._size:
            return 0
        (offset,) = _U16.unpack_from(self._buffer, self._fields + slot)
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
