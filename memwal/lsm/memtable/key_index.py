"""Key index of a MemTable: finds the newest row of each key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import InvalidInputError
from memwal.format.values import single_array
from memwal.lsm.key_hashes import hash_rows
from memwal.lsm.memtable.rows import Rows, RowView
from memwal.util.arrays import Hashes, Mask

# An entry consists of the upper bits of a key's hash and, below them, the number of its row. The
# newest row of a key among the first n rows is therefore the entry before (hash, n), which one
# binary search finds.
_ROW_BITS = 28
_ROW_MASK = np.uint64((1 << _ROW_BITS) - 1)
_HASH_MASK = ~_ROW_MASK
# Runs are joined until each is 8 times longer than the next: few runs to search, few copies.
_RUN_RATIO = 8
_MIN_RUN = 64

_SameKey = Callable[[Rows, Rows], Mask]


@dataclass(frozen=True, slots=True, eq=False)
class _SortedRuns:
    """Sorted runs of entries over the first ``rows`` rows; a later run has newer rows."""

    runs: tuple[Hashes, ...] = ()
    rows: int = 0


class KeyIndex:
    """Index of rows by key: finds the newest row of a key.

    Hashes only narrow the search: every hit is compared with the key itself. Entries are never
    removed, so an older view is answered from its own rows while newer ones are being indexed.

    Any thread may call any method at any time: indexing takes a lock of its own, reading none.
    Every method first indexes the rows of the view that are not indexed yet. If the writer calls
    :meth:`catch_up` after each append, readers find nothing to index.

    Memory: 8 bytes per row. The key columns are integers, bool, text or binary, without nulls. In a
    table without a key nothing is indexed.
    """

    def __init__(self, primary_key: Sequence[str]) -> None:
        self.primary_key = tuple(primary_key)
        self._lock = threading.Lock()
        self._state = _SortedRuns()

    @property
    def rows(self) -> int:
        """Number of indexed rows."""
        return self._state.rows

    @property
    def nbytes(self) -> int:
        """Memory of the index, in bytes."""
        return sum(run.nbytes for run in self._state.runs)

    def catch_up(self, view: RowView) -> None:
        """Index the rows of a view that are not indexed yet.

        Raises InvalidInputError if a key is null, or there are more than 268 million rows.
        """
        if not self.primary_key or self._state.rows >= view.rows:
            return
        with self._lock:
            state = self._state
            if state.rows < view.rows:
                self._state = self._extended(state, view)

    def lookup(self, keys: Sequence[pa.Array], view: RowView) -> Rows:
        """Return the newest row of each key, tombstones included; -1 if no row has the key.

        ``keys`` has one array per key column. Raises InvalidInputError if a key is null or of
        another type than the column, or a column is missing.
        """
        self._check(keys, view)
        self.catch_up(view)
        hashes = hash_rows(keys) & _HASH_MASK
        # In this order, searches one after another touch neighbouring entries of a run.
        order = np.argsort(hashes)

        def same_key(positions: Rows, rows: Rows) -> Mask:
            searched = [key.take(pa.array(order[positions])) for key in keys]
            return _equal(searched, self._keys_of(view, rows))

        bounds = hashes[order] | np.uint64(view.rows)
        newest = np.empty(len(order), np.int64)
        newest[order] = _find_newest(self._state.runs, bounds, same_key)
        return newest

    def _extended(self, state: _SortedRuns, view: RowView) -> _SortedRuns:
        if view.rows > int(_ROW_MASK):
            raise InvalidInputError(
                f"a MemTable has {view.rows} rows and can index {int(_ROW_MASK)}; flush it earlier"
            )
        keys = [single_array(view.column(name, start=state.rows)) for name in self.primary_key]
        self._check(keys, view)
        numbers = np.arange(state.rows, view.rows, dtype=np.uint64)
        entries = np.sort((hash_rows(keys) & _HASH_MASK) | numbers)
        return _SortedRuns(_join_runs([*state.runs, entries]), view.rows)

    def _keys_of(self, view: RowView, rows: Rows) -> list[pa.Array]:
        return [view.take_column(name, rows) for name in self.primary_key]

    def _check(self, keys: Sequence[pa.Array], view: RowView) -> None:
        if len(keys) != len(self.primary_key):
            raise InvalidInputError(
                f"{len(keys)} key columns were passed; the key has {', '.join(self.primary_key)}"
            )
        for name, key in zip(self.primary_key, keys, strict=True):
            expected = view.schema.field(name).type
            if key.type != expected:
                raise InvalidInputError(
                    f"keys of column {name} are {key.type}, the table has {expected}; cast them"
                )
            if key.null_count:
                raise InvalidInputError(
                    f"key column {name} has {key.null_count} null values; keys are never null"
                )


def _find_newest(runs: Sequence[Hashes], bounds: Hashes, same_key: _SameKey) -> Rows:
    """Return for each bound the newest row below it that has the same key, or -1."""
    newest = np.full(len(bounds), -1, np.int64)
    pending = np.arange(len(bounds))
    for run in reversed(runs):
        at = run.searchsorted(bounds[pending]) - 1
        hit = _same_hash(run, at, bounds[pending])
        if hit.any():
            _confirm(run, at[hit], pending[hit], bounds=bounds, same_key=same_key, newest=newest)
            pending = pending[newest[pending] < 0]
            if not len(pending):
                break
    return newest


def _same_hash(run: Hashes, at: Rows, bounds: Hashes) -> Mask:
    # -1 addresses the last entry, which may have the same hash, but is not below the bound.
    same: Mask = ((run[at] ^ bounds) <= _ROW_MASK) & (at >= 0)
    return same


def _confirm(
    run: Hashes, at: Rows, positions: Rows, *, bounds: Hashes, same_key: _SameKey, newest: Rows
) -> None:
    """Record the rows that have the searched keys, and not only their hashes, in ``newest``."""
    while len(positions):
        rows = (run[at] & _ROW_MASK).astype(np.int64)
        same = same_key(positions, rows)
        newest[positions[same]] = rows[same]
        # Another key has the same hash: a row of the searched key may be before it.
        positions, at = positions[~same], at[~same] - 1
        hit = _same_hash(run, at, bounds[positions])
        positions, at = positions[hit], at[hit]


def _join_runs(runs: list[Hashes]) -> tuple[Hashes, ...]:
    first, size = len(runs) - 1, len(runs[-1])
    while first and len(runs[first - 1]) < max(_MIN_RUN, _RUN_RATIO * size):
        first -= 1
        size += len(runs[first])
    if first < len(runs) - 1:
        # The stable sort is one that merges stretches that are sorted already.
        runs[first:] = [np.sort(np.concatenate(runs[first:]), kind="stable")]
    return tuple(runs)


def _equal(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
    """Return for each row whether the columns on both sides are equal."""
    same: Mask = pc.equal(left[0], right[0]).to_numpy(zero_copy_only=False)
    for left_column, right_column in zip(left[1:], right[1:], strict=True):
        same &= pc.equal(left_column, right_column).to_numpy(zero_copy_only=False)
    return same
