"""Find rows whose key is among many keys: a few hundred thousand keys among millions of rows.

Each key marks a slot of a table: integers that lie close together by their value, others by a
cheap hash. Rows whose slot has no mark are ruled out. For the rows that are left, some of a
hundred, smaller tables tell the key that has the same hash, and the values are compared. pyarrow's
``index_in`` alone hashes all keys again for each piece of the rows, and takes several times as
long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.format.keys import Runs, byte_runs, integers
from memwal.lsm.memtable.hashing import Hashes, hash_rows

Ids = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]

_WORD = 8
# Mask of a word by the number of its bytes that belong to the value.
_TAILS = np.array([(1 << (8 * count)) - 1 for count in range(_WORD + 1)], np.uint64)
# Odd numbers with bits in no order.
_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)
_ROUNDS = tuple(
    np.uint64(number) for number in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)
)
# Fewer keys are compared as quickly by pyarrow.
_MIN_KEYS = 1 << 12
# A byte for each of 16 to 32 slots a key: one row in 20 or fewer is compared in vain. Larger tables
# do not stay in the processor's cache.
_SLOT_BITS = 4
_MAX_BITS = 26
# A hash that leaves less than this part of the keys a slot of their own is not used: the keys
# differ in bytes that it does not read.
_MIN_DISTINCT = 0.9
# Rows that may have a key are looked up so many at once. If the keys are so many times as many,
# only keys that the rows may have get a place.
_MOST_CANDIDATES = 1 << 20
_FEW_ROWS = 4
# Integers are marked by value if their range is not larger than so many slots for each.
_MAX_SLOTS = 2 << _SLOT_BITS


def match_keys(keys: pa.Array, pieces: Iterable[tuple[pa.Array, Ids]]) -> tuple[Ids, Positions]:
    """Return the ids of the rows that have one of the keys, and the position of the key of each.

    ``keys`` are distinct; each piece has the keys of some rows, of the same type, and their ids.
    The results have the order of the pieces.
    """
    found, positions = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    if len(keys) < _MIN_KEYS:
        compared = _Compared(keys)
        for values, ids in pieces:
            rows, at = compared.find(values)
            found.append(ids[rows])
            positions.append(at)
    else:
        table = KeyTable.of(keys)
        for values, ids, hashes in _candidates(table, pieces):
            rows, at = table.find(values, hashes)
            found.append(ids[rows])
            positions.append(at)
    return np.concatenate(found), np.concatenate(positions)


def _candidates(
    table: KeyTable, pieces: Iterable[tuple[pa.Array, Ids]]
) -> Iterator[tuple[pa.Array, Ids, Hashes]]:
    """Yield the rows of many pieces together that may have a key: values, ids and hashes."""
    waiting: list[tuple[pa.Array, Ids, Hashes]] = []
    count = 0
    for values, ids in pieces:
        rows, hashes = table.possible(values)
        waiting.append((values.take(pa.array(rows)), ids[rows], hashes))
        count += len(rows)
        if count >= _MOST_CANDIDATES:
            yield _joined(waiting)
            waiting, count = [], 0
    if count:
        yield _joined(waiting)


def _joined(parts: list[tuple[pa.Array, Ids, Hashes]]) -> tuple[pa.Array, Ids, Hashes]:
    values, ids, hashes = zip(*parts, strict=True)
    return pa.concat_arrays(values), np.concatenate(ids), np.concatenate(hashes)


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """Few keys, compared by pyarrow."""

    keys: pa.Array

    def find(self, values: pa.Array) -> tuple[Positions, Positions]:
        """Return the rows that have one of the keys, and the position of the key of each."""
        at = pc.index_in(values, value_set=self.keys)
        rows = np.flatnonzero(at.is_valid().to_numpy(zero_copy_only=False))
        return rows, at.drop_null().to_numpy().astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Range:
    """Marks of integers that lie close together, by their value."""

    low: np.int64
    marked: Marks  # the last one is that of all other integers

    @classmethod
    def of(cls, keys: pa.Array) -> Self | None:
        """Mark keys; None if they are not integers that lie close together."""
        if not pa.types.is_integer(keys.type) or not len(keys):
            return None
        numbers = _signed(keys)
        low, high = numbers.min(), numbers.max()
        size = int(high) - int(low) + 1
        if size > len(keys) * _MAX_SLOTS:
            return None
        marked = np.zeros(size + 1, np.bool_)
        marked[numbers - low] = True
        return cls(low, marked)

    def possible(self, values: pa.Array) -> Positions:
        """Return the rows that have a key."""
        # What is below the range is far above it as an unsigned number.
        distances = (_signed(values) - self.low).view(np.uint64)
        last = np.uint64(len(self.marked) - 1)
        return np.flatnonzero(self.marked[np.minimum(distances, last).view(np.int64)])


@dataclass(frozen=True, slots=True, eq=False)
class _Slots:
    """Marks of hashes, by their upper bits."""

    marked: Marks

    @classmethod
    def of(cls, hashes: Hashes) -> Self:
        """Mark hashes."""
        bits = min(len(hashes).bit_length() + _SLOT_BITS, _MAX_BITS)
        marked = np.zeros(1 << bits, np.bool_)
        marked[_slots(hashes, marked)] = True
        return cls(marked)

    def possible(self, hashes: Hashes) -> Positions:
        """Return the hashes that may be that of a key."""
        return np.flatnonzero(self.marked[_slots(hashes, self.marked)])


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Positions of keys by their hashes."""

    keys: pa.Array
    hashes: Hashes  # of the keys
    # Each has the position of a key by other bits of its hash. Keys that have the slot of another
    # one are in the next; those that are in none are compared one by one.
    rounds: tuple[npt.NDArray[np.int32], ...]
    others: Positions

    @classmethod
    def of(cls, keys: pa.Array, hashes: Hashes) -> Self:
        """Give each key a place."""
        rounds = []
        left = np.arange(len(keys))
        for factor in _ROUNDS:
            places = np.zeros(2 << len(left).bit_length(), np.int32)
            at = _slots(_mix(hashes[left], factor), places)
            places[at] = left
            rounds.append(places)
            left = left[places[at] != left]
        return cls(keys, hashes, tuple(rounds), left)

    def find(self, values: pa.Array, hashes: Hashes) -> tuple[Positions, Positions]:
        """Return the rows that have one of the keys, and the position of the key of each."""
        left = np.arange(len(values))
        found, positions = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for places, factor in zip(self.rounds if len(self.keys) else (), _ROUNDS, strict=False):
            at = places[_slots(_mix(hashes, factor), places)]
            is_hit = self.hashes[at] == hashes
            is_hit[is_hit] = self._are_equal(values, left[is_hit], at[is_hit])
            found.append(left[is_hit])
            positions.append(at[is_hit].astype(np.int64))
            left, hashes = left[~is_hit], hashes[~is_hit]
        if len(self.others):
            compared = _Compared(self.keys.take(pa.array(self.others)))
            own, key = compared.find(values.take(pa.array(left)))
            found.append(left[own])
            positions.append(self.others[key])
        rows = np.concatenate(found)
        order = np.argsort(rows, kind="stable")
        return rows[order], np.concatenate(positions)[order]

    def _are_equal(
        self, values: pa.Array, rows: Positions, keys: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.bool_]:
        """Return for rows and keys with the same hash whether they have the same value."""
        if pa.types.is_integer(values.type) and not values.null_count:
            # Different integers have different hashes.
            return np.ones(len(rows), np.bool_)
        same = pc.equal(values.take(pa.array(rows)), self.keys.take(pa.array(keys)))
        mask: npt.NDArray[np.bool_] = pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return mask


@dataclass(slots=True, eq=False)
class KeyTable:
    """Many distinct keys: which rows may have one, and which have."""

    keys: pa.Array
    hash: Callable[[pa.Array], Hashes]
    hashes: Hashes  # of the keys
    marks: _Range | _Slots
    places: _Places | None = None  # of all keys, when enough rows were asked for

    @classmethod
    def of(cls, keys: pa.Array) -> Self:
        """Mark some keys."""
        if (by_value := _Range.of(keys)) is not None:
            return cls(keys, _hash_tails, _hash_tails(keys), by_value)
        for hash_values in (_hash_tails, _hash_ends, _hash_whole):
            hashes = hash_values(keys)
            slots = _Slots.of(hashes)
            if np.count_nonzero(slots.marked) >= len(keys) * _MIN_DISTINCT:
                break
        return cls(keys, hash_values, hashes, slots)

    def possible(self, values: pa.Array) -> tuple[Positions, Hashes]:
        """Return the rows that may have a key, and the hashes of their values."""
        if isinstance(self.marks, _Range):
            rows = self.marks.possible(values)
            return rows, self.hash(values.take(pa.array(rows)))
        hashes = self.hash(values)
        rows = self.marks.possible(hashes)
        return rows, hashes[rows]

    def find(self, values: pa.Array, hashes: Hashes) -> tuple[Positions, Positions]:
        """Return the rows that have one of the keys, and the position of the key of each."""
        if self.places is None and len(values) * _FEW_ROWS < len(self.keys):
            # To mark the rows, and look for them among the keys, is less than a place for each key.
            own = _Slots.of(hashes).possible(self.hashes)
            places = _Places.of(self.keys.take(pa.array(own)), self.hashes[own])
            rows, at = places.find(values, hashes)
            return rows, own[at]
        if self.places is None:
            self.places = _Places.of(self.keys, self.hashes)
        return self.places.find(values, hashes)


def _slots(hashes: Hashes, table: npt.NDArray[np.generic]) -> Positions:
    """Return the slots of a table of a power of two, by the upper bits of hashes."""
    shift = np.uint64(65 - len(table).bit_length())
    return (hashes >> shift).view(np.int64)


def _mix(hashes: Hashes, factor: np.uint64) -> Hashes:
    return (hashes ^ (hashes >> np.uint64(32))) * factor


def _signed(values: pa.Array) -> npt.NDArray[np.int64]:
    numbers = integers(values)
    if numbers.dtype == np.uint64:
        return numbers.view(np.int64)
    return numbers.astype(np.int64, copy=False)


def _hash_tails(values: pa.Array) -> Hashes:
    """Hash integers, or the last bytes of text and binary values, into the upper bits."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if pa.types.is_integer(values.type):
        return _signed(values).view(np.uint64) * _FIRST
    if not len(values):
        return np.empty(0, np.uint64)
    runs = byte_runs(values)
    hashes = _tails(runs)
    hashes += runs.counts.view(np.uint64)
    hashes *= _FIRST
    return hashes


def _hash_ends(values: pa.Array) -> Hashes:
    """Hash the first and last bytes of text and binary values into the upper bits."""
    if not len(values):
        return np.empty(0, np.uint64)
    runs = byte_runs(values)
    hashes = _heads(runs) * _SECOND
    hashes += runs.counts.view(np.uint64)
    # The upper half has no trace of the first bits of what was multiplied last.
    hashes ^= hashes >> np.uint64(32)
    hashes += _tails(runs)
    hashes *= _FIRST
    return hashes


def _heads(runs: Runs) -> Hashes:
    """Return the first eight bytes of each run, or all if it is shorter."""
    width = _width(runs)
    if width is not None:
        return np.ndarray((len(runs.counts),), "<u8", runs.data, 0, (width,)).copy()
    return _words(runs)[runs.starts] & _TAILS[np.minimum(runs.counts, _WORD)]


def _tails(runs: Runs) -> Hashes:
    """Return the last eight bytes of each run, or all if it is shorter."""
    width = _width(runs)
    if width is not None:
        shape, strides = (len(runs.counts),), (width,)
        return np.ndarray(shape, "<u8", runs.data, width - _WORD, strides).copy()
    words = _words(runs)[runs.starts + np.maximum(runs.counts - _WORD, 0)]
    return words & _TAILS[np.minimum(runs.counts, _WORD)]


def _width(runs: Runs) -> int | None:
    """Return the number of bytes of each run, if it is the same, and enough for a word."""
    width = int(runs.counts[0])
    return width if width >= _WORD and (runs.counts == width).all() else None


def _words(runs: Runs) -> Hashes:
    """Return the word that starts at each byte: values need not be aligned."""
    padded = np.concatenate([runs.data, np.zeros(_WORD, np.uint8)])
    return np.ndarray((len(padded) - _WORD + 1,), "<u8", padded, strides=(1,))


def _hash_whole(values: pa.Array) -> Hashes:
    return hash_rows([values])
