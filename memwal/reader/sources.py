"""Where the rows of a read come from: the base table, and the generations it does not have yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import lance
import pyarrow as pa

from memwal.errors import ConflictError, ObjectNotFoundError
from memwal.format.names import generation_dir
from memwal.region.discovery import read_manifests
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import BaseTable, open_base, open_dataset

MemTables = Mapping[UUID, Sequence[tuple[int, pa.Table]]]
"""Generation and stored rows (oldest first) of what writers hold, by region."""

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class GenerationSource:
    """One generation as a data set: flushed, or a MemTable of this process.

    Attributes
    ----------
    region_id : UUID
    generation : int
    dataset : lance.LanceDataset
        Rows in stored form; within it a higher row address is newer.
    identity : str or None
        Names the content for ever; None for a MemTable, which changes.
    """

    region_id: UUID
    generation: int
    dataset: lance.LanceDataset
    identity: str | None


@dataclass(frozen=True, slots=True)
class ReadSources:
    """Everything that one read needs, at one moment.

    Attributes
    ----------
    base : BaseTable
        Pinned version of the base table.
    generations : tuple of GenerationSource
        What the base table does not contain, oldest first within each region.
    """

    base: BaseTable
    generations: tuple[GenerationSource, ...]


def collect_sources(location: TableLocation, memtables: MemTables | None = None) -> ReadSources:
    """Collect the sources of a read (spec: MemTable Collection).

    The order makes it right whatever runs at the same time: MemTables (which the caller took
    before), then region manifests, then the base table. A MemTable that was flushed meanwhile is
    in a manifest as well, a generation that was merged meanwhile is in the base table as well,
    and a row that is seen twice is the same row. The other way round, rows would be missed.

    Parameters
    ----------
    memtables : mapping, optional
        What writers of this process hold; with it the read sees what they acknowledged.

    Raises
    ------
    TableSetupError
        No table, no primary key, or no MemWAL.
    ConflictError
        Generations vanish faster than they can be opened; the collector's grace is too short.
    """
    for _ in range(_ATTEMPTS):
        manifests = read_manifests(location.store)
        base = open_base(location)
        base.require_mem_wal()
        merged = base.details.merged
        wanted = [
            (region_id, flushed)
            for region_id, manifest in manifests.items()
            for flushed in manifest.flushed
            if flushed.generation > merged.get(region_id, 0)
        ]
        try:
            flushed_sources = [
                _open_flushed(location, region_id, f.generation, f.path) for region_id, f in wanted
            ]
        except ObjectNotFoundError:
            # Merged and collected since the manifest was read: the base table has it by now.
            continue
        sources = flushed_sources + [
            _open_memtable(region_id, generation, rows)
            for region_id, tables in (memtables or {}).items()
            for generation, rows in tables
            if generation > merged.get(region_id, 0)
        ]
        return ReadSources(
            base=base, generations=tuple(sorted(sources, key=lambda source: source.generation))
        )
    raise ConflictError(
        f"generations of {location} were collected before they could be read, {_ATTEMPTS} times; "
        "give the garbage collector a longer grace period"
    )


def _open_flushed(
    location: TableLocation, region_id: UUID, generation: int, path: str
) -> GenerationSource:
    folder = generation_dir(region_id, path)
    return GenerationSource(
        region_id=region_id,
        generation=generation,
        dataset=open_dataset(location, folder),
        identity=location.child(folder),
    )


def _open_memtable(region_id: UUID, generation: int, rows: pa.Table) -> GenerationSource:
    """A MemTable as a data set in memory, so that filters mean the same everywhere."""
    return GenerationSource(
        region_id=region_id,
        generation=generation,
        dataset=lance.write_dataset(rows, "memory://"),
        identity=None,
    )
