"""Rows of the base table by key, and the rows that newer sources replaced."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.reader.base_indexes import covered_fragments, find_index
from memwal.reader.cache.keys import version_key
from memwal.reader.cache.lru import LruCache
from memwal.reader.latest import read_keys
from memwal.reader.row_set import ROW_ID, RowIds, group_batches
from memwal.reader.sources.collect import ReadSources
from memwal.reader.sources.generation import GenerationSource
from memwal.region.rows import key_column

if TYPE_CHECKING:
    import lance

Positions = npt.NDArray[np.int64]

# Asking the index for a key takes as long as comparing so many keys of the table (measured on
# integers: 2 us and 20 ns).
_ROWS_PER_KEY = 100
_KEYS_AT_ONCE = 5_000
# Each comparison hashes all wanted keys, and larger pieces share that cost.
_COMPARED_ROWS = 1 << 20
_COMPARED_BYTES = 32 << 20


def rows_of_keys(base: BaseTable, keys: pa.Array) -> tuple[RowIds, Positions]:
    """Find the rows of many keys: by the table's index on the key, or by one pass over all keys.

    The index is asked where that is quicker: for few keys of a large table.

    Parameters
    ----------
    keys : pyarrow.Array
        Distinct keys as :func:`memwal.region.rows.key_column` gives them.

    Returns
    -------
    tuple of numpy.ndarray of uint64 and numpy.ndarray of int64
        Row ids in no promised order, and the position of the key of each among ``keys``.
    """
    fragments = base.dataset.get_fragments()
    if not fragments or not len(keys):
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    indexed = _indexed(base, fragments)
    rows = sum(fragment.physical_rows for fragment in indexed)
    if len(keys) * _ROWS_PER_KEY > rows:
        return _passed_over(base, keys, fragments)
    asked = _asked_of_index(base, keys, indexed)
    known = {fragment.fragment_id for fragment in indexed}
    others = [fragment for fragment in fragments if fragment.fragment_id not in known]
    if not others:
        return asked
    passed = _passed_over(base, keys, others)
    return np.concatenate([asked[0], passed[0]]), np.concatenate([asked[1], passed[1]])


def key_predicate(keys: pa.Table) -> str:
    """A predicate for the rows of some keys.

    Of a composite key it lets through every combination of the columns' values.

    Raises
    ------
    InvalidInputError
        A column has a type that SQL has no values of.
    """
    return " and ".join(
        f"{_quoted(name)} in ({', '.join(_literals(column))})"
        for name, column in zip(keys.column_names, keys.columns, strict=True)
    )


def _indexed(
    base: BaseTable, fragments: Sequence[lance.LanceFragment]
) -> list[lance.LanceFragment]:
    """Fragments whose rows an index finds by key."""
    if len(base.primary_key) != 1:
        return []
    index = find_index(
        base.dataset.describe_indices(), base.primary_key[0], lambda kind: kind.upper() == "BTREE"
    )
    if index is None:
        return []
    covered = covered_fragments(index)
    return [fragment for fragment in fragments if fragment.fragment_id in covered]


def _asked_of_index(
    base: BaseTable, keys: pa.Array, fragments: Sequence[lance.LanceFragment]
) -> tuple[RowIds, Positions]:
    (name,) = base.primary_key
    # Neighbours share the pages of the index.
    order = pc.array_sort_indices(keys)
    row_ids, positions = [], []
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        asked = keys.take(order.slice(start, _KEYS_AT_ONCE))
        rows = base.dataset.scanner(
            columns=[name],
            filter=key_predicate(pa.table({name: asked})),
            with_row_id=True,
            fragments=list(fragments),
        ).to_table()
        at = pc.index_in(key_column(rows, base.primary_key), value_set=asked)
        row_ids.append(rows.column(ROW_ID).to_numpy())
        positions.append(order.to_numpy()[start + at.to_numpy()].astype(np.int64))
    return np.concatenate(row_ids), np.concatenate(positions)


def _passed_over(
    base: BaseTable, keys: pa.Array, fragments: Sequence[lance.LanceFragment]
) -> tuple[RowIds, Positions]:
    row_ids, positions = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    scanner = base.dataset.scanner(
        columns=list(base.primary_key), with_row_id=True, fragments=list(fragments)
    )
    for batches in group_batches(
        scanner.to_batches(), rows=_COMPARED_ROWS, max_bytes=_COMPARED_BYTES
    ):
        piece = pa.Table.from_batches(batches)
        at = pc.index_in(key_column(piece, base.primary_key), value_set=keys)
        row_ids.append(piece.column(ROW_ID).filter(at.is_valid()).to_numpy())
        positions.append(at.drop_null().to_numpy().astype(np.int64))
    return np.concatenate(row_ids), np.concatenate(positions)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literals(column: pa.ChunkedArray) -> list[str]:
    kind = column.type
    if pt.is_boolean(kind):
        return ["true" if value else "false" for value in column.to_pylist()]
    if pt.is_integer(kind):
        # The parser takes the digits of the smallest one for a float.
        smallest = -(1 << 63)
        return [
            f"cast('{value}' as bigint)" if value == smallest else str(value)
            for value in column.to_pylist()
        ]
    if pt.is_string(kind) or pt.is_large_string(kind):
        return ["'" + value.replace("'", "''") + "'" for value in column.to_pylist()]
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return ["X'" + value.hex() + "'" for value in column.to_pylist()]
    raise InvalidInputError(f"a key of type {kind} cannot be looked up")


_CACHE_BYTES = 128 << 20
_VERSIONS = 4
# So many keys of MemTables are remembered, or twice as many as there are, before all are forgotten.
_MOST_KEYS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class ReplacedRows:
    """Rows of the base table that do not count.

    Attributes
    ----------
    rows : numpy.ndarray of uint64
        Their row ids, ascending.
    digest : bytes
        The same for the same rows.
    """

    rows: RowIds
    digest: bytes

    @classmethod
    def of(cls, parts: Sequence[RowIds]) -> ReplacedRows:
        """The rows of several arrays."""
        rows = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))
        return cls(rows, hashlib.blake2b(rows.tobytes()).digest())


def replaced_rows(sources: ReadSources) -> ReplacedRows:
    """Rows of the base table whose keys a generation has.

    They are found by the base table's index on its key, or by one pass over the key column, for all
    generations that were not seen with this version of it before, and for keys of MemTables that
    were not.
    """
    flushed = [source.identity for source in sources.generations if source.identity is not None]
    if len(flushed) == len(sources.generations):
        key = (version_key(sources.base), *flushed)
        return _together.get(key, lambda: ReplacedRows.of(_parts(sources)))
    return ReplacedRows.of(_parts(sources))


def _parts(sources: ReadSources) -> list[RowIds]:
    base = sources.base
    if not base.dataset.fragment_ids():
        return []
    found, missing, unflushed = [], [], []
    for source in sources.generations:
        if source.identity is None:
            unflushed.append(read_keys(source, base.primary_key).keys)
            continue
        known = _known.peek(_key(base, source))
        if known is None:
            missing.append(source)
        else:
            found.append(known)
    if missing:
        found += _find(base, missing)
    if unflushed:
        found.append(_of_memtables(base, pc.unique(pa.concat_arrays(unflushed))))
    return found


def _key(base: BaseTable, source: GenerationSource) -> tuple[Hashable, ...]:
    return version_key(base), source.identity


def _find(base: BaseTable, sources: Sequence[GenerationSource]) -> list[RowIds]:
    keys = [read_keys(source, base.primary_key).keys for source in sources]
    every = pc.unique(pa.concat_arrays(keys))
    rows, positions = rows_of_keys(base, every)
    found = []
    for source, own in zip(sources, keys, strict=True):
        mine = rows[pc.is_in(every, value_set=own).to_numpy(zero_copy_only=False)[positions]]
        found.append(_known.get(_key(base, source), partial(_same, mine)))
    return found


def _same(rows: RowIds) -> RowIds:
    return rows


def _of_memtables(base: BaseTable, keys: pa.Array) -> RowIds:
    """Rows of keys that MemTables have; only those that were not looked up before are now."""
    lookups = _lookups.get(version_key(base), partial(_Lookups, keys.type))
    done = lookups.done
    if len(done.keys) > max(_MOST_KEYS, 2 * len(keys)):
        done = _Done.none(keys.type)
    fresh = keys
    if len(done.keys):
        fresh = keys.filter(pc.invert(pc.is_in(keys, value_set=done.keys)))
    if len(fresh):
        rows, positions = rows_of_keys(base, fresh)
        done = _Done(
            pa.concat_arrays([done.keys, fresh]),
            np.concatenate([done.rows, rows]),
            np.concatenate([done.positions, positions + len(done.keys)]),
        )
        # Of two that do this at once one is forgotten, and looks its keys up again.
        lookups.done = done
    wanted = pc.is_in(done.keys, value_set=keys).to_numpy(zero_copy_only=False)
    found: RowIds = done.rows[wanted[done.positions]]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Done:
    """Keys that were looked up in the base table, and the rows there: ``positions`` of the keys."""

    keys: pa.Array
    rows: RowIds
    positions: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def none(cls, key_type: pa.DataType) -> _Done:
        """Nothing was looked up."""
        return cls(pa.array([], key_type), np.empty(0, np.uint64), np.empty(0, np.int64))


class _Lookups:
    """What was looked up in one version of a base table."""

    def __init__(self, key_type: pa.DataType) -> None:
        self.done = _Done.none(key_type)


_together: LruCache[ReplacedRows] = LruCache(_CACHE_BYTES, lambda found: found.rows.nbytes)
_known: LruCache[RowIds] = LruCache(_CACHE_BYTES, lambda rows: rows.nbytes)
_lookups: LruCache[_Lookups] = LruCache(_VERSIONS)
