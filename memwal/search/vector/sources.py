"""Live rows of each source: those that a vector search may return, with their row ids as hits."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from memwal.reader.base_indexes import Gap, options_key
from memwal.reader.cache.lru import LruCache
from memwal.reader.hits import BASE
from memwal.reader.latest import NewestRows
from memwal.reader.row_set import RowIds, encode_row_set
from memwal.reader.sources.generation import GenerationSource, ReadSources
from memwal.util.concurrency import Lazy

_PART_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, eq=False)
class LiveRows:
    """Rows of one source that a search may return.

    Attributes
    ----------
    number : int
        Source of the hits: ``BASE``, or a position among the generations.
    name : hashable or None
        Identity of the stored rows, for caches; None for a MemTable, which changes.
    addresses : numpy.ndarray of uint64
        Rows in storage, ascending.
    rows : numpy.ndarray of uint64
        Row ids of the hits.
    """

    number: int
    name: Hashable
    addresses: RowIds
    rows: RowIds

    @property
    def nbytes(self) -> int:
        """Memory in bytes; encoded addresses are assumed to take as much as the addresses."""
        return int(2 * self.addresses.nbytes + self.rows.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class LiveGenerationRows(LiveRows):
    """Live rows of a generation.

    Attributes
    ----------
    source : GenerationSource
    encoded : Lazy of bytes
        The addresses in the form that Lance's scanner takes.
    """

    source: GenerationSource
    encoded: Lazy[bytes]

    @classmethod
    def of(
        cls, number: int, source: GenerationSource, addresses: RowIds, rows: RowIds
    ) -> LiveGenerationRows:
        """Build the rows; addresses are encoded at first use."""
        encoded = Lazy(lambda: encode_row_set(addresses))
        return cls(number, source.identity, addresses, rows, source, encoded)


def unmerged_rows(sources: ReadSources, newest: NewestRows) -> tuple[LiveGenerationRows, ...]:
    """Return the rows of each generation that are the newest of their keys; cached."""
    flushed = _flushed_key(sources)
    if flushed is None:
        return _find_unmerged(sources, newest)
    return _unmerged_cache.get(flushed, lambda: _find_unmerged(sources, newest))


def unindexed_rows(
    sources: ReadSources, newest: NewestRows, gap: Gap | None
) -> tuple[tuple[LiveGenerationRows, ...], LiveRows | None]:
    """Return rows of the base table that its index does not cover and no generation replaced.

    Returns
    -------
    tuple of LiveGenerationRows
        Rows that are searched in the merged generations that they come from.
    LiveRows or None
        The others.
    """
    if gap is None:
        return (), None
    flushed = _flushed_key(sources)
    if flushed is None:
        return _find_unindexed(newest, gap)
    return _unindexed_cache.get((flushed, gap.key), lambda: _find_unindexed(newest, gap))


def _find_unmerged(sources: ReadSources, newest: NewestRows) -> tuple[LiveGenerationRows, ...]:
    found = []
    for position, source in enumerate(sources.generations):
        live = newest.live_addresses(position)
        if len(live):
            found.append(LiveGenerationRows.of(position, source, live, live))
    return tuple(found)


def _find_unindexed(
    newest: NewestRows, gap: Gap
) -> tuple[tuple[LiveGenerationRows, ...], LiveRows | None]:
    found = []
    for bridge in gap.bridges:
        live = ~pc.is_in(bridge.keys, value_set=newest.keys).to_numpy(zero_copy_only=False)
        if live.any():
            found.append(
                LiveGenerationRows.of(
                    BASE, bridge.source, bridge.addresses[live], bridge.rows[live]
                )
            )
    replaced = pc.is_in(gap.rest_keys, value_set=newest.keys).to_numpy(zero_copy_only=False)
    rest = gap.rest[~replaced]
    if not len(rest):
        return tuple(found), None
    return tuple(found), LiveRows(BASE, gap.key, rest, rest)


def _flushed_key(sources: ReadSources) -> tuple[Hashable, ...] | None:
    """Return the cache key of the open generations; None if one of them is a MemTable."""
    names = tuple(source.identity for source in sources.generations)
    return None if None in names else (names, options_key(sources.base))


def _total_bytes(parts: Sequence[LiveRows]) -> int:
    return sum(part.nbytes for part in parts)


_unmerged_cache: LruCache[tuple[LiveGenerationRows, ...]] = LruCache(_PART_BYTES, _total_bytes)
_unindexed_cache: LruCache[tuple[tuple[LiveGenerationRows, ...], LiveRows | None]] = LruCache(
    _PART_BYTES, lambda found: _total_bytes([*found[0], *([found[1]] if found[1] else [])])
)
