"""Status tells which regions have rows of writers that are closed or dead."""

import os
import time
from pathlib import Path

import pytest
from support.data.tables import REGION, MakeTable, folder, log, rows
from support.stores.faulty_store import FaultyStores
from support.waiting import until

import memwal
from memwal.format.paths import manifest_dir, wal_dir, wal_key
from memwal.jobs.backlog import read_status
from memwal.jobs.unflushed import LOG_CHECK_SECONDS, find_missing_entry
from memwal.region.manifest_store import read_manifests


def age(table: memwal.Table, part: str, seconds: float) -> None:
    """Let the objects of a part of the region be older."""
    at = time.time() - seconds
    for path in (folder(table) / part).iterdir():
        os.utime(path, (at, at))


def test_a_region_that_was_closed_needs_none(make_table: MakeTable) -> None:
    table = make_table()
    with table.writer() as writer:
        writer.claim()
        writer.upsert(rows({1: 1}))

    (region,) = read_status(table.location, clock=lambda: time.time() + 3600).regions
    assert (region.oldest_unflushed_seconds, region.needs_recovery) == (None, False)


def test_a_region_that_was_claimed_and_not_written_needs_none(make_table: MakeTable) -> None:
    table = make_table()
    for _ in range(2):
        writer = table.writer()
        writer.claim()
        writer.abort()

    (region,) = read_status(table.location, clock=lambda: time.time() + 3600).regions
    assert region.unflushed_wal_entries == 0
    assert (region.oldest_unflushed_seconds, region.needs_recovery) == (None, False)


@pytest.mark.parametrize(
    ("written", "changed", "needed"), [(100, 100, False), (130, 100, False), (130, 130, True)]
)
def test_rows_count_as_without_a_writer_when_two_flushes_are_overdue(
    make_table: MakeTable, written: float, changed: float, needed: bool
) -> None:
    """A writer that claimed or flushed since then may live: it commits the manifest."""
    table = make_table()
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    writer.abort()
    age(table, wal_dir(REGION), written)
    age(table, manifest_dir(REGION), changed)

    status = table.status()

    (region,) = status.regions
    assert region.needs_recovery is needed
    assert status.regions_to_recover == int(needed)
    assert status.oldest_unflushed_seconds == pytest.approx(written, abs=30)
    assert region.unchanged_seconds == pytest.approx(changed, abs=30)
    assert status.to_dict()["regions_to_recover"] == int(needed)


def test_rows_that_a_writer_keeps_are_not_flushed_before_their_time(
    make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table()
    table.set_writer_defaults(max_memtable_age=0.05)
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        until(lambda: table.status().backlog_generations)
        assert table.status().oldest_unflushed_seconds is None


class TestMissingEntries:
    def log(self, table: memwal.Table) -> None:
        """Leave five entries that no flush covers."""
        writer = table.writer()
        for number in range(5):
            writer.upsert(rows({number: number}))
        writer.abort()

    def missing(self, table: memwal.Table) -> int | None:
        (region,) = table.status().regions
        return region.missing_wal_entry

    @pytest.mark.parametrize("position", [1, 2, 4])
    def test_one_that_was_deleted_is_seen(self, make_table: MakeTable, position: int) -> None:
        table = make_table()
        self.log(table)
        path = folder(table) / wal_key(REGION, position)
        content = path.read_bytes()
        path.unlink()
        assert self.missing(table) == position
        status = table.status()
        assert status.log_problem is not None
        assert str(REGION) in status.log_problem
        path.write_bytes(content)
        assert self.missing(table) is None
        assert table.status().log_problem is None

    def test_what_a_flush_covers_may_be_gone(self, make_table: MakeTable) -> None:
        table = make_table()
        table.upsert(rows({1: 1}))
        *flushed, _ = sorted(log(table))
        for position in flushed:
            (folder(table) / wal_key(REGION, position)).unlink()
        assert self.missing(table) is None

    def test_the_newest_entry_is_never_collected(self, make_table: MakeTable) -> None:
        table = make_table()
        table.upsert(rows({1: 1}))
        newest = max(log(table))
        for position in log(table):
            (folder(table) / wal_key(REGION, position)).unlink()
        assert self.missing(table) == newest

    def test_a_log_is_listed_once_in_ten_minutes(
        self, make_table: MakeTable, faults: FaultyStores
    ) -> None:
        table = make_table()
        self.log(table)
        store = faults.of(table.location)
        manifest = read_manifests(store)[REGION]
        now = 1000.0

        def listings() -> int:
            store.clear()
            assert find_missing_entry(store, manifest, clock=lambda: now) is None
            return store.count("list")

        assert [listings(), listings()] == [1, 0]
        now += LOG_CHECK_SECONDS
        assert [listings(), listings()] == [1, 0]

    def test_an_entry_that_a_flush_covered_meanwhile_is_not_missing(
        self, make_table: MakeTable
    ) -> None:
        table = make_table()
        self.log(table)
        store = table.location.store
        before = read_manifests(store)[REGION]
        table.upsert(rows({1: 2}))
        for path in (folder(table) / wal_dir(REGION)).iterdir():
            path.unlink()
        assert find_missing_entry(store, before) is None
