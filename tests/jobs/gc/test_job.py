"""Collecting what nobody needs: never too much, never too early, and to the end."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from support.data.merging import elsewhere
from support.data.tables import (
    REGION,
    MakeTable,
    age,
    flush,
    folder,
    generations,
    later,
    listing,
    log,
    manifest,
    manifest_versions,
    manifests,
    numbered,
    region_folders,
    rows,
    state,
)
from support.faults.collecting import DAY, GRACE, HOUR, collect, drop
from support.stores.faulty_store import REGION_MANIFEST, FaultyStores, Killed

import memwal
from memwal.base_table.commit import update_details
from memwal.base_table.region_marks import RegionMark, write_marks
from memwal.errors import InvalidInputError, MemWalError, ProgressLostError
from memwal.format.paths import (
    generation_dir,
    manifest_key,
    parse_manifest_name,
    region_dir,
    version_hint_key,
    wal_key,
)
from memwal.format.region_manifest import RegionStatus
from memwal.jobs.gc import collect_garbage
from memwal.jobs.options import GcOptions
from memwal.region.router import bucket_region_id


@pytest.fixture
def merged_table(table: memwal.Table) -> memwal.Table:
    """Three generations that are merged, and one that is not."""
    flush(table, {1: 1}, {2: 2}, {1: 11})
    table.merge()
    flush(table, {3: 3})
    return table


EXPECTED: dict[int, int | None] = {1: 11, 2: 2, 3: 3}


class TestStages:
    def test_first_the_manifest_then_the_folders_then_log_and_manifests(
        self, merged_table: memwal.Table
    ) -> None:
        table = merged_table
        folders, entries, versions = region_folders(table), log(table), manifest_versions(table)

        # Nothing is dropped while a version from within the grace period needs it.
        assert collect(table).metrics["generations_dropped"] == 0
        assert drop(table) == 3
        assert generations(table) == [4]
        assert region_folders(table) == folders
        # No replay needs the log of what is merged and no longer named.
        assert {4, 5} <= log(table).keys() <= entries.keys()
        assert set(collect(table, 500).metrics.values()) == {0}

        second = collect(table, 700)
        assert second.metrics["folders"] == 3
        assert region_folders(table) == {manifest(table).flushed[0].path}
        assert sorted(log(table)) == [4, 5]
        assert second.metrics["manifests"] > 0
        assert second.metrics["bytes"] > 0
        assert len(manifest_versions(table)) < len(versions)
        assert state(table) == EXPECTED

        again = collect(table, 1400)
        assert set(again.metrics.values()) == {0}
        assert state(table) == EXPECTED

    def test_what_is_left_of_an_idle_table_is_small(self, table: memwal.Table) -> None:
        for turn in range(4):
            flush(table, {1: turn}, {2: turn})
        table.merge()
        for step in range(1, 4):
            collect(table, step * DAY)

        assert region_folders(table) == set()
        assert len(log(table)) == 1
        assert manifest_versions(table) == [manifest(table).version]
        assert state(table) == {1: 3, 2: 3}
        flush(table, {3: 3})
        assert state(table) == {1: 3, 2: 3, 3: 3}

    def test_the_version_hint_is_right_afterwards(self, merged_table: memwal.Table) -> None:
        table = merged_table
        table.location.store.put(version_hint_key(REGION), b'{"version": 1}')
        for step in range(1, 4):
            collect(table, step * DAY)

        latest = manifests(table).read_latest()
        assert latest is not None
        assert latest.version == max(manifest_versions(table))


class TestDryRun:
    def test_is_the_default_and_deletes_nothing(self, merged_table: memwal.Table) -> None:
        before = listing(folder(merged_table))

        result = collect_garbage(
            merged_table.location, GcOptions(retention_seconds=0), clock=later(DAY)
        )

        assert result.metrics["generations_dropped"] == 3
        assert listing(folder(merged_table)) == before
        assert merged_table.collect_garbage().job == "gc"
        assert listing(folder(merged_table)) == before

    @pytest.mark.parametrize(
        "name",
        ["grace_seconds", "retention_seconds", "orphan_grace_seconds", "index_grace_seconds"],
    )
    def test_times_must_not_be_negative(self, table: memwal.Table, name: str) -> None:
        with pytest.raises(InvalidInputError, match=name):
            collect(table, **{name: -1})


class TestProtection:
    def test_of_generations_that_are_not_merged(self, table: memwal.Table) -> None:
        flush(table, {1: 1}, {2: 2})
        before = listing(folder(table))

        for step in range(3):
            collect(table, DAY * (step + 1))

        after = listing(folder(table))
        assert {name for name in before if "_gen_" in name} <= set(after)
        assert sorted(log(table)) == [1, 2]
        assert state(table) == {1: 1, 2: 2}
        with table.writer() as writer:
            assert state(writer) == {1: 1, 2: 2}

    def test_of_the_log_that_is_not_flushed(self, table: memwal.Table) -> None:
        writer = table.writer()
        flushed = {key: key for key in range(5)}
        for key in flushed:
            writer.upsert(rows({key: key}))
        writer.flush()
        table.merge()
        for key in range(5, 9):
            writer.upsert(rows({key: key}))
        writer.abort()
        for step in range(3):
            collect(table, DAY * (step + 1))

        assert sorted(log(table)) == [6, 7, 8, 9]
        with table.writer() as again:
            again.claim()
        assert state(table) == {key: key for key in range(9)}

    def test_of_the_newest_log_entry(self, table: memwal.Table) -> None:
        """Lance lists the log to find its tip, and would fence nobody in an empty one."""
        flush(table, {1: 1})
        table.merge()
        for step in range(3):
            collect(table, DAY * (step + 1))

        (position,) = log(table)
        table.upsert(rows({2: 2}))
        assert sorted(log(table)) == [position, position + 1, position + 2]

    def test_of_what_an_index_does_not_cover(self, make_table: MakeTable) -> None:
        table = make_table(maintained_indexes=["id_idx"])
        flush(table, {1: 1})
        table.merge()
        table.build_indexes()
        flush(table, {2: 2})
        table.merge()
        for step in range(3):
            collect(table, DAY * (step + 1))
        assert generations(table) == [2]
        assert len(region_folders(table)) == 1

        table.build_indexes()
        for step in range(3, 6):
            collect(table, DAY * (step + 1))
        assert region_folders(table) == set()

    def test_of_what_a_maintained_index_needs_that_does_not_exist(
        self, make_table: MakeTable
    ) -> None:
        table = make_table(maintained_indexes=["id_idx"])
        flush(table, {1: 1})
        table.merge()
        table.build_indexes()
        table.base().dataset.drop_index("id_idx")
        flush(table, {2: 2})
        table.merge()
        for step in range(3):
            collect(table, DAY * (step + 1))

        assert 2 in generations(table)

    def test_of_what_cannot_be_told(
        self, merged_table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Unreadable details: nothing is deleted."""
        drop(merged_table)
        before = listing(folder(merged_table))
        path = max(
            (folder(merged_table) / "_versions").glob("*.manifest"), key=lambda p: -int(p.stem)
        )
        whole = path.read_bytes()
        for damaged in (b"", whole[: len(whole) // 2], whole[:-20] + b"\0" * 20):
            path.write_bytes(damaged)
            with pytest.raises(MemWalError):
                collect(merged_table, DAY)
            path.write_bytes(whole)
            assert listing(folder(merged_table)).keys() == before.keys()

    def test_of_a_region_whose_manifest_is_older_than_the_base_table(
        self, table: memwal.Table
    ) -> None:
        """The numbers of its generations are of others, which were merged and are lost."""
        flush(table, {1: 1}, {2: 2})
        update_details(table.location, lambda base: replace(base.details, merged={REGION: 7}))
        before = listing(folder(table) / region_dir(REGION))

        result = collect(table, DAY)

        assert result.warnings
        assert listing(folder(table) / region_dir(REGION)) == before

    def test_of_a_base_table_that_is_older_than_its_regions(
        self, merged_table: memwal.Table
    ) -> None:
        """Its rows of a merged generation may be gone with the progress that it lost."""
        write_marks(merged_table.location.store, {REGION: RegionMark(merged=9)})
        before = listing(folder(merged_table) / region_dir(REGION))

        with pytest.raises(ProgressLostError):
            collect(merged_table, DAY)

        assert listing(folder(merged_table) / region_dir(REGION)) == before

    def test_of_what_a_machine_that_crashes_now_would_need(
        self, faults: FaultyStores, merged_table: memwal.Table
    ) -> None:
        """Lance does not sync the commits of merges."""
        store = faults.of(merged_table.location)
        store.clear()

        collect(merged_table, DAY)
        collect(merged_table, 2 * DAY)

        operations = [operation for operation, _ in store.calls]
        assert operations.index("barrier") < operations.index("create")
        assert operations.index("barrier") < operations.index("delete")


class TestOrphans:
    @staticmethod
    def leave(table: memwal.Table, faults: FaultyStores) -> str:
        """Let a flush die before its manifest, and return the folder."""
        before = region_folders(table)
        writer = table.writer()
        writer.upsert(rows({9: 9}))
        faults.of(table.location).kill("create", REGION_MANIFEST)
        with pytest.raises(MemWalError):
            writer.flush()
        writer.abort()
        (orphan,) = region_folders(table) - before
        return orphan

    @pytest.fixture
    def orphaned(self, faults: FaultyStores, make_table: MakeTable) -> tuple[memwal.Table, str]:
        table = make_table()
        flush(table, {1: 1})
        return table, self.leave(table, faults)

    def test_go_only_when_they_are_old(self, orphaned: tuple[memwal.Table, str]) -> None:
        table, orphan = orphaned
        for seconds in (0, HOUR, DAY - 60):
            collect(table, seconds)
            assert orphan in region_folders(table)

        collect(table, DAY + 60)

        assert orphan not in region_folders(table)
        with table.writer() as writer:
            writer.claim()
        assert state(table) == {1: 1, 9: 9}

    def test_are_as_old_as_their_youngest_object(self, orphaned: tuple[memwal.Table, str]) -> None:
        """A flush that takes long is not an orphan."""
        table, orphan = orphaned
        age(table, 3 * DAY)
        youngest = max((folder(table) / generation_dir(REGION, orphan)).rglob("*.lance"))
        youngest.touch()

        collect(table)
        assert orphan in region_folders(table)
        age(table, 3 * DAY)
        collect(table)
        assert orphan not in region_folders(table)

    def test_that_became_a_generation_meanwhile_stay(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        """The flush commits between the collector's look at the manifest and its deletes."""
        table = make_table()
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        store = faults.of(table.location)
        flushing = store.pause("create", REGION_MANIFEST)
        with ThreadPoolExecutor(2) as pool:
            flush_job = pool.submit(writer.flush)
            flushing.wait_until_reached()
            collecting = store.pause("list_folders", region_dir(REGION))
            collect_job = pool.submit(collect, table, DAY - 60)
            collecting.wait_until_reached()
            flushing.release()
            flush_job.result()
            collecting.release()
            collect_job.result()
        writer.close()

        assert state(table) == {1: 1}

    def test_folders_of_others_are_left_alone(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        store = table.location.store
        names = ["notes", "abcdefgh_gen_1", "12345678_gen_x", "12345678_gen_01", "_pk_index"]
        for name in names:
            store.put(f"{region_dir(REGION)}/{name}/object", b"x")
        store.put(f"_mem_wal/other-{uuid4()}/1234abcd_gen_1/object", b"x")

        collect(table, 100 * DAY)

        assert set(names) <= set(store.list_folders(region_dir(REGION)))
        assert len(store.list_folders("_mem_wal")) == 2

    def test_an_empty_folder_may_be_the_beginning_of_a_flush(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        path = folder(table) / region_dir(REGION) / "1234abcd_gen_2"
        path.mkdir()

        collect(table, 100 * DAY)

        assert path.is_dir()


class TestGrace:
    def test_young_log_entries_stay(self, table: memwal.Table) -> None:
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        writer.flush()
        table.merge()
        drop(table)
        age(table, 2 * DAY, pattern="_mem_wal/*/manifest/*")
        writer.upsert(rows({2: 2}))

        collect(table, 500)
        assert sorted(log(table)) == [1, 2]
        collect(table, 700)
        assert sorted(log(table)) == [2]
        writer.close()

    def test_nothing_is_young_for_ever(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        table.merge()
        drop(table)
        age(table, DAY)
        age(table, DAY, pattern="_versions/*")

        collect(table)

        assert region_folders(table) == set()


class TestManifests:
    def test_that_bound_the_log_stay(self, table: memwal.Table) -> None:
        """Each collection can still tell up to where the log is not needed."""
        expected: dict[int, int | None] = {}
        for turn in range(6):
            flush(table, {turn: turn})
            expected[turn] = turn
            if turn % 2:
                table.merge()
            collect(table, (turn + 1) * DAY)
            assert manifest(table).replay_after >= min(log(table)) - 1
            assert state(table) == expected
        for step in range(3):
            table.merge()
            collect(table, (10 + step) * DAY)
        assert len(log(table)) == 1

    def test_go_oldest_first_and_leave_no_gap(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table()
        store = faults.of(table.location)
        for turn in range(5):
            flush(table, {turn: turn})
        table.merge()
        drop(table)
        store.clear()
        collect(table, DAY)

        deleted = [key for operation, key in store.calls if operation == "delete"]
        order = [key for key in deleted if "/manifest/" in key]
        assert len(order) > 3
        numbers = [parse_manifest_name(key.rpartition("/")[2]) for key in order]
        assert numbers == list(range(1, len(order) + 1))
        remaining = manifest_versions(table)
        assert remaining == list(range(remaining[0], remaining[-1] + 1))

    def test_that_name_stored_folders_stay(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table()
        flush(table, {1: 1}, {2: 2})
        table.merge()
        drop(table)
        store = faults.of(table.location)
        store.kill("delete_folder", "*_gen_2")
        with pytest.raises(Killed):
            collect(table, DAY)
        names = region_folders(table)
        assert names
        named = {
            flushed.path
            for version in manifest_versions(table)
            for flushed in manifests(table).read(version).flushed
        }
        assert names <= named


class TestDamagedRegion:
    @pytest.fixture
    def damaged(self, make_table: MakeTable) -> memwal.Table:
        table = make_table(buckets=2)
        for turn in range(2):
            table.upsert(numbered(0, 20, n=turn))
        table.merge()
        time.sleep(0.1)
        collect(table, GRACE.total_seconds() - 0.05)
        return table

    def test_loses_nothing_and_does_not_stop_the_others(self, damaged: memwal.Table) -> None:
        table = damaged
        bad, good = bucket_region_id(0), bucket_region_id(1)
        key = f"{region_dir(bad)}/manifest"
        newest = max(manifests(table, bad).list_versions())
        table.location.store.put(manifest_key(bad, newest), b"\xff\xff")
        before = {name for name in listing(folder(table)) if str(bad) in name}
        assert any(name.startswith(key) for name in before)

        try:
            result = collect(table, DAY)
        except MemWalError:
            result = None

        assert {name for name in listing(folder(table)) if str(bad) in name} == before
        assert result is not None, "one bad region stopped the collection of the table"
        (warning,) = result.warnings
        assert str(bad) in str(warning)
        assert region_folders(table, good) == set()


class TestLog:
    def test_is_trimmed_oldest_first(self, faults: FaultyStores, make_table: MakeTable) -> None:
        table = make_table()
        writer = table.writer()
        for key in range(12):
            writer.upsert(rows({key: key}))
        writer.close()
        table.merge()
        store = faults.of(table.location)
        store.clear()
        collect(table, DAY)
        assert sorted(log(table)) == list(range(1, 13)), "dropped only now, and deleted later"
        collect(table, 2 * DAY)

        deleted = [
            key for operation, key in store.calls if operation == "delete" and "/wal/" in key
        ]
        assert deleted == [wal_key(REGION, position) for position in range(1, 12)]
        assert sorted(log(table)) == [12]

    def test_is_not_needed_by_a_region_that_was_sealed(self, table: memwal.Table) -> None:
        flush(table, {1: 1}, {2: 2})
        manifests(table).update(lambda latest: replace(latest, status=RegionStatus.SEALED))
        table.merge()
        for step in range(3):
            collect(table, (step + 1) * DAY)

        assert region_folders(table) == set()
        assert manifest(table).status == RegionStatus.SEALED
        assert state(table) == {1: 1, 2: 2}


def test_old_temporary_files_of_dead_writers_go(table: memwal.Table) -> None:
    flush(table, {1: 1})
    path = folder(table) / region_dir(REGION) / "wal" / ".0123456789abcdef.tmp"
    path.write_bytes(b"torn")
    collect(table)
    assert path.exists()
    age(table, 2 * DAY, pattern="_mem_wal/*/wal/.*.tmp")
    collect(table)
    assert not path.exists()


def test_the_epoch_of_a_live_writer_stays(table: memwal.Table) -> None:
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    writer.flush()
    epoch = manifest(table).writer_epoch
    table.merge()
    for step in range(3):
        collect(table, (step + 1) * DAY)
    assert manifest(table).writer_epoch == epoch
    writer.upsert(rows({2: 2}))
    writer.close()
    assert state(table) == {1: 1, 2: 2}


def test_tasks_and_outcomes_can_be_sent_to_other_machines(make_table: MakeTable) -> None:
    table = make_table(buckets=4)
    table.upsert(numbered(0, 50))
    table.merge()
    sent: list[int] = []

    def run(tasks: Any, function: Any) -> list[Any]:
        sent.append(len(tasks))
        return elsewhere(tasks, function)

    result = collect(table, DAY, run=run, max_tasks=3, explain=True)

    assert sent == [3]
    assert result.tasks == 3
    assert result.metrics["generations_dropped"] == 4
    assert {d.region_id for d in result.decisions} == {str(r) for r in table.region_ids()}
