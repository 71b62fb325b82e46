"""Find rows whose key is among many keys: a few hundred thousand keys among millions of rows.

Each key marks a slot of a table by a cheap hash. Rows whose slot has no mark are ruled out. For the
rows that are left, some of a hundred, smaller tables tell the key that has the same hash, and the
values are compared. pyarrow's ``index_in`` alone hashes all keys again for each piece of the rows,
and takes several times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
_MIN_DISTINCT = 0.5


def match_keys(keys: pa.Array, pieces: Iterable[tuple[pa.Array, Ids]]) -> tuple[Ids, Positions]:
    """Return the ids of the rows that have one of the keys, and the position of the key of each.

    ``keys`` are distinct; each piece has the keys of some rows, of the same type, and their ids.
    The results have the order of the pieces.
    """
    find = KeyTable.of(keys).find if len(keys) >= _MIN_KEYS else _Compared(keys).find
    found, positions = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for values, ids in pieces:
        rows, at = find(values)
        found.append(ids[rows])
        positions.append(at)
    return np.concatenate(found), np.concatenate(positions)


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
class KeyTable:
    """Many distinct keys by their hashes."""

    keys: pa.Array
    hash: Callable[[pa.Array], Hashes]
    hashes: Hashes  # of the keys
    marked: npt.NDArray[np.bool_]  # by the upper bits of a hash
    # Each has the position of a key by other bits of its hash. Keys that have the slot of another
    # one are in the next; those that are in none are compared one by one.
    rounds: tuple[npt.NDArray[np.int32], ...]
    others: Positions

    @classmethod
    def of(cls, keys: pa.Array) -> Self:
        """Make the tables of some keys."""
        bits = min(len(keys).bit_length() + _SLOT_BITS, _MAX_BITS)
        for hash_values in (_hash_ends, _hash_whole):
            hashes = hash_values(keys)
            marked = np.zeros(1 << bits, np.bool_)
            marked[_slots(hashes, marked)] = True
            if np.count_nonzero(marked) >= len(keys) * _MIN_DISTINCT:
                break
        rounds = []
        left = np.arange(len(keys))
        for factor in _ROUNDS:
            places = np.zeros(2 << len(left).bit_length(), np.int32)
            slots = _slots(_mix(hashes[left], factor), places)
            places[slots] = left
            rounds.append(places)
            left = left[places[slots] != left]
        return cls(keys, hash_values, hashes, marked, tuple(rounds), left)

    def possible(self, hashes: Hashes) -> Positions:
        """Return the rows whose hash may be that of a key."""
        return np.flatnonzero(self.marked[_slots(hashes, self.marked)])

    def find(self, values: pa.Array) -> tuple[Positions, Positions]:
        """Return the rows that have one of the keys, and the position of the key of each."""
        hashes = self.hash(values)
        left = self.possible(hashes)
        found, positions = [], []
        for places, factor in zip(self.rounds, _ROUNDS, strict=True):
            at = places[_slots(_mix(hashes[left], factor), places)]
            is_hit = self.hashes[at] == hashes[left]
            is_hit[is_hit] = self._are_equal(values, left[is_hit], at[is_hit])
            found.append(left[is_hit])
            positions.append(at[is_hit].astype(np.int64))
            left = left[~is_hit]
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


def _slots(hashes: Hashes, table: npt.NDArray[np.generic]) -> Positions:
    """Return the slots of a table of a power of two, by the upper bits of hashes."""
    shift = np.uint64(65 - len(table).bit_length())
    return (hashes >> shift).view(np.int64)


def _mix(hashes: Hashes, factor: np.uint64) -> Hashes:
    return (hashes ^ (hashes >> np.uint64(32))) * factor


def _hash_ends(values: pa.Array) -> Hashes:
    """Hash integers, or the first and last bytes of text and binary values, into the upper bits."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if pa.types.is_integer(values.type):
        return integers(values).astype(np.uint64) * _FIRST
    if not len(values):
        return np.empty(0, np.uint64)
    runs = byte_runs(values)
    heads, tails = _ends(runs)
    hashes = heads * _SECOND
    hashes += runs.counts.view(np.uint64)
    # The upper half has no trace of the first bits of what was multiplied last.
    hashes ^= hashes >> np.uint64(32)
    hashes += tails
    hashes *= _FIRST
    return hashes


def _ends(runs: Runs) -> tuple[Hashes, Hashes]:
    """Return the first and the last eight bytes of each run, or all if it is shorter."""
    width = int(runs.counts[0])
    if width >= _WORD and (runs.counts == width).all():
        shape, strides = (len(runs.counts),), (width,)
        return (
            np.ndarray(shape, "<u8", runs.data, 0, strides).copy(),
            np.ndarray(shape, "<u8", runs.data, width - _WORD, strides).copy(),
        )
    padded = np.concatenate([runs.data, np.zeros(_WORD, np.uint8)])
    # A word starts at every byte, so that values need not be aligned.
    words = np.ndarray((len(padded) - _WORD + 1,), "<u8", padded, strides=(1,))
    masks = _TAILS[np.minimum(runs.counts, _WORD)]
    tails = words[runs.starts + np.maximum(runs.counts - _WORD, 0)]
    return words[runs.starts] & masks, tails & masks


def _hash_whole(values: pa.Array) -> Hashes:
    return hash_rows([values])
