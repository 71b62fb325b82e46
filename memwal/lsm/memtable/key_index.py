"""Key index of a MemTable: the position of each key's newest row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import InvalidInputError
from memwal.lsm.memtable.hashing import Hashes, hash_rows
from memwal.lsm.memtable.rows import Mask, Rows, RowView

# An entry holds the upper bits of a key's hash and, below them, the number of its row. So the
# newest row of a key among the first n is the entry before (hash, n), in one binary search.
_ROW_BITS = 28
_ROW_MASK = np.uint64((1 << _ROW_BITS) - 1)
_HASH_MASK = ~_ROW_MASK
# Runs are joined until each is 8 times longer than the next: few to search, few copies.
_FACTOR = 8
_SHORT = 64
_NEVER = np.iinfo(np.int32).max

_SameKey = Callable[[Rows, Rows], Mask]


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Sorted runs of entries over the first ``rows`` rows; each run holds newer rows."""

    runs: tuple[Hashes, ...] = ()
    rows: int = 0


class KeyIndex:
    """Finds the newest row of keys, and tells which rows a later one replaced.

    Hashes only narrow the search: every hit is compared with the key itself. Entries are never
    taken out, so an older view is answered as of its own rows while newer ones are being indexed.

    Any thread may call any method at any time: indexing takes a lock of its own, reading none.
    Every method first indexes what the view has and the index has not, which is the deferred
    mode; a writer that calls :meth:`catch_up` after each append leaves readers nothing to do.

    Memory: 12 bytes per row.

    Parameters
    ----------
    primary_key : sequence of str
        Key columns; integers, bool, text or binary, without nulls.
    """

    def __init__(self, primary_key: Sequence[str]) -> None:
        self.primary_key = tuple(primary_key)
        self._lock = threading.Lock()
        self._state = _State()
        # The next row that has the same key.
        self._successors = np.empty(0, np.int32)

    @property
    def rows(self) -> int:
        """Number of rows that are indexed."""
        return self._state.rows

    @property
    def nbytes(self) -> int:
        """Memory of the index."""
        return sum(run.nbytes for run in self._state.runs) + self._successors.nbytes

    def catch_up(self, view: RowView) -> None:
        """Index the rows of a view that are not indexed yet.

        Raises
        ------
        InvalidInputError
            When a key is null, or there are more than 268 million rows.
        """
        if self._state.rows >= view.rows:
            return
        with self._lock:
            state = self._state
            if state.rows < view.rows:
                self._state = self._extended(state, view)

    def lookup(self, keys: Sequence[pa.Array], view: RowView) -> Rows:
        """Find the newest row of each key, tombstones included.

        Parameters
        ----------
        keys : sequence of pyarrow.Array
            One array per key column, in the types of the table.
        view : RowView
            The rows to find them in.

        Returns
        -------
        numpy.ndarray of int64, shape (keys,)
            Row numbers, -1 where no row has the key.

        Raises
        ------
        InvalidInputError
            When a key is null or of another type than the column, or a column is missing.
        """
        self._check(keys, view)
        self.catch_up(view)
        hashes = hash_rows(keys) & _HASH_MASK
        # Neighbours in a run are found faster one after another.
        order = np.argsort(hashes)

        def same_key(asked: Rows, rows: Rows) -> Mask:
            return _equal([key.take(pa.array(order[asked])) for key in keys], self._at(view, rows))

        bounds = hashes[order] | np.uint64(view.rows)
        found = np.empty(len(order), np.int64)
        found[order] = _find(self._state.runs, bounds, same_key)
        return found

    def newest(self, view: RowView) -> Mask:
        """Tell of every row of a view whether it is the newest of its key there.

        Returns
        -------
        numpy.ndarray of bool, shape (rows,)
        """
        self.catch_up(view)
        newest: Mask = self._successors[: view.rows] >= view.rows
        return newest

    def _extended(self, state: _State, view: RowView) -> _State:
        if view.rows > int(_ROW_MASK):
            raise InvalidInputError(
                f"a MemTable has {view.rows} rows and can index {int(_ROW_MASK)}; flush it earlier"
            )
        keys = [_one_array(view.column(name, start=state.rows)) for name in self.primary_key]
        self._check(keys, view)
        numbers = np.arange(state.rows, view.rows, dtype=np.uint64)
        entries = np.sort((hash_rows(keys) & _HASH_MASK) | numbers)
        rows = (entries & _ROW_MASK).astype(np.int64)

        def same_key(asked: Rows, older: Rows) -> Mask:
            fresh = pa.array(rows[asked] - state.rows)
            return _equal([key.take(fresh) for key in keys], self._at(view, older))

        # Each entry is the bound below which the row that it replaces is searched.
        replaced = _find((*state.runs, entries), entries, same_key)
        successors = _grown(self._successors, state.rows, view.rows)
        hit = replaced >= 0
        successors[replaced[hit]] = rows[hit]
        self._successors = successors
        return _State(_joined([*state.runs, entries]), view.rows)

    def _at(self, view: RowView, rows: Rows) -> list[pa.Array]:
        return [view.take_column(name, rows) for name in self.primary_key]

    def _check(self, keys: Sequence[pa.Array], view: RowView) -> None:
        if len(keys) != len(self.primary_key):
            raise InvalidInputError(
                f"{len(keys)} key columns are given; the key has {', '.join(self.primary_key)}"
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


def _find(runs: Sequence[Hashes], bounds: Hashes, same_key: _SameKey) -> Rows:
    """Return for each bound the newest row below it that has the same key, or -1."""
    found = np.full(len(bounds), -1, np.int64)
    asked, wanted = np.arange(len(bounds)), bounds
    for run in reversed(runs):
        at = run.searchsorted(wanted) - 1
        hit = _same_hash(run, at, wanted)
        if hit.any():
            _confirm(run, at[hit], asked[hit], bounds=bounds, same_key=same_key, found=found)
            left = found[asked] < 0
            asked, wanted = asked[left], wanted[left]
            if not len(asked):
                break
    return found


def _same_hash(run: Hashes, at: Rows, wanted: Hashes) -> Mask:
    # At -1 stands the last entry, which may have the hash, but not below the bound.
    same: Mask = ((run[at] ^ wanted) <= _ROW_MASK) & (at >= 0)
    return same


def _confirm(
    run: Hashes, at: Rows, asked: Rows, *, bounds: Hashes, same_key: _SameKey, found: Rows
) -> None:
    """Record the rows whose keys are those asked for, and not just their hashes."""
    while len(asked):
        rows = (run[at] & _ROW_MASK).astype(np.int64)
        same = same_key(asked, rows)
        found[asked[same]] = rows[same]
        # Another key with the same hash: the one sought may stand before it.
        asked, at = asked[~same], at[~same] - 1
        hit = _same_hash(run, at, bounds[asked])
        asked, at = asked[hit], at[hit]


def _joined(runs: list[Hashes]) -> tuple[Hashes, ...]:
    first, size = len(runs) - 1, len(runs[-1])
    while first and len(runs[first - 1]) < max(_SHORT, _FACTOR * size):
        first -= 1
        size += len(runs[first])
    if first < len(runs) - 1:
        # The stable sort is one that merges stretches that are sorted already.
        runs[first:] = [np.sort(np.concatenate(runs[first:]), kind="stable")]
    return tuple(runs)


def _grown(successors: npt.NDArray[np.int32], rows: int, needed: int) -> npt.NDArray[np.int32]:
    """Make room; readers go on with the old array, which is right for the rows they know."""
    if needed <= len(successors):
        return successors
    grown = np.full(max(needed, len(successors) * 2, _SHORT), _NEVER, np.int32)
    grown[:rows] = successors[:rows]
    return grown


def _equal(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
    same: Mask = pc.equal(left[0], right[0]).to_numpy(zero_copy_only=False)
    for one, other in zip(left[1:], right[1:], strict=True):
        same &= pc.equal(one, other).to_numpy(zero_copy_only=False)
    return same


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
