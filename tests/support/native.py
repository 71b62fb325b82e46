"""Writing and reading tables with Lance's own MemWAL classes, and comparing what was read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import lance
import pyarrow as pa
from lance.mem_wal import (
    LsmPointLookupPlanner,
    LsmScanner,
    LsmVectorSearchPlanner,
    ShardSnapshot,
    ShardWriter,
)

import memwal
from memwal.region.discovery import read_manifests
from memwal.region.region_ids import UNSHARDED_ID

Rows = list[dict[str, Any]]


def dataset(table: memwal.Table) -> lance.LanceDataset:
    """The base table, opened by Lance."""
    return lance.dataset(table.uri)


def writer(table: memwal.Table, region_id: UUID = UNSHARDED_ID, **options: Any) -> ShardWriter:
    """Claim a region with Lance's own writer."""
    return dataset(table).mem_wal_writer(str(region_id), **options)


def put(shard: ShardWriter, table: memwal.Table, rows: pa.Table) -> None:
    """Upsert with Lance's own writer, which wants exactly the table's schema."""
    shard.put(rows.select(table.schema.names).cast(table.schema))


def snapshots(table: memwal.Table) -> list[ShardSnapshot]:
    """Every region as its newest manifest tells, without what the base table has already."""
    merged = table.base().details.merged
    found = []
    for region_id, manifest in read_manifests(table.location.store).items():
        snapshot = (
            ShardSnapshot(str(region_id))
            .with_spec_id(manifest.spec_id)
            .with_current_generation(manifest.current_generation)
        )
        for flushed in manifest.flushed:
            if flushed.generation > merged.get(region_id, 0):
                snapshot = snapshot.with_sstable(flushed.generation, flushed.path)
        found.append(snapshot)
    return found


def scan(table: memwal.Table, *, filter: str | None = None) -> pa.Table:
    """What Lance's own scanner shows."""
    scanner = LsmScanner.from_snapshots(dataset(table), snapshots(table))
    return (scanner.filter(filter) if filter else scanner).to_table()


def lookup(table: memwal.Table, keys: pa.Table) -> Rows:
    """What Lance's own point lookup shows, key by key."""
    planner = LsmPointLookupPlanner(dataset(table), snapshots(table))
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


def collect_all(table: memwal.Table) -> None:
    """Collect until nothing is left to collect: what the first run drops, the second deletes."""
    for _ in range(2):
        table.collect_garbage(dry_run=False, grace=timedelta(0), retention=timedelta(0))
