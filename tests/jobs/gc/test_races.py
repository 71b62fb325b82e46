"""The collector at the worst moment: against readers, writers, mergers, tags and itself."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import lance
import pyarrow as pa
import pytest
from support.data.tables import (
    REGION,
    MakeTable,
    flush,
    folder,
    generations,
    log,
    manifest,
    manifests,
    region_folders,
    rows,
    state,
)
from support.faults.collecting import DAY, HOUR, collect, drop
from support.oracles import native
from support.stores.faulty_store import VERSION_HINT, FaultyStores, Killed

import memwal
from memwal.base_table.snapshot import open_base
from memwal.errors import ConflictError
from memwal.format.paths import BLOOM_FILTER_NAME, generation_dir, region_dir
from memwal.jobs.gc import Reason
from memwal.jobs.verify import repair, verify
from memwal.lsm.flush.generation import write_generation
from memwal.region.rows import align_rows

PER_REGION = f"{region_dir(REGION)}*"


@pytest.fixture
def merged_table(faults: FaultyStores, make_table: MakeTable) -> memwal.Table:
    """Three generations, merged by a commit each; the store can be paused."""
    table = make_table()
    flush(table, {1: 1}, {2: 2}, {1: 11})
    table.merge(commit_bytes=1)
    return table


def version_with(table: memwal.Table, merged: int) -> int:
    versions = range(2, table.base().version + 1)
    return next(
        v
        for v in versions
        if open_base(table.location, version=v).details.merged.get(REGION, 0) == merged
    )


class TestOlderReader:
    """It planned before a collection, and reads after it."""

    def test_that_comes_later_is_answered_all_the_same(
        self, faults: FaultyStores, merged_table: memwal.Table
    ) -> None:
        """It sleeps for longer than the grace period between its plan and its first read."""
        table = merged_table
        flush(table, {5: 5})
        scan = table.scan()
        store = faults.of(table.location)
        pause = store.pause("list_folders", "_mem_wal", skip=0)

        with pause.holding(scan.to_table) as reading:
            table.merge()
            for step in (1, 2):
                collect(table, step * DAY)
        assert state(reading.result()) == {1: 11, 2: 2, 5: 5}


class TestTagBetweenPlanAndDelete:
    @pytest.mark.parametrize(
        ("made", "left", "reason"),
        [
            ("tag", [2, 3], Reason.TAG),
            ("branch", [2, 3], Reason.BRANCH),
            ("tag that cannot be read", [1, 2, 3], None),
        ],
        ids=["tag", "branch", "unreadable"],
    )
    def test_is_noticed_before_anything_is_dropped(
        self,
        faults: FaultyStores,
        merged_table: memwal.Table,
        made: str,
        left: list[int],
        reason: Reason | None,
    ) -> None:
        table = merged_table
        old = lance.dataset(table.uri, version=version_with(table, 1))
        store = faults.of(table.location)
        # What is in use was read; nothing was deleted.
        with store.pause("barrier").holding(collect, table, DAY, explain=True) as collecting:
            if made == "tag":
                old.tags.create("just-now", old.version)
            elif made == "branch":
                old.create_branch("just-now")
            else:
                store.inner.put("_refs/tags/torn.json", b"no JSON")

        assert generations(table) == left
        kept = {d.reason for d in collecting.result().decisions if not d.delete}
        assert reason is None or reason in kept

    def test_is_noticed_before_a_folder_goes(
        self, faults: FaultyStores, merged_table: memwal.Table
    ) -> None:
        table = merged_table
        version = version_with(table, 1)
        drop(table)
        with faults.of(table.location).pause("barrier").holding(collect, table, DAY):
            lance.dataset(table.uri).tags.create("just-now", version)
        assert {name.rpartition("_")[2] for name in region_folders(table)} == {"2", "3"}

    def test_in_the_moment_that_is_left_loses_no_row_of_the_version(
        self, faults: FaultyStores, merged_table: memwal.Table
    ) -> None:
        """After the last look at the tags: generations that were merged later are dropped."""
        table = merged_table
        version = version_with(table, 2)
        store = faults.of(table.location)
        with store.pause("list_folders", PER_REGION).holding(collect, table, DAY):
            lance.dataset(table.uri).tags.create("too-late", version)
        assert generations(table) == []
        for step in (2, 3):
            collect(table, step * DAY)
        assert {name.rpartition("_")[2] for name in region_folders(table)} == {"3"}
        assert state(table.at("too-late")) == {1: 1, 2: 2}
        assert state(table) == {1: 11, 2: 2}


class TestWriterThatSleepsInItsClaim:
    def test_of_a_new_region_until_its_first_manifest_is_trimmed(
        self, quick_faults: FaultyStores, make_table: MakeTable
    ) -> None:
        """Its manifest is stored all the same, where nobody looks: it claims once more."""
        table = make_table()
        store = quick_faults.of(table.location)
        claiming = store.pause("create", "_mem_wal/*/manifest/*")

        def write() -> None:
            table.upsert(rows({1: 1, 2: 2}))

        with ThreadPoolExecutor(1) as pool:
            sleeper = pool.submit(write)
            assert claiming.wait_until_reached(sleeper)
            for value in (10, 11, 12):
                flush(table, {1: value, 3: value})
            table.merge()
            for step in range(1, 4):
                collect(table, step * DAY)
            assert min(manifests(table).list_versions()) > 1
            claiming.release()
            sleeper.result()
        assert state(table) == state(native.scan(table)) == {1: 1, 2: 2, 3: 12}


class TestProcessThatSleepsBeforeItsCommit:
    def test_finds_its_versions_trimmed_though_hints_were_not_written(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        """Two of them commit one after the other, where two versions were: the hint tells.

        The version of the first looks like the predecessor of the second's. A hint that names a
        trimmed version would too, so the collector replaces it before it trims.
        """
        table = make_table()
        flush(table, {1: 1})
        first, hint = manifest(table), manifests(table).read_hint()
        store = faults.of(table.location)
        for operation in ("create", "replace", "put"):
            store.fail(operation, VERSION_HINT, times=1_000)
        flush(table, {2: 2})
        flush(table, {3: 3})
        second = manifests(table).read(first.version + 1)
        assert manifests(table).read_hint() == hint
        table.merge()
        # Drops, which is a commit; what it leaves of the hint is as if that had failed as well.
        collect(table, DAY)
        store.clear()
        collect(table, 2 * DAY)
        assert min(manifests(table).list_versions()) > second.version + 1

        for old in (first, second):
            with pytest.raises(ConflictError):
                manifests(table).commit(
                    replace(old, version=old.version + 1, current_generation=77)
                )

        assert state(table) == state(native.scan(table)) == {1: 1, 2: 2, 3: 3}


class TestWriterThatSleepsInAFlush:
    @pytest.mark.few(6)
    @pytest.mark.parametrize(
        ("operation", "pattern", "after"),
        [
            ("put", "*_gen_1/orphan", False),
            ("put", "*_gen_1/orphan", True),
            ("create", "_mem_wal/*/manifest/*", False),
            ("create", "_mem_wal/*/manifest/*", True),
            ("delete", "*_gen_1/bloom_filter.bin", False),
            ("delete", "*_gen_1/bloom_filter.bin", True),
            ("delete_folder", "*_gen_1", True),
        ],
    )
    @pytest.mark.parametrize("collector_ends", [True, False])
    def test_wakes_at_any_step_of_a_collector(
        self,
        quick_faults: FaultyStores,
        make_table: MakeTable,
        operation: str,
        pattern: str,
        after: bool,
        collector_ends: bool,
    ) -> None:
        """What the manifest names is always there, also when the collector or the writer dies."""
        table = make_table()
        writer = table.writer()
        writer.upsert(rows({1: 1, 2: 2}))
        store = quick_faults.of(table.location)
        naming = store.pause("create", "_mem_wal/*/manifest/*")
        with ThreadPoolExecutor(2) as pool:
            flushing = pool.submit(writer.flush)
            assert naming.wait_until_reached(flushing)
            step = store.pause(operation, pattern, after=after)
            collecting = pool.submit(collect, table, 2 * DAY)
            assert step.wait_until_reached(collecting)
            naming.release()
            flushing.result()
            assert state(table) == state(native.scan(table)) == {1: 1, 2: 2}
            if not collector_ends:
                store.kill("*")
            step.release()
            with suppress(Killed):
                collecting.result()
        marks = folder(table).glob("_mem_wal/*/*_gen_1/orphan")
        assert not (collector_ends and any(marks))
        assert state(table) == state(native.scan(table)) == {1: 1, 2: 2}
        writer.close()
        table.merge()
        assert state(table) == {1: 1, 2: 2}

    def test_before_it_is_complete_writes_its_folder_again(
        self, quick_faults: FaultyStores, make_table: MakeTable
    ) -> None:
        table = make_table()
        writer = table.writer()
        writer.upsert(rows({1: 1, 2: 2}))
        pause = quick_faults.of(table.location).pause("put", "*_gen_1/bloom_filter.bin")
        with ThreadPoolExecutor(1) as pool:
            flushing = pool.submit(writer.flush)
            pause.wait_until_reached(flushing)
            collect(table, 2 * DAY)
            pause.release()
            flushing.result()
        assert state(table) == state(native.scan(table)) == {1: 1, 2: 2}
        writer.close()

    def test_names_no_folder_of_which_only_the_bloom_filter_is_left(
        self, quick_faults: FaultyStores, make_table: MakeTable
    ) -> None:
        """It writes the filter while the collector empties the folder, and the collector dies."""
        table = make_table()
        writer = table.writer()
        writer.upsert(rows({1: 1, 2: 2}))
        store = quick_faults.of(table.location)
        writing = store.pause("put", "*_gen_1/bloom_filter.bin")
        with ThreadPoolExecutor(2) as pool:
            flushing = pool.submit(writer.flush)
            assert writing.wait_until_reached(flushing)
            emptying = store.pause("delete", "*_gen_1/_*")
            collecting = pool.submit(collect, table, 2 * DAY)
            assert emptying.wait_until_reached(collecting)
            naming = store.pause("head", "*_gen_1/orphan")
            writing.release()
            assert naming.wait_until_reached(flushing)
            store.kill("delete", "*_gen_1/orphan", after=True)
            emptying.release()
            with suppress(Killed):
                collecting.result()
            naming.release()
            flushing.result()
        assert state(table) == state(native.scan(table)) == {1: 1, 2: 2}
        writer.close()

    def test_of_lances_kind_is_repaired_from_the_log(self, table: memwal.Table) -> None:
        """Lance does not look whether the folder that it names is still there."""
        flush(table, {1: 1})
        table.merge()
        writer = table.writer()
        for key in (2, 3, 4):
            writer.upsert(rows({key: key}))
        writer.abort()
        latest = manifest(table)
        stored = align_rows(rows({2: 2, 3: 3, 4: 4}), table.base().schema).append_column(
            "_tombstone", pa.array([False] * 3)
        )
        flushed = write_generation(table.base(), REGION, 2, stored, ())
        collect(table, 2 * DAY)
        assert flushed.path not in region_folders(table), "it slept for too long"
        last = max(log(table))
        manifests(table).commit(
            replace(
                manifest(table),
                version=manifest(table).version + 1,
                flushed=(*manifest(table).flushed, flushed),
                current_generation=3,
                replay_after=last,
            )
        )
        entries = {n: e for n, e in log(table).items() if n > latest.replay_after}

        for step in range(3, 8):
            collect(table, step * DAY, orphan_grace_seconds=0)
            (skipped,) = table.merge().skipped_regions
            assert (skipped.region_id, skipped.generation) == (str(REGION), 2)

        assert {n: e.generation for n, e in log(table).items() if n in entries} == {
            n: e.generation for n, e in entries.items()
        }
        held = [b for n, e in log(table).items() if n in entries for b in e.batches]
        assert {k for batch in held for k in batch.column("id").to_pylist()} == {2, 3, 4}
        (repaired,) = repair(table.location, verify(table.location), dry_run=False)
        assert repaired.state == "done"
        assert state(table) == state(native.scan(table)) == {1: 1, 2: 2, 3: 3, 4: 4}
        assert table.merge().warnings == ()
        assert state(table) == {1: 1, 2: 2, 3: 3, 4: 4}

    def test_an_orphan_is_looked_at_again_right_before_it_goes(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        """A flush that does not look, as Lance's, names the folder while it is judged."""
        table = make_table()
        flush(table, {1: 1})
        stored = align_rows(rows({2: 2}), table.base().schema).append_column(
            "_tombstone", pa.array([False])
        )
        flushed = write_generation(table.base(), REGION, 2, stored, ())
        store = faults.of(table.location)
        pause = store.pause("list", f"*{flushed.path}", after=True)

        with pause.holding(collect, table, 2 * DAY, explain=True) as collecting:
            latest = manifest(table)
            manifests(table).commit(
                replace(
                    latest,
                    version=latest.version + 1,
                    flushed=(*latest.flushed, flushed),
                    current_generation=3,
                )
            )

        assert flushed.path in region_folders(table)
        assert store.exists(f"{generation_dir(REGION, flushed.path)}/{BLOOM_FILTER_NAME}")
        decisions = collecting.result().decisions
        assert Reason.IN_USE in {decision.reason for decision in decisions}
        assert state(table) == {1: 1, 2: 2}


class TestWithoutTrust:
    def test_in_clocks_that_jump_back(self, merged_table: memwal.Table) -> None:
        """A collector whose clock is behind finds everything too young."""
        before = region_folders(merged_table)
        result = collect(merged_table, -HOUR)
        assert set(result.metrics.values()) == {0}
        assert region_folders(merged_table) == before


def test_a_folder_that_is_half_deleted_is_no_generation(
    faults: FaultyStores, table: memwal.Table
) -> None:
    """The bloom filter goes first: it is what a flush looks for before it names a folder."""
    flush(table, {1: 1})
    table.merge()
    drop(table)
    store = faults.of(table.location)
    store.clear()
    store.kill("delete", "*_gen_1/*", skip=1)
    with pytest.raises(Killed):
        collect(table, DAY)
    remaining = [info.key for info in store.inner.list(region_dir(REGION)) if "_gen_1/" in info.key]
    assert remaining
    assert not any(key.endswith("bloom_filter.bin") for key in remaining)
    assert state(table) == {1: 1}
    collect(table, DAY)
    assert not any("_gen_1/" in info.key for info in store.inner.list(region_dir(REGION)))
