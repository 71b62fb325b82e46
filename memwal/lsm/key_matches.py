"""Find rows whose key is among many keys: a few hundred thousand keys among millions of rows.

Each key marks a slot of a table: integers that lie close together by their value, others by a
cheap hash. Rows whose slot has no mark are ruled out. For the rows that are left, smaller tables
tell the key that has the same hash, and the values are compared. pyarrow's ``index_in`` alone
hashes all keys again for each piece of the rows, and takes several times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.lsm.key_hashes import ROUNDS, hash_ends, hash_tails, hash_whole, mixed, signed, slots
from memwal.util.arrays import Hashes, Mask, Positions

Ids = npt.NDArray[np.uint64]

# For the second look at a hash.
_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)
# Fewer keys are compared as quickly by pyarrow.
_MIN_KEYS = 1 << 12
# A byte for each of 8 to 16 slots a key: one row in 10 or fewer passes in vain, and one in 100 a
# second time. Larger tables do not stay in the processor's cache.
_SLOT_BITS = 3
_MAX_BITS = 26
_MAX_SECOND_BITS = 24
# A hash that leaves less than this part of the keys a slot of their own is not used: the keys
# differ in bytes that it does not read.
_MIN_DISTINCT = 0.9
# Rows that may have a key are looked up so many at once. If the keys are so many times as many,
# only keys that the rows may have get a place.
_MOST_CANDIDATES = 1 << 20
_FEW_ROWS = 4
# Integers are marked by value if their range is not larger than so many slots for each.
_MAX_SLOTS = 32


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
    """Return which of the keys, which are distinct, any of the pieces has.

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
    if len(keys) < _MIN_KEYS:
        compared = _Compared(keys)
        for values, ids in pieces:
            rows, at = compared.find(values)
            yield ids[rows], at
        return
    table = KeyTable.of(keys)
    for values, ids, hashes in _candidates(table, pieces):
        rows, at = table.find(values, hashes)
        yield ids[rows], at


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
    marked: Mask  # the last one is that of all other integers

    @classmethod
    def of(cls, keys: pa.Array) -> Self | None:
        """Mark keys; None if they are not integers that lie close together."""
        if not pa.types.is_integer(keys.type) or not len(keys):
            return None
        numbers = signed(keys)
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
        distances = (signed(values) - self.low).view(np.uint64)
        last = np.uint64(len(self.marked) - 1)
        return np.flatnonzero(self.marked[np.minimum(distances, last).view(np.int64)])


@dataclass(frozen=True, slots=True, eq=False)
class _Slots:
    """Marks of hashes by their upper bits; hashes that pass are compared by others again."""

    marked: Mask
    marked_again: Mask

    @classmethod
    def of(cls, hashes: Hashes) -> Self:
        """Mark hashes."""
        bits = min(len(hashes).bit_length() + _SLOT_BITS, _MAX_BITS)
        marked = np.zeros(1 << bits, np.bool_)
        marked[slots(hashes, marked)] = True
        marked_again = np.zeros(1 << min(bits, _MAX_SECOND_BITS), np.bool_)
        marked_again[slots(mixed(hashes, _SECOND), marked_again)] = True
        return cls(marked, marked_again)

    def possible(self, hashes: Hashes) -> Positions:
        """Return the hashes that may be that of a key."""
        rows = np.flatnonzero(self.marked[slots(hashes, self.marked)])
        again = slots(mixed(hashes[rows], _SECOND), self.marked_again)
        return rows[self.marked_again[again]]


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
        for factor in ROUNDS:
            places = np.zeros(2 << len(left).bit_length(), np.int32)
            at = slots(mixed(hashes[left], factor), places)
            places[at] = left
            rounds.append(places)
            left = left[places[at] != left]
        return cls(keys, hashes, tuple(rounds), left)

    def find(self, values: pa.Array, hashes: Hashes) -> tuple[Positions, Positions]:
        """Return the rows that have one of the keys, and the position of the key of each."""
        left = np.arange(len(values))
        found, positions = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for places, factor in zip(self.rounds if len(self.keys) else (), ROUNDS, strict=False):
            at = places[slots(mixed(hashes, factor), places)]
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

    def _are_equal(self, values: pa.Array, rows: Positions, keys: npt.NDArray[np.int32]) -> Mask:
        """Return for rows and keys with the same hash whether they have the same value."""
        if pa.types.is_integer(values.type) and not values.null_count:
            # Different integers have different hashes.
            return np.ones(len(rows), np.bool_)
        same = pc.equal(values.take(pa.array(rows)), self.keys.take(pa.array(keys)))
        mask: Mask = pc.fill_null(same, False).to_numpy(zero_copy_only=False)
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
            return cls(keys, hash_tails, hash_tails(keys), by_value)
        for hash_values in (hash_tails, hash_ends, hash_whole):
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
