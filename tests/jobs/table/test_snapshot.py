"""Publishing the state of all regions in the MemWAL index."""

import tempfile
from dataclasses import replace
from datetime import timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance.file import LanceFileReader
from support.data.merging import elsewhere
from support.data.tables import REGION, SCHEMA, MakeTable, keys, later, numbered, rows, state
from support.stores.faulty_store import REGION_MANIFEST, TABLE_MANIFEST, FaultyStores

import memwal
from memwal.base_table.commit import update_details
from memwal.base_table.region_snapshot import external_key, read_snapshot
from memwal.errors import CorruptDataError, OutcomeUnknownError
from memwal.format.paths import manifest_key
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.options import SnapshotOptions
from memwal.jobs.table import snapshot
from memwal.jobs.table.snapshot import build_snapshot
from memwal.region.manifest_store import RegionManifestStore, read_manifests


def without_sizes(manifest: RegionManifest) -> RegionManifest:
    """What a snapshot keeps of a manifest, without the hint, which may be newer there."""
    return replace(
        manifest,
        wal_last_seen=0,
        flushed=tuple(
            replace(f, rows=None, memory_bytes=None, key_bytes=None) for f in manifest.flushed
        ),
    )


def published(table: memwal.Table) -> list[RegionManifest]:
    found = read_snapshot(table.location.store, table.base().details) or {}
    return [replace(manifest, wal_last_seen=0) for manifest in found.values()]


def stored(table: memwal.Table) -> list[RegionManifest]:
    manifests = read_manifests(table.location.store).values()
    return sorted(map(without_sizes, manifests), key=lambda manifest: manifest.region_id)


def flush(table: memwal.Table, n: int) -> None:
    table.upsert(numbered(0, 20, n=n))


def test_says_what_the_manifests_say(make_table: MakeTable) -> None:
    table = make_table(buckets=3)
    flush(table, 0)
    flush(table, 1)

    result = build_snapshot(table.location, clock=lambda: 1234.5)

    assert published(table) == stored(table)
    assert len(stored(table)) == 3
    details = table.base().details
    assert (details.num_regions, details.snapshot_ts_millis) == (3, 1_234_500)
    assert result.metrics["regions"] == 3
    assert result.commits == 1
    assert result.version == table.base().version


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (memwal.RegionSpec.bucket("id", 8), 8),
        (memwal.RegionSpec.unsharded(), 1),
        (memwal.RegionSpec.identity("id"), 0),
        (None, 0),
    ],
)
def test_leaves_the_number_of_regions_that_lance_recorded(
    tmp_path: Path, spec: memwal.RegionSpec | None, count: int
) -> None:
    uri = str(tmp_path / "table")
    table = memwal.create(uri, SCHEMA, primary_key=["id"], region_spec=spec)
    assert table.base().details.num_regions == count
    with table.writer(region=None if spec else REGION) as writer:
        writer.upsert(rows({1: 1, 2: 2}))
    table.build_snapshot()
    assert table.base().details.num_regions == count
    if count:
        # What versions that stored the number of regions that exist have left behind.
        update_details(table.location, lambda base: replace(base.details, num_regions=2))
        table.build_snapshot()
        assert table.base().details.num_regions == count
    assert table.verify().findings == ()


def test_of_a_table_without_regions_is_empty(make_table: MakeTable) -> None:
    table = make_table(buckets=3)
    assert published(table) == []

    table.build_snapshot()

    assert published(table) == []
    assert table.base().details.num_regions == 3


def test_an_older_one_does_not_replace_a_newer_one(make_table: MakeTable) -> None:
    table = make_table(buckets=2)
    flush(table, 0)
    build_snapshot(table.location, clock=lambda: 1010.0)
    newer = published(table)
    flush(table, 1)

    result = build_snapshot(table.location, clock=lambda: 1000.0)

    assert published(table) == newer
    assert table.base().details.snapshot_ts_millis == 1_010_000
    assert result.commits == 0


def test_one_of_a_clock_that_was_far_ahead_is_replaced(make_table: MakeTable) -> None:
    """It would stand until all clocks are where that one was."""
    table = make_table(buckets=2)
    flush(table, 0)
    build_snapshot(table.location, clock=later(86_400))
    flush(table, 1)

    result = table.build_snapshot()

    assert published(table) == stored(table)
    assert result.commits == 1


@pytest.mark.parametrize("after", [False, True], ids=["not there", "there"])
def test_a_commit_whose_outcome_stays_unknown_is_reported(
    faults: FaultyStores, make_table: MakeTable, after: bool
) -> None:
    table = make_table()
    flush(table, 0)
    store = faults.of(table.location)
    store.fail("create", TABLE_MANIFEST, after=after)
    store.fail("create", TABLE_MANIFEST, times=100)

    with pytest.raises(OutcomeUnknownError):
        table.build_snapshot()

    store.clear()
    assert bool(published(table)) == after
    table.build_snapshot()
    assert published(table) == stored(table)


def test_a_damaged_manifest_publishes_nothing(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        writer.delete(keys(2))
    (region,) = table.region_ids()
    for version in range(1, 5):
        if table.location.store.exists(manifest_key(region, version)):
            table.location.store.put(manifest_key(region, version), b"\xff")
    version = table.base().version

    with pytest.raises(CorruptDataError):
        table.build_snapshot()

    assert table.base().version == version


def test_many_regions_are_kept_in_a_file_of_their_own(make_table: MakeTable) -> None:
    table = make_table(buckets=5, maintained_indexes=["id_idx"])
    flush(table, 0)

    build_snapshot(table.location, SnapshotOptions(inline_regions=4))

    details = table.base().details
    key = external_key(details)
    assert key is not None
    # At this very version the identity of the index leads there, as the format wants it.
    index = table.base().index
    assert index is not None
    assert key == f"_indices/{index.uuid}/index.lance"
    assert details.num_regions == 5
    assert published(table) == stored(table)
    rows = lance_rows(table.location.store.get(key))
    assert rows.column("shard_id").to_pylist() == [str(m.region_id) for m in published(table)]
    assert rows.column("region_field_bucket").type == pa.int32()
    table.merge()
    table.build_indexes()
    # Lance has given the index other identities since.
    assert len(published(table)) == 5
    assert table.at_most(timedelta(hours=1)).count_rows() == 20


def test_a_file_that_is_gone_is_no_snapshot(make_table: MakeTable) -> None:
    table = make_table(buckets=5)
    flush(table, 0)
    build_snapshot(table.location, SnapshotOptions(inline_regions=4))
    key = external_key(table.base().details)
    assert key is not None
    table.location.store.delete(key)

    assert read_snapshot(table.location.store, table.base().details) is None
    assert table.at_most(timedelta(hours=1)).count_rows() == 20
    table.build_snapshot()
    assert published(table) == stored(table)


def test_a_loop_of_links_in_its_place_is_told_and_keeps_nobody_from_reading(
    make_table: MakeTable,
) -> None:
    table = make_table(buckets=5, maintained_indexes=["id_idx"])
    flush(table, 0)
    build_snapshot(table.location, SnapshotOptions(inline_regions=4))
    file = Path(table.uri) / (external_key(table.base().details) or "")
    file.unlink()
    file.symlink_to(file.name)

    with pytest.raises(CorruptDataError):
        read_snapshot(table.location.store, table.base().details)
    assert table.status().regions
    assert state(table) == dict.fromkeys(range(20), 0)


def test_is_read_in_few_tasks(make_table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_TASK_REGIONS", 10)
    table = make_table(buckets=25)
    with table.writer() as writer:
        writer.claim()
    sizes: list[int] = []

    def run(tasks: Any, function: Any) -> list[Any]:
        sizes.extend(len(task.regions) for task in tasks)
        return elsewhere(tasks, function)

    result = build_snapshot(table.location, SnapshotOptions(max_tasks=8, run=run))

    assert sorted(sizes) == [8, 8, 9]
    assert result.tasks == 3
    assert published(table) == stored(table)


def test_tells_the_manifest_where_the_log_ends(make_table: MakeTable) -> None:
    table = make_table()
    writer = table.writer()
    for number in range(80):
        writer.upsert(rows({number: number}))

    result = table.build_snapshot()

    (region,) = read_manifests(table.location.store)
    manifest = RegionManifestStore(table.location.store, region).read_latest()
    assert manifest is not None
    # One less than the newest entry, which could be torn.
    assert manifest.wal_last_seen == writer.stats().regions[0].next_position - 2
    assert result.metrics["hints"] == 1
    writer.upsert(rows({100: 100}))
    writer.close()
    assert state(table) == {number: number for number in (*range(80), 100)}
    assert table.build_snapshot().metrics["hints"] == 0


def test_the_log_is_durable_before_the_manifest_says_how_long_it_is(
    faults: FaultyStores, make_table: MakeTable
) -> None:
    table = make_table()
    with table.writer() as writer:
        for number in range(80):
            writer.upsert(rows({number: number}))
        store = faults.of(table.location)
        store.clear()

        assert table.build_snapshot().metrics["hints"] == 1

    names = [name for name, key in store.calls if fnmatch(key, REGION_MANIFEST) or not key]
    assert names.index("barrier") < names.index("create")


def lance_rows(data: bytes) -> pa.Table:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.lance")
        path.write_bytes(data)
        return LanceFileReader(str(path)).read_all().to_table()
