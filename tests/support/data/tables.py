"""Small tables, rows for them, and what a test wants to know of a table's folder."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

import memwal
from memwal.format.paths import parse_wal_name, region_dir, wal_dir, wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_entry import WalEntry, decode_entry
from memwal.jobs.gc import CollectionResult
from memwal.jobs.merge.job import MergeTask, merge_tasks, plan_merge
from memwal.jobs.options import MergeOptions
from memwal.region.manifest_store import RegionManifestStore
from memwal.region.router import UNSHARDED_ID

REGION = UNSHARDED_ID
"""The one region of an unsharded table."""

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64()), ("text", pa.string())]
)
"""Of the tables that ``make_table`` makes unless told otherwise."""

Rows = dict[int, int | None]
"""Key to number, of rows of :data:`SCHEMA`."""

MakeTable = Callable[..., memwal.Table]
"""Of the fixture ``make_table``."""


def rows(values: Mapping[int, int | None]) -> pa.Table:
    """Rows of :data:`SCHEMA`: key to number, and a text made from both."""
    return pa.table(
        {
            "id": list(values.keys()),
            "n": list(values.values()),
            "text": [f"{key}={n}" for key, n in values.items()],
        },
        schema=SCHEMA,
    )


def keys(*values: int) -> pa.Array:
    """Keys of :data:`SCHEMA`."""
    return pa.array(values, pa.int64())


def flush(table: memwal.Table, *parts: Rows | list[int]) -> None:
    """Flush a generation for each part: rows, or a list of keys that are deleted."""
    with table.writer() as writer:
        for part in parts:
            if isinstance(part, list):
                writer.delete(keys(*part))
            else:
                writer.upsert(rows(part))
            writer.flush()


def flush_and_merge(table: memwal.Table, *parts: Rows | list[int]) -> None:
    """Flush a generation for each part, and merge them."""
    flush(table, *parts)
    table.merge()


def state(found: pa.Table | memwal.Table | Any) -> dict[int, int | None]:
    """Key to number, of a result or of all that a table or a writer shows.

    A key that is shown twice, or a row whose columns do not belong together, is an error.
    """
    table = found if isinstance(found, pa.Table) else found.scan().to_table()
    ids = table.column("id").to_pylist()
    numbers = table.column("n").to_pylist()
    assert len(set(ids)) == len(ids), f"keys shown twice: {sorted(ids)}"
    for key, number, text in zip(ids, numbers, table.column("text").to_pylist(), strict=True):
        assert text == f"{key}={number}", f"the row of {key} is mixed up: {number}, {text}"
    return dict(zip(ids, numbers, strict=True))


def base_state(table: memwal.Table) -> dict[int, int | None]:
    """What the base table alone holds."""
    return state(table.base().dataset.to_table())


def manifests(table: memwal.Table, region_id: UUID = REGION) -> RegionManifestStore:
    """The manifests of a region."""
    return RegionManifestStore(table.location.store, region_id)


def manifest(table: memwal.Table, region_id: UUID = REGION) -> RegionManifest:
    """The newest manifest of a region."""
    found = manifests(table, region_id).read_latest()
    assert found is not None
    return found


def generations(table: memwal.Table, region_id: UUID = REGION) -> list[int]:
    """Numbers of the flushed generations that the manifest names."""
    return [flushed.generation for flushed in manifest(table, region_id).flushed]


def log(table: memwal.Table, region_id: UUID = REGION) -> dict[int, WalEntry]:
    """Every entry of a region's log, by position."""
    found = {}
    for info in table.location.store.list(wal_dir(region_id)):
        position = parse_wal_name(info.key.rpartition("/")[2])
        assert position is not None
        found[position] = decode_entry(table.location.store.get(info.key), name=info.key)
    return dict(sorted(found.items()))


def manifest_versions(table: memwal.Table, region_id: UUID = REGION) -> list[int]:
    """Stored versions of a region's manifest."""
    return sorted(manifests(table, region_id).list_versions())


def folder(table: memwal.Table) -> Path:
    """Folder of a local table."""
    path = table.location.local_path
    assert path is not None
    return path


def listing(path: Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder with its size and time, to see whether anything was written."""
    return {
        str(file.relative_to(path)): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def age(table: memwal.Table, seconds: float, *, pattern: str = "_mem_wal/**/*") -> None:
    """Make files older than they are."""
    for file in folder(table).glob(pattern):
        status = file.stat()
        os.utime(file, (status.st_atime, status.st_mtime - seconds))


def later(seconds: float) -> Callable[[], float]:
    """A clock that is ahead."""
    return lambda: time.time() + seconds


def region_folders(table: memwal.Table, region_id: UUID = REGION) -> set[str]:
    """Folders of generations that are stored, named by the manifest or not."""
    names = table.location.store.list_folders(region_dir(region_id))
    return {name for name in names if "_gen_" in name}


def numbered(start: int, count: int, n: int = 0) -> pa.Table:
    """Rows with consecutive keys."""
    return rows(dict.fromkeys(range(start, start + count), n))


def collect_now(table: memwal.Table, **options: Any) -> CollectionResult:
    """Collect for good what would be kept for a retention and a grace period."""
    return table.collect_garbage(dry_run=False, grace_seconds=0, retention_seconds=0, **options)


def undivided_tasks(
    table: memwal.Table, options: MergeOptions = MergeOptions()
) -> tuple[MergeTask, ...]:
    """Return the tasks of a merge that is not divided."""
    return merge_tasks(table.location, plan_merge(table.location, options), options)


def merged(table: memwal.Table, region_id: UUID = REGION) -> int:
    """Newest generation that the base table has."""
    return table.base().details.merged.get(region_id, 0)


def append_foreign(
    table: memwal.Table, batch: pa.RecordBatch, *, generation: int | None = None
) -> int:
    """Append an entry as a client does that checks nothing, and return its position."""
    newest = manifest(table)
    metadata = {
        "writer_epoch": str(newest.writer_epoch),
        "generation": str(generation or newest.current_generation),
    }
    schema = batch.schema.with_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch.replace_schema_metadata(metadata))
    position = max(log(table), default=0) + 1
    table.location.store.create(wal_key(REGION, position), sink.getvalue().to_pybytes())
    return position


def without_key(values: Mapping[int, int], *lacking: int) -> pa.RecordBatch:
    """Rows of :data:`SCHEMA`, of which some, by their numbers, have a null key."""
    whole = rows(values)
    ids = [None if number in lacking else key for number, key in enumerate(values)]
    columns = [pa.array(ids, pa.int64()), *(c.combine_chunks() for c in whole.columns[1:])]
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)
