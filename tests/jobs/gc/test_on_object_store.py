"""Collecting on an object store, where nothing is a folder and deletes go in batches."""

import pytest
from lance.mem_wal import LsmScanner
from support.data.tables import (
    REGION,
    SCHEMA,
    flush,
    generations,
    keys,
    log,
    region_folders,
    rows,
    state,
)
from support.faults.collecting import DAY, collect
from support.oracles import native
from support.stores.faulty_store import FaultyStores
from support.stores.s3_emulator import S3Emulator

import memwal
from memwal.format.paths import region_dir
from memwal.jobs.gc import GarbageKind, Reason


@pytest.fixture
def table(emulator: S3Emulator, faults: FaultyStores) -> memwal.Table:
    return memwal.create(
        f"s3://{emulator.create_bucket()}/lake/t.lance",
        SCHEMA,
        primary_key=["id"],
        region_spec="unsharded",
        maintained_indexes=["id_idx"],
        storage_options=emulator.storage_options,
    )


def natively(table: memwal.Table) -> dict[int, int | None]:
    """What Lance's own scanner shows."""
    scanner = LsmScanner.from_snapshots(table.base().dataset, native.snapshots(table))
    return state(scanner.to_table())


def test_everything_that_may_goes(table: memwal.Table, faults: FaultyStores) -> None:
    with table.writer() as writer:
        for key in range(30):
            writer.upsert(rows({key: key}))
        writer.delete(keys(0))
        writer.flush()
    flush(table, {1: 11})
    assert table.checkpoint().warnings == ()
    flush(table, {2: 22})
    store = table.location.store
    store.put(f"{region_dir(REGION)}/0badf00d_gen_9/data/x.lance", b"rest of a flush")
    store.put("_indices/0b5d6f4e-9c1d-4a3d-8a53-0b5d6f4e9c1d/x.lance", b"rest of a build")
    store.put("_versions/18446744073709551000.manifest-0b5d6f4e", b"rest of a commit")
    expected = {**{key: key for key in range(1, 30)}, 1: 11, 2: 22}

    first = collect(table, 8 * DAY, explain=True)
    assert first.warnings == ()
    assert first.metrics["generations_dropped"] == 2
    assert first.metrics["orphaned_folders"] == 1
    assert first.metrics["index_files"] == 1
    assert first.metrics["staging_files"] == 1
    assert {d.reason for d in first.decisions if d.kind is GarbageKind.GENERATION} == {
        Reason.UNNEEDED,
        Reason.NOT_MERGED,
    }
    before = len(log(table))
    faults.of(table.location).clear()
    second = collect(table, 10 * DAY)
    assert second.warnings == ()
    assert second.metrics["folders"] == 2
    assert second.metrics["log_entries"] == before - len(log(table)) > 30
    assert faults.of(table.location).count("barrier") == 1
    assert generations(table) == [3]
    assert len(region_folders(table)) == 1
    # The fence of the writer whose generation is kept, and its entry.
    assert sorted(log(table)) == [before - 1, before]
    assert state(table) == natively(table) == expected

    assert table.checkpoint().warnings == ()
    for step in (12, 14):
        assert collect(table, step * DAY, version_retention_seconds=0).warnings == ()
    assert region_folders(table) == set()
    assert len(log(table)) == 1
    assert state(table) == natively(table) == expected
