"""Writing and reading tables with Lance's own MemWAL classes, and comparing what was read."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.mem_wal import (
    CompactedSsTable,
    LsmPointLookupPlanner,
    LsmScanner,
    LsmVectorSearchPlanner,
    ShardSnapshot,
    ShardWriter,
)
from support.data.tables import collect_now, state

import memwal
from memwal.base_table.snapshot import BaseTable
from memwal.format.paths import TOMBSTONE, generation_dir
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.region.manifest_store import read_manifests
from memwal.region.router import UNSHARDED_ID, Router

Rows = list[dict[str, Any]]


def dataset(table: memwal.Table) -> lance.LanceDataset:
    """The base table, opened by Lance."""
    return lance.dataset(table.uri, storage_options=table.location.lance_options())


def writer(table: memwal.Table, region_id: UUID = UNSHARDED_ID, **options: Any) -> ShardWriter:
    """Claim a region with Lance's own writer."""
    return dataset(table).mem_wal_writer(str(region_id), **options)


def put(shard: ShardWriter, table: memwal.Table, rows: pa.Table) -> None:
    """Upsert with Lance's own writer, which wants exactly the table's schema."""
    shard.put(rows.select(table.schema.names).cast(table.schema))


def upsert(table: memwal.Table, rows: pa.Table) -> None:
    """Upsert with Lance's own writer, which takes one region at a time, and close it."""
    _, spec = table.region_spec()
    for region, part in Router(spec, table.schema).route(rows):
        with writer(table, region.region_id) as shard:
            put(shard, table, pa.Table.from_batches([part]))


def flushed(table: memwal.Table, *parts: Any) -> lance.LanceDataset:
    """Flush rows, and deletes of arrays of keys, with our writer as one generation, and open it."""
    with table.writer() as writer:
        for part in parts:
            if isinstance(part, pa.Array):
                writer.delete(part)
            else:
                writer.upsert(part)
    newest = read_manifests(table.location.store)[UNSHARDED_ID].flushed[-1]
    return lance.dataset(table.location.child(generation_dir(UNSHARDED_ID, newest.path)))


def snapshots(table: memwal.Table, base: BaseTable | None = None) -> list[ShardSnapshot]:
    """Every region as its newest manifest tells, without what the base table has already.

    ``base`` is a version of the base table; by default the newest.
    """
    return _moment(table, base)[1]


def _moment(
    table: memwal.Table, base: BaseTable | None = None
) -> tuple[lance.LanceDataset, list[ShardSnapshot]]:
    """The base table and what it does not have yet; the manifests are read first, as in all reads.

    What is merged in between is then in the base table, and left out of the rest.
    """
    manifests = read_manifests(table.location.store)
    base = base or table.base()
    found = []
    for region_id, manifest in manifests.items():
        snapshot = (
            ShardSnapshot(str(region_id))
            .with_spec_id(manifest.spec_id)
            .with_current_generation(manifest.current_generation)
        )
        for flushed in manifest.flushed:
            if flushed.generation > base.details.merged.get(region_id, 0):
                snapshot = snapshot.with_sstable(flushed.generation, flushed.path)
        found.append(snapshot)
    return base.stored, found


def scan(table: memwal.Table, *, filter: str | None = None) -> pa.Table:
    """What Lance's own scanner shows."""
    scanner = LsmScanner.from_snapshots(*_moment(table))
    return (scanner.filter(filter) if filter else scanner).to_table()


def lookup(table: memwal.Table, keys: pa.Table) -> Rows:
    """What Lance's own point lookup shows, key by key."""
    planner = LsmPointLookupPlanner(*_moment(table))
    found: Rows = []
    for batch in keys.to_batches(max_chunksize=1):
        struct = pa.StructArray.from_arrays(
            batch.columns, fields=[f.with_nullable(False) for f in batch.schema]
        )
        key = struct if batch.num_columns > 1 else batch.column(0)
        found += planner.plan_lookup(key).to_table().to_pylist()
    return found


def nearest(table: memwal.Table, column: str, vector: Sequence[float], *, k: int = 3) -> list[int]:
    """Ids of what Lance's own vector search finds, nearest first."""
    planner = LsmVectorSearchPlanner(dataset(table), snapshots(table), column)
    found = planner.plan_search(pa.array(vector, pa.float32()), k=k, nprobes=100).to_table()
    return list(found.sort_by("_distance")["id"].to_pylist())


def ordered(rows: pa.Table | Rows, key: Sequence[str] = ("id",)) -> Rows:
    """Rows in the order of their keys, with their columns in the order of their names."""
    plain = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return sorted(
        (dict(sorted(row.items())) for row in plain),
        key=lambda row: [(str(type(row[name])), row[name]) for name in key],
    )


def everything(table: memwal.Table) -> Rows:
    """All rows, after checking that Lance's scanner and ours show the same ones."""
    key = table.primary_key
    ours, native = ordered(table.scan().to_table(), key), ordered(scan(table), key)
    assert ours == native
    return ours


def shown(table: memwal.Table) -> dict[int, int | None]:
    """Key to number, as both Lance's scanner and ours show it."""
    everything(table)
    return state(table)


def collect_all(table: memwal.Table) -> None:
    """Collect until nothing is left to collect: what the first run drops, the second deletes."""
    for _ in range(2):
        collect_now(table, foreign_claim_seconds=0)


def mark(table: memwal.Table, region_id: UUID, generation: int, rows: pa.Table) -> None:
    """Upsert rows and record a generation as merged, all in Lance's own commit."""
    builder = (
        dataset(table)
        .merge_insert(list(table.primary_key))
        .when_matched_update_all()
        .when_not_matched_insert_all()
    )
    builder.mark_sstables_as_compacted([CompactedSsTable(str(region_id), generation)])
    builder.execute(rows)


def merge(table: memwal.Table, *, generations: int | None = None) -> int:
    """Merge what is flushed, or its oldest generations, with Lance's own calls; count them."""
    return sum(
        _merge_generation(table, region_id, flushed.generation, flushed.path)
        for region_id, manifest in read_manifests(table.location.store).items()
        for flushed in _oldest_first(table, region_id, manifest)[:generations]
    )


def _oldest_first(
    table: memwal.Table, region_id: UUID, manifest: RegionManifest
) -> list[FlushedGeneration]:
    merged = table.base().details.merged.get(region_id, 0)
    pending = [flushed for flushed in manifest.flushed if flushed.generation > merged]
    return sorted(pending, key=lambda flushed: flushed.generation)


def _merge_generation(table: memwal.Table, region_id: UUID, generation: int, path: str) -> bool:
    key = list(table.primary_key)
    folder = table.location.child(generation_dir(region_id, path))
    rows = lance.dataset(folder, storage_options=table.location.lance_options()).to_table()
    deleted = rows.filter(rows[TOMBSTONE]).select(key)
    left = rows.filter(pc.invert(rows[TOMBSTONE])).drop_columns([TOMBSTONE])
    for _ in range(200):
        base = table.base()
        if base.details.merged.get(region_id, 0) >= generation:
            return False
        try:
            if deleted.num_rows:
                remover = base.dataset.merge_insert(key).when_matched_delete()
                remover.conflict_retries(0).execute(deleted)
            mark(table, region_id, generation, left)
        except (OSError, RuntimeError, ValueError) as error:
            if not any(word in str(error).lower() for word in ("conflict", "concurrent", "stale")):
                raise
        else:
            return True
    raise AssertionError("200 attempts to merge with Lance's own calls met other commits")
