"""Where the rows of a read come from: the base table, and the generations it does not have yet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import lance
import pyarrow as pa

from memwal.errors import ConflictError, ObjectNotFoundError
from memwal.format.names import TOMBSTONE, generation_dir
from memwal.format.region_manifest import RegionManifest
from memwal.memtable.unflushed import UnflushedRows
from memwal.region.discovery import read_manifests
from memwal.region.field_ids import aligned, same_fields, with_field_ids
from memwal.region.row_schema import stored_schema
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import BaseTable, open_base, open_dataset

MemTables = Mapping[UUID, Sequence[UnflushedRows]]
"""What writers hold and have not flushed, by region."""

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
    unflushed : UnflushedRows or None
        Of a MemTable: what else answers for the same rows, in the same order. None when they are
        not in the table's present form.
    """

    region_id: UUID
    generation: int
    dataset: lance.LanceDataset
    identity: str | None
    unflushed: UnflushedRows | None = None


@dataclass(frozen=True, slots=True)
class MergedGeneration:
    """A flushed generation that the base table contains and that is still stored.

    Until an index of the base table has caught up, the generation's own index answers for its
    rows (spec: Indexed Read Plan).
    """

    region_id: UUID
    generation: int
    path: str


@dataclass(frozen=True, slots=True)
class ReadSources:
    """Everything that one read needs, at one moment.

    Attributes
    ----------
    base : BaseTable
        Pinned version of the base table.
    generations : tuple of GenerationSource
        What the base table does not contain, oldest first within each region.
    merged : tuple of MergedGeneration
        What the base table contains and the collector has left.
    """

    base: BaseTable
    generations: tuple[GenerationSource, ...]
    merged: tuple[MergedGeneration, ...] = ()


def collect_sources(
    location: TableLocation,
    memtables: MemTables | None = None,
    *,
    regions: Collection[UUID] | None = None,
) -> ReadSources:
    """Collect the sources of a read (spec: MemTable Collection).

    The order makes it right whatever runs at the same time: MemTables (which the caller took
    before), then region manifests, then the base table. A MemTable that was flushed meanwhile is
    in a manifest as well, a generation that was merged meanwhile is in the base table as well,
    and a row that is seen twice is the same row. The other way round, rows would be missed.

    Parameters
    ----------
    memtables : mapping, optional
        What writers of this process hold; with it the read sees what they acknowledged.
    regions : collection of UUID, optional
        The only regions whose generations matter to the read; all by default.

    Raises
    ------
    TableSetupError
        No table, no primary key, or no MemWAL.
    ConflictError
        Generations vanish faster than they can be opened; the collector's grace is too short.
    """
    for _ in range(_ATTEMPTS):
        manifests = read_manifests(location.store, regions)
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
                open_generation(base, region_id, f.generation, f.path) for region_id, f in wanted
            ]
        except ObjectNotFoundError:
            # Merged and collected since the manifest was read: the base table has it by now.
            continue
        sources = flushed_sources + [
            _open_memtable(base, region_id, unflushed)
            for region_id, tables in (memtables or {}).items()
            for unflushed in tables
            if unflushed.generation > merged.get(region_id, 0)
            and _is_unflushed(unflushed, manifests.get(region_id))
        ]
        return ReadSources(
            base=base,
            generations=tuple(sorted(sources, key=lambda source: source.generation)),
            merged=tuple(
                MergedGeneration(region_id, flushed.generation, flushed.path)
                for region_id, manifest in manifests.items()
                for flushed in manifest.flushed
                if flushed.generation <= merged.get(region_id, 0)
            ),
        )
    raise ConflictError(
        f"generations of {location} were collected before they could be read, {_ATTEMPTS} times; "
        "give the garbage collector a longer grace period"
    )


def open_generation(
    base: BaseTable, region_id: UUID, generation: int, path: str
) -> GenerationSource:
    """Open a flushed generation, with the columns that the base table has.

    Raises
    ------
    ObjectNotFoundError
        It was collected.
    """
    folder = generation_dir(region_id, path)
    dataset = open_dataset(base.location, folder)
    identity: str | None = base.location.child(folder)
    stored = with_field_ids(dataset.schema, dataset.lance_schema)
    if not same_fields(_without_tombstone_id(stored), _wanted(base)):
        # Flushed before columns were added, renamed or dropped. It is bounded by the size of a
        # MemTable, so that its rows can be brought into today's form in memory.
        rows = dataset.to_table()
        rows = pa.Table.from_arrays(rows.columns, schema=_without_tombstone_id(stored))
        dataset, identity = _in_memory(base, rows), None
    return GenerationSource(
        region_id=region_id, generation=generation, dataset=dataset, identity=identity
    )


def _open_memtable(base: BaseTable, region_id: UUID, unflushed: UnflushedRows) -> GenerationSource:
    """A MemTable as a data set in memory, so that filters mean the same everywhere."""
    rows = unflushed.rows
    return GenerationSource(
        region_id=region_id,
        generation=unflushed.generation,
        dataset=_in_memory(base, rows),
        identity=None,
        unflushed=unflushed if same_fields(rows.schema, _wanted(base)) else None,
    )


def _is_unflushed(unflushed: UnflushedRows, manifest: RegionManifest | None) -> bool:
    """Whether no flushed generation has the rows.

    Once the manifest has moved past the generation, somebody flushed it: the writer itself since
    we looked, or one that fenced it, replayed its log and then wrote newer rows beside.
    """
    return manifest is None or unflushed.generation >= manifest.current_generation


def _wanted(base: BaseTable) -> pa.Schema:
    return stored_schema(base.identified_schema, base.primary_key)


def _without_tombstone_id(schema: pa.Schema) -> pa.Schema:
    """The tombstone's id was the next free one when the generation was flushed, and a column that
    was added to the table since may have it."""
    position = schema.get_field_index(TOMBSTONE)
    return schema.set(position, schema.field(position).remove_metadata())


def _in_memory(base: BaseTable, rows: pa.Table) -> lance.LanceDataset:
    return lance.write_dataset(aligned(rows, _wanted(base)), "memory://")
