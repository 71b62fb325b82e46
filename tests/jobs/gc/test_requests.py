"""What a collection costs: requests a region, in a table of many, and with long histories."""

import tracemalloc
from collections import Counter
from dataclasses import replace
from uuid import UUID, uuid5

import pytest
from support.data.tables import REGION, MakeTable, manifest_versions, region_folders
from support.faults.collecting import DAY, collect
from support.stores.faulty_store import FaultyStore, FaultyStores

import memwal
from memwal.base_table.commit import update_details
from memwal.base_table.snapshot import BaseTable
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import generation_dir, generation_name, manifest_key, wal_key
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.jobs.gc.wal import list_log
from memwal.jobs.job import JobResult
from memwal.region.manifest_store import RegionManifestStore

REGIONS = 300
FLUSHES = 2
FILES = 2


def region(number: int) -> UUID:
    return uuid5(REGION, str(number))


def flushed(region_id: UUID, generation: int) -> FlushedGeneration:
    path = generation_name(generation, f"{generation:08x}")
    return FlushedGeneration(region_id=region_id, generation=generation, path=path)


def make_region(table: memwal.Table, region_id: UUID, *, flushes: int = FLUSHES) -> None:
    """A region with so many flushes, an entry each; of its folders only the names matter here."""
    store = table.location.store
    for turn in range(flushes + 1):
        manifest = RegionManifest(
            region_id=region_id,
            version=turn + 1,
            writer_epoch=1,
            current_generation=turn + 1,
            replay_after=turn,
            wal_last_seen=turn,
            flushed=tuple(flushed(region_id, generation) for generation in range(1, turn + 1)),
        )
        store.create(manifest_key(region_id, manifest.version), manifest.encode())
        store.create(wal_key(region_id, turn + 1), b"entry")
    for generation in range(1, flushes + 1):
        folder = generation_dir(region_id, flushed(region_id, generation).path)
        for number in range(FILES):
            store.create(f"{folder}/data/{number}.lance", b"rows")
    RegionManifestStore(store, region_id).refresh_hint(flushes + 1)


def mark_merged(table: memwal.Table, merged: dict[UUID, int]) -> None:
    """Record progress; the rows themselves do not matter here."""

    def change(latest: BaseTable) -> IndexDetails:
        return replace(latest.details, merged=merged)

    update_details(table.location, change)


@pytest.fixture
def many(quick_faults: FaultyStores, make_table: MakeTable) -> tuple[memwal.Table, FaultyStore]:
    """A table of many regions, all of them merged."""
    table = make_table()
    for number in range(REGIONS):
        make_region(table, region(number))
    mark_merged(table, {region(number): FLUSHES for number in range(REGIONS)})
    store = quick_faults.of(table.location)
    store.clear()
    return table, store


def per_region(store: FaultyStore) -> Counter[str]:
    """Requests a region, by kind; deletes of log entries are one request a thousand."""
    counts = Counter(
        "delete_many" if operation == "delete" and "/wal/" in key else operation
        for operation, key in store.calls
        if key.startswith("_mem_wal/") and not (operation == "delete" and "_gen_" in key)
    )
    if "delete_many" in counts:
        counts["delete_many"] = sum(o == "list" and k.endswith("/wal") for o, k in store.calls)
    return Counter({operation: round(n / REGIONS, 1) for operation, n in counts.items()})


def collected(table: memwal.Table, seconds: float, **options: object) -> JobResult:
    return collect(table, seconds, max_tasks=4, **options)


def test_requests_of_a_region(many: tuple[memwal.Table, FaultyStore]) -> None:
    table, store = many
    planned = collected(table, DAY, dry_run=True)
    assert planned.metrics["generations_dropped"] == REGIONS * FLUSHES
    # Folders, manifests and log are listed; the newest manifest is read, and older ones to find
    # out from where on the log is needed; the hint shows whether the newest one is lost.
    assert per_region(store) == {"list_folders": 1.0, "list": 2.0, "get": 4.0}, per_region(store)

    store.clear()
    dropped = collected(table, DAY)
    assert dropped.warnings == ()
    assert dropped.tasks == 4
    counts = per_region(store)
    assert counts.pop("delete", 0) == 0, "what this run drops it cannot delete"
    assert sum(counts.values()) <= 17, counts

    store.clear()
    metrics = collected(table, 3 * DAY).metrics
    assert metrics["folders"] == REGIONS * FLUSHES
    assert metrics["log_entries"] == REGIONS * FLUSHES
    assert metrics["manifests"] == REGIONS * (FLUSHES + 1)
    counts = per_region(store)
    # A listing for each folder, two deletes, and one for each manifest: once for each of them.
    assert counts["list"] == 2 + FLUSHES
    assert counts["delete_folder"] == FLUSHES
    assert counts["delete"] == FLUSHES + 1
    rest = sum(counts.values()) - counts["list"] - counts["delete_folder"] - counts["delete"]
    assert rest <= 5, counts

    store.clear()
    idle = collected(table, 5 * DAY)
    assert set(idle.metrics.values()) == {0}
    assert sum(per_region(store).values()) <= 5, per_region(store)


def test_requests_of_the_table_do_not_grow_with_its_regions(
    many: tuple[memwal.Table, FaultyStore],
) -> None:
    table, store = many
    collected(table, DAY, dry_run=True)
    others = [call for call in store.calls if not call[1].startswith("_mem_wal/")]
    assert len(others) < 30, others
    # Tags and branches are listed and read, and looked at again before every 64 regions of each of
    # four tasks.
    assert store.count("list", "_refs") == 2 + 4 * 2


def test_a_long_history_is_not_read_whole(
    quick_faults: FaultyStores, make_table: MakeTable
) -> None:
    """Of many flushes most are merged: where the log is needed from is found by bisection."""
    table = make_table()
    make_region(table, REGION, flushes=200)
    mark_merged(table, {REGION: 120})
    collect(table, DAY)
    store = quick_faults.of(table.location)
    store.clear()

    result = collect(table, 3 * DAY)

    assert result.metrics["folders"] == 120
    assert result.metrics["log_entries"] == 120
    assert store.count("get", "_mem_wal/*/manifest/*.binpb") <= 12
    assert manifest_versions(table)[0] == 121
    assert len(region_folders(table)) == 80


def test_memory_does_not_grow_with_the_objects(
    quick_faults: FaultyStores, make_table: MakeTable
) -> None:
    """A long log takes some bytes an entry, not an object each."""
    table = make_table()
    make_region(table, REGION, flushes=1)
    store = quick_faults.of(table.location)
    for position in range(3, 3003):
        store.inner.put(wal_key(REGION, position), b"")
    tracemalloc.start()
    try:
        entries = list_log(store, REGION)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    listed = 3002
    assert len(entries) == listed
    # The local store itself lists a folder at once, which is where most of this goes.
    assert entries.nbytes == 24 * listed
    assert peak < 2000 * listed


def test_explanations_cost_a_listing_for_each_generation(
    many: tuple[memwal.Table, FaultyStore],
) -> None:
    table, store = many
    result = collect(
        table, DAY, dry_run=True, explain=True, retention_seconds=2_592_000, max_tasks=2
    )
    assert len(result.decisions) == REGIONS * (FLUSHES + 3)
    assert per_region(store)["list"] == 2.0 + FLUSHES
