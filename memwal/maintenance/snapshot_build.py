"""Publishing the state of all regions in the MemWAL index (spec: Region Snapshot Storage).

Readers that can live with a moment's staleness then need no request per region. The snapshot
replaces only the snapshot fields of the details, by compare-and-swap on top of what is there.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from lance.file import LanceFileWriter

from memwal.format.index_details import IndexDetails
from memwal.format.region_manifest import RegionManifest
from memwal.maintenance.results import JobResult, TaskRunner, run_in_process
from memwal.region.discovery import read_manifests
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import BaseTable
from memwal.table_index.details import update_details

_FLUSHED_TYPE = pa.list_(
    pa.struct([pa.field("generation", pa.uint64()), pa.field("path", pa.string())])
)
_FILE_VERSION = "2.0"


def build_snapshot(
    location: TableLocation,
    *,
    run: TaskRunner = run_in_process,
    clock: Callable[[], float] = time.time,
) -> JobResult:
    """Read every region's manifest and publish what they say.

    Regions that are claimed or flushed while the manifests are read may be in the snapshot or
    not: it is a hint for readers, never the truth.

    Parameters
    ----------
    run : callable
        Runs the one task that this is.
    clock : callable
        Seconds since the epoch.
    """
    started = time.monotonic()
    outcome: JobResult
    (outcome,) = run([SnapshotTask(location, clock)], run_snapshot_task)
    return replace(outcome, seconds=time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class SnapshotTask:
    """A table whose regions are read."""

    location: TableLocation
    clock: Callable[[], float]


def run_snapshot_task(task: SnapshotTask) -> JobResult:
    """Read all manifests and commit the snapshot. Repeating it is harmless."""
    location, clock = task.location, task.clock
    taken_at = int(clock() * 1000)
    manifests = read_manifests(location.store)
    rows = snapshot_rows(manifests.values())
    data = _lance_file(rows)

    def change(base: BaseTable) -> IndexDetails:
        if base.details.snapshot_ts_millis > taken_at:
            # A newer snapshot landed while this one was read.
            return base.details
        return replace(
            base.details,
            snapshot_ts_millis=taken_at,
            num_regions=len(manifests),
            inline_snapshots=data,
        )

    base = update_details(location, change)
    return JobResult(
        job="snapshot",
        table=location.uri,
        version=base.version,
        tasks=1,
        commits=int(base.details.snapshot_ts_millis == taken_at),
        figures={"regions": len(manifests), "bytes": len(data)},
    )


def snapshot_rows(manifests: Iterable[RegionManifest]) -> pa.Table:
    """One row per region, with a column per manifest field and one per region value."""
    found = sorted(manifests, key=lambda manifest: manifest.region_id)
    columns: dict[str, pa.Array] = {
        "region_id": pa.array([m.region_id.bytes for m in found], pa.binary(16)),
        "version": pa.array([m.version for m in found], pa.uint64()),
        "region_spec_id": pa.array([m.spec_id for m in found], pa.uint32()),
        "writer_epoch": pa.array([m.writer_epoch for m in found], pa.uint64()),
        "replay_after_wal_entry_position": pa.array([m.replay_after for m in found], pa.uint64()),
        "wal_entry_position_last_seen": pa.array([m.wal_last_seen for m in found], pa.uint64()),
        "current_generation": pa.array([m.current_generation for m in found], pa.uint64()),
        "flushed_generations": pa.array(
            [
                [{"generation": f.generation, "path": f.path} for f in manifest.flushed]
                for manifest in found
            ],
            _FLUSHED_TYPE,
        ),
    }
    values = [dict(manifest.region_fields) for manifest in found]
    for field_id in sorted({name for fields in values for name in fields}):
        columns[f"region_field_{field_id}"] = pa.array(
            [fields.get(field_id) for fields in values], pa.binary()
        )
    return pa.table(columns)


def _lance_file(rows: pa.Table) -> bytes:
    """The bytes of a Lance file, which only exists as a file until it is read back."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.lance")
        with LanceFileWriter(str(path), rows.schema, version=_FILE_VERSION) as writer:
            writer.write_batch(rows)
        return path.read_bytes()
