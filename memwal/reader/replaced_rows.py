"""Which rows of the base table newer sources replaced."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.reader.base_rows import rows_of_keys
from memwal.reader.generations import GenerationSource
from memwal.reader.kept_names import version_key
from memwal.reader.newest import read_keys
from memwal.reader.recent import Recent
from memwal.reader.row_set import RowIds
from memwal.reader.sources import ReadSources
from memwal.table_index.base_table import BaseTable

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


_together: Recent[ReplacedRows] = Recent(_CACHE_BYTES, lambda found: found.rows.nbytes)
_known: Recent[RowIds] = Recent(_CACHE_BYTES, lambda rows: rows.nbytes)
_lookups: Recent[_Lookups] = Recent(_VERSIONS)
