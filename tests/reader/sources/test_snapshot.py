"""Which moment a read sees."""

import logging
import shutil
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from support.data.tables import MakeTable, collect_now, keys, later, rows, state
from support.stores.faulty_store import FaultyStores

import memwal
from memwal.errors import InvalidInputError, TableSetupError
from memwal.jobs.options import SnapshotOptions
from memwal.jobs.table.snapshot import build_snapshot
from memwal.reader.sources.snapshot import open_stale_snapshot

HOUR = timedelta(hours=1)


def stale(table: memwal.Table, allowed: timedelta = HOUR) -> dict[int, int | None]:
    return state(table.at_most(allowed))


class TestEventual:
    def test_sees_what_was_flushed_when_the_snapshot_was_taken(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            writer.flush()
            table.build_snapshot()
            writer.upsert(rows({2: 22, 3: 33}))
        assert stale(table) == {1: 1, 2: 2}
        assert state(table) == {1: 1, 2: 22, 3: 33}
        table.build_snapshot()
        assert stale(table) == {1: 1, 2: 22, 3: 33}

    def test_sees_whatever_was_merged(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            writer.flush()
            table.build_snapshot()
            writer.upsert(rows({2: 22, 3: 33}))
            writer.delete(keys(1))
        table.merge()
        assert stale(table) == {2: 22, 3: 33}

    def test_survives_the_collector(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
            writer.flush()
            table.build_snapshot()
            assert stale(table) == {1: 1}
            writer.upsert(rows({1: 11}))
        table.merge()
        collect_now(table)
        assert stale(table) == {1: 11}

    def test_reads_the_manifests_when_the_snapshot_is_too_old(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
            writer.flush()
            table.build_snapshot()
            writer.upsert(rows({2: 2}))
        young = open_stale_snapshot(table.location, HOUR, clock=later(3500))
        assert young.snapshot_time is not None
        old = open_stale_snapshot(table.location, HOUR, clock=later(3700))
        assert old.snapshot_time is None
        (manifest,) = old.manifests.values()
        assert len(manifest.flushed) == 2

    def test_does_not_trust_a_clock_that_is_a_minute_ahead(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
            writer.flush()
            build_snapshot(table.location, clock=later(59))
            writer.upsert(rows({2: 2}))
        read = open_stale_snapshot(table.location, timedelta(seconds=2), clock=later(58))
        assert read.snapshot_time is None

    def test_knows_that_a_snapshot_may_be_published_late(self, table: memwal.Table) -> None:
        """A job that is paused after it read the regions: what was flushed meanwhile is seen."""
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
            writer.flush()

            def flush_meanwhile(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
                done = [function(task) for task in tasks]
                assert stale(table, timedelta(seconds=30)) == {1: 1}
                writer.upsert(rows({2: 2}))
                writer.flush()
                return done

            build_snapshot(table.location, SnapshotOptions(run=flush_meanwhile))
            assert stale(table, timedelta(seconds=30)) == {1: 1, 2: 2}

    def test_reads_the_manifests_when_the_snapshot_is_of_a_clock_that_was_far_ahead(
        self, table: memwal.Table
    ) -> None:
        """Nobody knows how old it is."""
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
            writer.flush()
            build_snapshot(table.location, clock=later(86_400))
            writer.upsert(rows({2: 2}))
        assert stale(table) == {1: 1, 2: 2}

    def test_without_a_snapshot_is_fresh(self, table: memwal.Table) -> None:
        table.upsert(rows({1: 1}))
        assert stale(table) == {1: 1}

    def test_asks_no_region(self, faults: FaultyStores, make_table: MakeTable) -> None:
        table = make_table(buckets=4)
        table.upsert(rows(dict.fromkeys(range(50), 1)))
        table.build_snapshot()
        store = faults.of(table.location)
        before = len(store.calls)
        found = open_stale_snapshot(table.location, HOUR)
        assert len(found.manifests) == 4
        assert store.calls[before:]
        asked = [call for call in store.calls[before:] if "_mem_wal" in str(call)]
        assert asked == []


class TestVersion:
    def test_is_exact(self, table: memwal.Table, caplog: pytest.LogCaptureFixture) -> None:
        versions = {}
        with table.writer() as writer:
            for n in range(3):
                writer.upsert(rows({1: n, n + 10: n}))
                writer.flush()
                table.merge()
                versions[table.base().version] = state(table)
            writer.upsert(rows({1: 99}))
        table.base().dataset.tags.create("second", sorted(versions)[1])
        for version, expected in versions.items():
            assert state(table.at(version)) == expected
            found = table.at(version).lookup(1).to_table()
            assert found.column("n").to_pylist() == [expected[1]]
        assert table.at("second").explain().version == sorted(versions)[1]

        caplog.clear()
        with caplog.at_level(logging.WARNING, "memwal"):
            plan = table.at(max(versions)).explain()
        assert [len(region.generations) for region in plan.newer] == [1]
        assert [record.levelname for record in caplog.records] == ["WARNING"]

    def test_that_leaves_nothing_out_is_silent(
        self, table: memwal.Table, caplog: pytest.LogCaptureFixture
    ) -> None:
        table.upsert(rows({1: 1}))
        table.merge()
        with caplog.at_level(logging.WARNING, "memwal"):
            plan = table.at(table.version).explain()
        assert plan.newer == ()
        assert caplog.text == ""

    def test_that_does_not_exist_is_refused(self, table: memwal.Table) -> None:
        with pytest.raises(TableSetupError, match="99"):
            table.at(99).explain()
        with pytest.raises(InvalidInputError, match="'nope'"):
            table.at("nope").explain()

    def test_from_before_memwal_was_enabled(self, tmp_path: Path) -> None:
        uri = str(tmp_path / "table")
        lance.write_dataset(rows({1: 1, 2: 2}).slice(0, 1), uri)
        lance.write_dataset(rows({2: 2}), uri, mode="append")
        table = memwal.enable(uri, primary_key=["id"], region_spec="unsharded")
        early = table.at(2)
        assert state(early) == {1: 1, 2: 2}
        assert early.scan(filter="n > 1").count_rows() == 1
        with pytest.raises(InvalidInputError):
            early.lookup(keys(1)).to_table()


class TestAnotherTableInItsPlace:
    """The same versions, at the same path, with other rows."""

    def test_made_anew(self, tmp_path: Path) -> None:
        uri = str(tmp_path / "table")
        for n in (1, 2):
            shutil.rmtree(uri, ignore_errors=True)
            lance.write_dataset(rows({1: n, 2: n}), uri)
            table = memwal.enable(uri, primary_key=["id"], region_spec="unsharded")
            assert state(table.at(1)) == state(table) == {1: n, 2: n}

    def test_taken_back_from_a_backup(self, table: memwal.Table, tmp_path: Path) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            writer.flush()
            table.merge()
            writer.upsert(rows({2: 22}))
        shutil.copytree(table.uri, tmp_path / "backup")
        for n in (3, 4):
            lance.write_dataset(rows({n: n}), table.uri, mode="append")
            assert state(table) == {1: 1, 2: 22, n: n}
            assert table.scan().count_rows() == 3
            assert table.lookup(keys(n)).count_rows() == 1
            shutil.rmtree(table.uri)
            shutil.copytree(tmp_path / "backup", table.uri)
