"""Find rows whose key is among many keys, and the newest row of each key, in millions of rows.

Each key marks a slot of a table: integers that lie close together by their value, others by a
cheap hash. Rows whose slot has no mark are ruled out. pyarrow compares the others, those of many
pieces at once: its ``index_in`` hashes all keys again with each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.lsm.key_hashes import hash_rows, hash_tails, signed
from memwal.util.arrays import Hashes, Mask, Positions

Ids = npt.NDArray[np.uint64]

# A byte for each of 16 to 32 slots a key: one row in 20 or fewer passes in vain. Larger tables do
# not stay in the processor's cache.
_SLOT_BITS = 4
_MAX_BITS = 26
# Slots for the number of a row have 4 bytes, and are fastest if there are 4 to 8 for each key.
_ROW_SLOT_BITS = 2
# Fewer keys are hashed in less time than the calls for a table of slots take.
_FEW_KEYS = 1_000
# Keys whose slots are computed at a time: they stay in the processor's cache, and to compute them
# twice takes less time than to keep them.
_BLOCK_KEYS = 1 << 15
# A hash that leaves less than this part of the keys a slot of their own is not used: the keys
# differ in bytes that it does not read.
_MIN_DISTINCT = 0.9
# Integers are marked by value if the slots of their range take no more bytes than this for each.
_MAX_BYTES = 32
# Rows that may have a key are compared so many at once, or as many as there are keys. If the keys
# are so many times as many, only those that the rows may have are compared.
_MOST_CANDIDATES = 1 << 20
_FEW_ROWS = 4


def match_keys(keys: pa.Array, pieces: Iterable[tuple[pa.Array, Ids]]) -> tuple[Ids, Positions]:
    """Return the ids of the rows that have one of the keys, and the position of the key of each.

    ``keys`` are distinct; each piece has the keys of some rows, of the same type, and their ids.
    The results have the order of the pieces.
    """
    found, positions = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for ids, at in _matches(keys, pieces):
        found.append(ids)
        positions.append(at)
    return np.concatenate(found), np.concatenate(positions)


def keys_among(keys: pa.Array, pieces: Iterable[pa.Array]) -> Mask:
    """Return the mask of the distinct ``keys`` that any of the pieces has.

    However many rows the pieces have, this takes memory for the keys and some pieces.
    """
    found = np.zeros(len(keys), np.bool_)
    for _, at in _matches(keys, ((values, np.zeros(len(values), np.uint64)) for values in pieces)):
        found[at] = True
    return found


def _matches(
    keys: pa.Array, pieces: Iterable[tuple[pa.Array, Ids]]
) -> Iterator[tuple[Ids, Positions]]:
    """Yield the ids of rows that have one of the keys, and the position of the key of each."""
    marks = KeyMarks.of(keys)
    most = max(_MOST_CANDIDATES, len(keys))
    waiting: list[tuple[pa.Array, Ids]] = []
    count = 0
    for values, ids in pieces:
        rows = marks.possible(values)
        waiting.append((values.take(pa.array(rows)), ids[rows]))
        count += len(rows)
        if count >= most:
            yield _compare(keys, waiting)
            waiting, count = [], 0
    if count:
        yield _compare(keys, waiting)


def _compare(keys: pa.Array, candidates: list[tuple[pa.Array, Ids]]) -> tuple[Ids, Positions]:
    values = pa.concat_arrays([values for values, _ in candidates])
    ids = np.concatenate([ids for _, ids in candidates])
    own = None
    if len(values) * _FEW_ROWS < len(keys):
        own = KeyMarks.of(values).possible(keys)
        keys = keys.take(pa.array(own))
    at = pc.index_in(values, value_set=keys)
    positions = at.drop_null().to_numpy().astype(np.int64)
    is_found = at.is_valid().to_numpy(zero_copy_only=False)
    return ids[is_found], positions if own is None else own[positions]


@dataclass(frozen=True, slots=True, eq=False)
class KeyMarks:
    """Marks of many keys, by which most rows with other keys are ruled out."""

    slots: Callable[[pa.Array], Positions]  # slot of each value
    marked: Mask  # by slot

    @classmethod
    def of(cls, keys: pa.Array) -> Self:
        """Mark some keys."""
        by_value = _slots_by_value(keys, slot_bytes=1)
        if by_value is not None:
            return cls._mark(keys, *by_value)
        bits = min(len(keys).bit_length() + _SLOT_BITS, _MAX_BITS)
        marks = cls._mark(keys, partial(_upper_bits, hash_tails, bits), 1 << bits)
        is_integer = pt.is_integer(keys.type)
        if is_integer or np.count_nonzero(marks.marked) >= len(keys) * _MIN_DISTINCT:
            return marks
        return cls._mark(keys, partial(_upper_bits, lambda v: hash_rows([v]), bits), 1 << bits)

    @classmethod
    def _mark(cls, keys: pa.Array, slots: Callable[[pa.Array], Positions], size: int) -> Self:
        marked = np.zeros(size, np.bool_)
        marked[slots(keys)] = True
        return cls(slots, marked)

    def possible(self, values: pa.Array) -> Positions:
        """Return the rows that may have a key."""
        return np.flatnonzero(self.marked[self.slots(values)])


def newest_row_positions(keys: pa.Array) -> Positions:
    """Return the positions of the last occurrence of each key, ascending.

    ``keys`` are as of :func:`mark_newest_rows`.
    """
    return np.flatnonzero(mark_newest_rows(keys))


def mark_newest_rows(keys: pa.Array) -> Mask:
    """Return for each row whether no later one has its key.

    ``keys`` is a column that :func:`memwal.region.rows.key_column` returns; all rows of a table
    without a key count.
    """
    if pt.is_null(keys.type):
        return np.ones(len(keys), np.bool_)
    if len(keys) < _FEW_KEYS:
        return _mark_last(keys)
    by_value = _slots_by_value(keys, slot_bytes=4)
    if by_value is not None:
        return _mark_by_value(keys, *by_value)
    slots, size = _slots_by_hash(keys)
    at = slots(keys)
    rows = np.arange(len(keys), dtype=np.int32)
    last = np.empty(size, np.int32)
    # Rows are assigned in order, so the last row of each slot stays.
    last[at] = rows
    last = last[at]
    is_newest: Mask = last == rows
    others = np.flatnonzero(~is_newest)
    # If the last row of a slot has another key than this row, no row of this row's key is the last.
    is_same = pc.equal(keys.take(pa.array(others)), keys.take(pa.array(last[others])))
    others = others[~is_same.to_numpy(zero_copy_only=False)]
    is_newest[others] = _mark_last(keys.take(pa.array(others)))
    return is_newest


def _mark_by_value(keys: pa.Array, slots: Callable[[pa.Array], Positions], size: int) -> Mask:
    """Mark the last occurrence of each key; each key has a slot of its own."""

    def blocks() -> Iterator[tuple[npt.NDArray[np.int32], Positions]]:
        for start in range(0, len(keys), _BLOCK_KEYS):
            at = slots(keys.slice(start, _BLOCK_KEYS))
            yield np.arange(start, start + len(at), dtype=np.int32), at

    # Marks of a byte take a fraction of the time of row numbers, and mostly no key is there twice.
    marked = np.zeros(size, np.bool_)
    for _, at in blocks():
        marked[at] = True
    if np.count_nonzero(marked) == len(keys):
        return np.ones(len(keys), np.bool_)
    last = np.empty(size, np.int32)
    for rows, at in blocks():
        # Rows are assigned in order, so the last row of each slot stays.
        last[at] = rows
    return np.concatenate([last[at] == rows for rows, at in blocks()])


def _mark_last(keys: pa.Array) -> Mask:
    encoded = keys.dictionary_encode()
    last = np.empty(len(encoded.dictionary), np.int64)
    last[encoded.indices.to_numpy(zero_copy_only=False)] = np.arange(len(keys))
    is_newest = np.zeros(len(keys), np.bool_)
    is_newest[last] = True
    return is_newest


_Slots = tuple[Callable[[pa.Array], Positions], int]
"""Function that tells the slot of each value, and the number of slots."""


def _slots_by_value(keys: pa.Array, *, slot_bytes: int) -> _Slots | None:
    """Return a slot for each integer; None unless they are integers that lie close together."""
    if not (pt.is_integer(keys.type) and len(keys)):
        return None
    numbers = signed(keys)
    low = numbers.min()
    size = int(numbers.max()) - int(low) + 1
    if size * slot_bytes > len(keys) * _MAX_BYTES:
        return None
    return partial(_distances, low, size), size + 1


def _slots_by_hash(keys: pa.Array) -> _Slots:
    bits = min(len(keys).bit_length() + _ROW_SLOT_BITS, _MAX_BITS)
    return partial(_upper_bits, hash_tails, bits), 1 << bits


def _distances(low: np.int64, size: int, values: pa.Array) -> Positions:
    """Return the distance of integers from the lowest key; ``size`` for all beyond the range."""
    # A key below the range is far above it as an unsigned number.
    return np.minimum((signed(values) - low).view(np.uint64), np.uint64(size)).view(np.int64)


def _upper_bits(
    hash_values: Callable[[pa.Array], Hashes], bits: int, values: pa.Array
) -> Positions:
    return (hash_values(values) >> np.uint64(64 - bits)).view(np.int64)
