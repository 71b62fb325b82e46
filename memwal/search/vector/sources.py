"""Rows of each generation that a vector search may return, and their row ids as hits."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from memwal.reader.base_indexes import Gap, options_key
from memwal.reader.cache.lru import LruCache
from memwal.reader.hits import BASE
from memwal.reader.latest import NewestRows
from memwal.reader.row_set import RowIds, encode_row_set
from memwal.reader.sources.collect import ReadSources
from memwal.reader.sources.generation import GenerationSource
from memwal.util.concurrency import Lazy

_PART_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows of one source that a search may return.

    Attributes
    ----------
    number : int
        What they belong to as hits: ``BASE``, or a position among the generations.
    name : hashable or None
        Names for ever what has them; None for what changes.
    addresses : numpy.ndarray of uint64
        Their rows there, ascending.
    rows : numpy.ndarray of uint64
        The row ids that they have as hits.
    """

    number: int
    name: Hashable
    addresses: RowIds
    rows: RowIds

    @property
    def nbytes(self) -> int:
        """Memory, in bytes; row ids take about as much again where they are encoded."""
        return int(2 * self.addresses.nbytes + self.rows.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class GenerationPart(Part):
    """Rows of a generation.

    Attributes
    ----------
    source : GenerationSource
    encoded : Lazy of bytes
        The addresses as Lance's scanner takes them.
    """

    source: GenerationSource
    encoded: Lazy[bytes]

    @classmethod
    def of(
        cls, number: int, source: GenerationSource, addresses: RowIds, rows: RowIds
    ) -> GenerationPart:
        """Rows that are encoded when they are asked for."""
        encoded = Lazy(lambda: encode_row_set(addresses))
        return cls(number, source.identity, addresses, rows, source, encoded)


def unmerged_parts(sources: ReadSources, newest: NewestRows) -> tuple[GenerationPart, ...]:
    """Rows of the generations that are the newest of their keys; kept while no row changes."""
    flushed = _flushed(sources)
    if flushed is None:
        return _unmerged(sources, newest)
    return _parts.get(flushed, lambda: _unmerged(sources, newest))


def uncovered_parts(
    sources: ReadSources, newest: NewestRows, gap: Gap | None
) -> tuple[tuple[GenerationPart, ...], Part | None]:
    """Rows of the base table that its index lacks and that no generation replaced.

    Returns
    -------
    tuple of GenerationPart
        Those that merged generations answer for.
    Part or None
        The others.
    """
    if gap is None:
        return (), None
    flushed = _flushed(sources)
    if flushed is None:
        return _uncovered(newest, gap)
    return _gap_parts.get((flushed, gap.key), lambda: _uncovered(newest, gap))


def _unmerged(sources: ReadSources, newest: NewestRows) -> tuple[GenerationPart, ...]:
    found = []
    for position, source in enumerate(sources.generations):
        live = newest.live_addresses(position)
        if len(live):
            found.append(GenerationPart.of(position, source, live, live))
    return tuple(found)


def _uncovered(newest: NewestRows, gap: Gap) -> tuple[tuple[GenerationPart, ...], Part | None]:
    found = []
    for bridge in gap.bridges:
        kept = ~pc.is_in(bridge.keys, value_set=newest.keys).to_numpy(zero_copy_only=False)
        if kept.any():
            found.append(
                GenerationPart.of(BASE, bridge.source, bridge.addresses[kept], bridge.rows[kept])
            )
    replaced = pc.is_in(gap.rest_keys, value_set=newest.keys).to_numpy(zero_copy_only=False)
    rest = gap.rest[~replaced]
    if not len(rest):
        return tuple(found), None
    return tuple(found), Part(BASE, gap.key, rest, rest)


def _flushed(sources: ReadSources) -> tuple[Hashable, ...] | None:
    """What names the open generations for ever; None when there is a MemTable among them."""
    names = tuple(source.identity for source in sources.generations)
    return None if None in names else (names, options_key(sources.base))


def _weight(parts: Sequence[Part]) -> int:
    return sum(part.nbytes for part in parts)


_parts: LruCache[tuple[GenerationPart, ...]] = LruCache(_PART_BYTES, _weight)
_gap_parts: LruCache[tuple[tuple[GenerationPart, ...], Part | None]] = LruCache(
    _PART_BYTES, lambda found: _weight([*found[0], *([found[1]] if found[1] else [])])
)
