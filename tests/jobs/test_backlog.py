"""Reading a table's backlog."""

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from support.data.tables import REGION, MakeTable, age, folder, later, numbered, rows
from support.faults.collecting import collect
from support.stores.faulty_store import FaultyStores

import memwal
from memwal.base_table.region_snapshot import MAX_CLOCK_SKEW_SECONDS, snapshot_age
from memwal.errors import CorruptDataError, TableSetupError
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import manifest_key
from memwal.jobs.backlog import read_status
from memwal.jobs.table.snapshot import build_snapshot
from memwal.region import manifest_store
from memwal.storage.location import TableLocation


def test_of_a_new_table_is_empty(make_table: MakeTable) -> None:
    table = make_table(buckets=4, maintained_indexes=["id_idx"])

    found = table.status()

    assert found.regions == ()
    assert (found.unwritten_regions, found.region_count) == (4, 4)
    assert (found.backlog_generations, found.backlog_rows, found.backlog_bytes) == (0, 0, 0)
    assert [(lag.name, lag.generations, lag.regions) for lag in found.indexes] == [("id_idx", 0, 0)]
    assert found.snapshot_age_seconds is None
    assert found.uri == table.uri


def test_counts_what_is_where(make_table: MakeTable) -> None:
    table = make_table(maintained_indexes=["id_idx"])
    writer = table.writer()
    for turn in range(3):
        writer.upsert(numbered(0, 10, n=turn))
        writer.flush()
    table.merge(commit_bytes=1)
    writer.upsert(numbered(0, 7))
    writer.flush()
    writer.upsert(rows({1: 1}))
    writer.upsert(rows({2: 2}))
    writer.abort()

    found = table.status()

    (region,) = found.regions
    assert region.region_id == str(REGION)
    assert (region.writer_epoch, region.sealed) == (1, False)
    assert (region.current_generation, region.merged_generation) == (5, 3)
    assert (region.backlog_generations, region.backlog_rows) == (1, 7)
    assert region.backlog_bytes > 0
    assert region.unflushed_wal_entries == 2
    assert region.retained_generations == 3
    assert [(lag.name, lag.generations, lag.regions) for lag in found.indexes] == [("id_idx", 3, 1)]
    assert found.to_dict()["backlog_rows"] == 7
    named = [
        Path(table.uri) / "data" / file.path
        for fragment in table.base().dataset.get_fragments()
        for file in fragment.data_files()
    ]
    assert found.base_bytes == sum(file.stat().st_size for file in named) > 0
    table.checkpoint()
    after = table.status()
    assert (region.reclaimable_generations, region.reclaimable_bytes) == (0, 0)
    assert after.regions[0].reclaimable_generations == 4
    assert after.to_dict()["reclaimable_bytes"] == after.reclaimable_bytes > 0
    assert after.backlog_generations == 0
    assert after.indexes[0].generations == 0


def test_the_age_is_of_the_oldest_generation(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        writer.flush()
        age(table, 1000)
        writer.upsert(rows({2: 2}))
    (region,) = read_status(table.location, clock=later(100)).regions
    assert region.oldest_backlog_seconds is not None
    assert 1099 < region.oldest_backlog_seconds < 1400
    table.merge()
    (region,) = table.status().regions
    assert region.oldest_backlog_seconds is None


def test_the_age_is_never_below_zero(table: memwal.Table) -> None:
    table.upsert(rows({1: 1}))
    table.build_snapshot()
    found = read_status(table.location, clock=later(-30))
    assert found.regions[0].oldest_backlog_seconds == 0
    assert found.snapshot_age_seconds == 0


def test_the_age_of_the_snapshot(table: memwal.Table) -> None:
    table.build_snapshot()
    found = read_status(table.location, clock=later(500))
    assert found.snapshot_age_seconds is not None
    assert 499 < found.snapshot_age_seconds < 800


def test_a_snapshot_may_be_as_far_ahead_as_clocks_may_differ() -> None:
    details = IndexDetails(snapshot_ts_millis=1_000_000)
    assert snapshot_age(details, 1_000 - MAX_CLOCK_SKEW_SECONDS) == 0
    assert snapshot_age(details, 999.9 - MAX_CLOCK_SKEW_SECONDS) is None
    assert snapshot_age(details, 1_005) == 5
    assert snapshot_age(IndexDetails(), 1_005) is None


def test_a_snapshot_of_a_clock_that_was_far_ahead_is_none(table: memwal.Table) -> None:
    """Else none would be due until all clocks are there."""
    build_snapshot(table.location, clock=later(86_400))
    assert table.status().snapshot_age_seconds is None


def test_regions_that_changed_since_the_snapshot(make_table: MakeTable) -> None:
    table = make_table(buckets=2)
    assert table.status().changed_regions == 0
    with table.writer() as writer:
        writer.upsert(numbered(0, 20))
        writer.flush()
        assert table.status().changed_regions == 2
        table.build_snapshot()
        assert table.status().changed_regions == 0
        writer.upsert(rows({1: 1}))
        writer.flush()
        assert table.status().changed_regions == 1
    assert table.status(regions=table.region_ids()[:1]).changed_regions is None


def test_rows_that_an_index_does_not_cover(make_table: MakeTable) -> None:
    table = make_table(maintained_indexes=["id_idx"])
    with table.writer() as writer:
        writer.upsert(numbered(0, 20))
        writer.flush()
        table.merge()
        assert [lag.rows for lag in table.status().indexes] == [20]
        table.build_indexes()
        assert [lag.rows for lag in table.status().indexes] == [0]
        writer.upsert(numbered(15, 10))
        writer.flush()
        table.merge()
    # Five were updated, five are new.
    assert [lag.rows for lag in table.status().indexes] == [10]


@pytest.mark.parametrize("missing", [False, True])
def test_an_index_whose_files_are_not_whole(make_table: MakeTable, missing: bool) -> None:
    table = make_table(buckets=1, maintained_indexes=["id_idx"])
    table.upsert(numbered(0, 100))
    table.checkpoint()
    assert [index.damaged for index in table.status().indexes] == [False]
    for file in (folder(table) / "_indices").glob("*/page_lookup.lance"):
        if missing:
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-1])
    assert [index.damaged for index in table.status().indexes] == [True]
    table.build_indexes()
    assert [index.damaged for index in table.status().indexes] == [False]


def test_fragments_that_could_be_joined(table: memwal.Table) -> None:
    assert table.status().small_fragments == 0
    for start in (0, 20, 40):
        table.upsert(numbered(start, 20))
        table.merge()
    assert table.status().small_fragments == 3
    table.compact(min_fragments=2)
    assert table.status().small_fragments == 0


def test_deleted_rows_that_are_still_stored(table: memwal.Table) -> None:
    assert table.status().deleted_percent == 0
    for start, count in ((0, 20), (5, 10)):
        table.upsert(numbered(start, count))
        table.merge()
    status = table.status()
    assert (status.base_rows, status.deleted_rows) == (20, 10)
    assert status.deleted_percent == pytest.approx(100 * 10 / 30)
    table.compact()
    assert table.status().deleted_percent == 0


def test_memory_that_reads_keep(table: memwal.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.upsert(numbered(0, 1_000))
    before = table.status()
    assert before.read_cache_bytes is not None
    assert table.scan().count_rows() == 1_000
    monkeypatch.setenv("MEMWAL_READ_CACHE_BYTES", str(1 << 30))
    after = table.status()
    assert after.read_cache_bytes is not None
    # At least the keys.
    assert after.read_cache_bytes >= before.read_cache_bytes + 8 * 1_000
    assert after.read_cache_budget == 1 << 30
    assert after.to_dict()["read_cache_budget"] == 1 << 30


def test_only_the_regions_asked_for(make_table: MakeTable) -> None:
    table = make_table(buckets=3)
    with table.writer() as writer:
        writer.claim()
    first = table.region_ids()[0]
    found = table.status(regions=[first, uuid4()])
    assert [region.region_id for region in found.regions] == [str(first)]


def test_regions_are_counted_before_their_first_write(make_table: MakeTable) -> None:
    table = make_table(buckets=3)
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
    found = table.status()
    assert (len(found.regions), found.unwritten_regions, found.region_count) == (1, 2, 3)
    only = table.status(regions=[UUID(found.regions[0].region_id)])
    assert only.region_count == 1


def test_the_log_is_counted_behind_what_was_collected(table: memwal.Table) -> None:
    with table.writer() as writer:
        for key in range(5):
            writer.upsert(rows({key: key}))
    table.merge()
    for step in (1, 2, 3):
        collect(table, step * 86_400)
    writer = table.writer()
    writer.upsert(rows({9: 9}))
    writer.abort()

    (region,) = table.status().regions

    # The sentinel of the claim, and the write.
    assert region.unflushed_wal_entries == 2
    assert region.retained_generations == 0


def test_a_damaged_region_is_an_error(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.claim()
    table.location.store.put(manifest_key(REGION, 1), b"\xff\xff")
    with pytest.raises(CorruptDataError):
        table.status()


def test_a_table_that_is_not_there_is_an_error() -> None:
    with pytest.raises(TableSetupError):
        read_status(TableLocation("/nowhere/at/all"))


def test_a_look_a_moment_later_takes_fewer_requests(
    faults: FaultyStores, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(buckets=3)
    table.upsert(numbered(0, 30))
    store = faults.of(table.location)

    def requests() -> list[tuple[str, str]]:
        store.clear()
        table.status()
        return [call for call in store.calls if call[1].startswith("_mem_wal/")]

    requests()
    # The ages of generations that were met before are known.
    assert len(requests()) == 3 * 3
    monkeypatch.setattr(manifest_store, "RECENT_SECONDS", 0)
    assert len(requests()) == 3 * 4
    writer = table.writer()
    writer.upsert(numbered(0, 30))
    writer.close()
    assert table.status().backlog_generations == 6
