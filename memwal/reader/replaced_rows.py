"""Which rows of the base table newer sources replaced."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.reader.generations import GenerationSource
from memwal.reader.newest import read_keys
from memwal.reader.recent import Recent, version_key
from memwal.reader.row_set import RowIds
from memwal.reader.sources import ReadSources
from memwal.region.newest import key_column
from memwal.table_index.base_table import BaseTable

_CACHE_BYTES = 128 << 20
_TOGETHER = 8


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

    One pass over the base table's key columns, for all generations that were not seen with this
    version of it before; those of flushed ones are kept.
    """
    flushed = [source.identity for source in sources.generations if source.identity is not None]
    if len(flushed) == len(sources.generations):
        key = (*version_key(sources.base), *flushed)
        return _together.get(key, lambda: ReplacedRows.of(_parts(sources)))
    return ReplacedRows.of(_parts(sources))


def _parts(sources: ReadSources) -> list[RowIds]:
    base = sources.base
    if not base.dataset.fragment_ids():
        return []
    found, missing = [], []
    for source in sources.generations:
        known = _known.peek(_key(base, source)) if source.identity is not None else None
        if known is None:
            missing.append(source)
        else:
            found.append(known)
    if missing:
        found += _find(base, missing)
    return found


def _key(base: BaseTable, source: GenerationSource) -> tuple[Hashable, ...]:
    return *version_key(base), source.identity


def _find(base: BaseTable, sources: Sequence[GenerationSource]) -> list[RowIds]:
    keys = [read_keys(source, base.primary_key).keys for source in sources]
    every = pa.concat_arrays(keys)
    row_ids, matching = [np.empty(0, np.uint64)], [every.slice(0, 0)]
    scanner = base.dataset.scanner(columns=list(base.primary_key), with_row_id=True)
    for batch in scanner.to_batches():
        column = key_column(batch, base.primary_key)
        hit = pc.is_in(column, value_set=every)
        matching.append(column.filter(hit))
        row_ids.append(batch.column("_rowid").filter(hit).to_numpy())
    rows, hits = np.concatenate(row_ids), pa.concat_arrays(matching)
    found = []
    for source, own in zip(sources, keys, strict=True):
        mine = rows[pc.is_in(hits, value_set=own).to_numpy(zero_copy_only=False)]
        if source.identity is not None:
            _known.get(_key(base, source), lambda mine=mine: mine)  # type: ignore[misc]
        found.append(mine)
    return found


_together: Recent[ReplacedRows] = Recent(_TOGETHER)
_known: Recent[RowIds] = Recent(_CACHE_BYTES, lambda rows: rows.nbytes)
