"""Three readers that must agree with the data set: memwal, pylance, and the base table alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
from compare import Comparison, compare
from flightdata import KEY, SCHEMA
from lance.mem_wal import LsmScanner, ShardSnapshot

import memwal
from memwal.region.manifest_store import read_manifests


def with_memwal(table: memwal.Table) -> pa.Table:
    """Read with memwal's merging scan."""
    return table.scan().to_table()


def with_pylance(table: memwal.Table) -> pa.Table:
    """Read the base table and the unmerged generations with Lance's own reader."""
    manifests = read_manifests(table.location.store)
    base = table.base()
    snapshots = []
    for region_id, manifest in manifests.items():
        snapshot = ShardSnapshot(str(region_id)).with_spec_id(manifest.spec_id)
        snapshot = snapshot.with_current_generation(manifest.current_generation)
        for flushed in manifest.flushed:
            if flushed.generation > base.details.merged.get(region_id, 0):
                snapshot = snapshot.with_sstable(flushed.generation, flushed.path)
        snapshots.append(snapshot)
    return LsmScanner.from_snapshots(base.dataset, snapshots).project(SCHEMA.names).to_table()


def base_alone(table: memwal.Table) -> pa.Table:
    """Read only the base table, like a Lance reader that does not know MemWAL."""
    return table.base().dataset.to_table()


def read_and_compare(
    table: memwal.Table,
    expected: pa.Table,
    *,
    reader: str,
    read: Callable[[memwal.Table], pa.Table],
) -> Comparison:
    """Read the whole table with one reader and compare it with the expected rows."""
    begin = time.monotonic()
    rows = read(table)
    seconds = time.monotonic() - begin
    return compare(expected, rows, key=KEY, reader=reader, seconds=seconds)
