"""Rows that writers left in the log are flushed, and a writer that lives after all goes on."""

import shutil
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from support.data.tables import (
    REGION,
    SCHEMA,
    MakeTable,
    base_state,
    folder,
    keys,
    listing,
    manifest,
    rows,
    state,
)
from support.oracles import native
from support.stores.faulty_store import GENERATION, REGION_MANIFEST, WAL, FaultyStores

import memwal
from memwal.base_table.commit import update_details
from memwal.errors import CorruptDataError, MemWalError, RegionFencedError, TableSetupError
from memwal.format.paths import wal_key
from memwal.jobs.backlog import read_status
from memwal.jobs.job import RegionsTask
from memwal.jobs.options import RecoverOptions
from memwal.jobs.table.recover import recover, run_recover_task

HOUR = 3600.0


def leave(table: memwal.Table, *changes: dict[int, int]) -> None:
    """Write and end as by an exception: the rows are acknowledged, and in the log alone."""
    writer = table.writer()
    for change in changes:
        writer.upsert(rows(change))
    writer.abort()


def in_an_hour() -> float:
    return time.time() + HOUR


class TestRecover:
    def test_flushes_what_a_dead_writer_left(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        leave(table, {1: 1, 2: 2, 3: 3}, {2: 20})
        assert state(table) == {}

        result = recover(table.location, clock=in_an_hour)

        assert result.metrics["recovered_regions"] == 2
        assert result.metrics["unflushed_regions"] == 0
        assert state(table) == {1: 1, 2: 20, 3: 3}
        assert native.ordered(native.scan(table)) == native.ordered(table.scan().to_table())
        assert (
            table.status().unflushed_wal_entries == 0
        )  # the sentinels of the recovery have no rows
        table.merge()
        assert base_state(table) == {1: 1, 2: 20, 3: 3}

    def test_does_nothing_a_second_time(self, make_table: MakeTable) -> None:
        table = make_table()
        leave(table, {1: 1})
        recover(table.location, clock=in_an_hour)
        before = manifest(table)

        result = recover(table.location, clock=in_an_hour)

        assert (result.tasks, result.metrics["recovered_regions"]) == (0, 0)
        assert manifest(table) == before

    def test_keeps_a_column_that_was_added_during_the_task(self, table: memwal.Table) -> None:
        leave(table, {1: 1})

        def write_a_new_column() -> None:
            lance.dataset(table.uri).add_columns(pa.field("more", pa.int64()))
            writer = table.writer()
            writer.upsert(rows({2: 2}).append_column("more", [[7]]))
            writer.abort()

        task = RegionsTask(table.location, (REGION,))
        metrics, _ = run_recover_task(task, guard=write_a_new_column)

        assert metrics["rows"] == 2
        found = table.scan(columns=["id", "more"]).to_table().sort_by("id")
        assert found["more"].to_pylist() == [None, 7]

    def test_leaves_rows_that_are_young(self, make_table: MakeTable) -> None:
        table = make_table()
        leave(table, {1: 1})

        assert table.recover().metrics["unflushed_regions"] == 1
        assert state(table) == {}
        assert table.recover(min_age_seconds=0).metrics["recovered_regions"] == 1
        assert state(table) == {1: 1}

    def test_age_is_that_of_the_table(self, make_table: MakeTable) -> None:
        table = make_table()
        table.set_writer_defaults(max_memtable_age=2 * HOUR)
        leave(table, {1: 1})

        assert recover(table.location, clock=in_an_hour).metrics["unflushed_regions"] == 1

        table.set_writer_defaults(max_memtable_age=0.001)
        time.sleep(0.01)
        assert table.recover().metrics["recovered_regions"] == 1

    def test_leaves_another_client_alone_for_a_day(self, make_table: MakeTable) -> None:
        """Lance's writer flushes by size alone, and stops when it is fenced."""
        table = make_table()
        shard = native.writer(table)
        native.put(shard, table, rows({1: 1}))

        assert recover(table.location, clock=in_an_hour).metrics["unflushed_regions"] == 1
        assert not read_status(table.location, clock=in_an_hour).regions_to_recover
        native.put(shard, table, rows({2: 2}))
        shard.close()
        assert state(table) == {1: 1, 2: 2}

    def test_takes_over_from_another_client_after_a_day_or_when_told_to(
        self, make_table: MakeTable
    ) -> None:
        for options, clock in (
            (RecoverOptions(), lambda: time.time() + 25 * HOUR),
            (RecoverOptions(min_age_seconds=timedelta(0)), time.time),
        ):
            table = make_table()
            shard = native.writer(table)
            native.put(shard, table, rows({1: 1}))
            assert state(table) == {}

            recover(table.location, options, clock=clock)

            assert state(table) == {1: 1}

    def test_leaves_a_backup_in_the_place_of_the_table_alone(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        """It was put there after the region was found, and before the claim."""
        table = make_table()
        leave(table, {1: 1})
        before: dict[str, tuple[int, int]] = {}

        def restore() -> None:
            elsewhere = shutil.move(folder(table), folder(table).with_name("elsewhere"))
            shutil.copytree(elsewhere, folder(table))
            before.update(listing(folder(table)))

        faults.of(table.location).act("create", restore, key=REGION_MANIFEST)

        result = recover(table.location, clock=in_an_hour)

        assert result.metrics["recovered_regions"] == 0
        assert result.warnings
        assert listing(folder(table)) == before
        assert before

    def test_leaves_a_region_that_is_older_than_the_base_table(self, make_table: MakeTable) -> None:
        """A generation flushed under one of its numbers would count as merged."""
        table = make_table()
        leave(table, {1: 1})
        update_details(table.location, lambda base: replace(base.details, merged={REGION: 7}))
        before = manifest(table)

        with pytest.raises(CorruptDataError, match=str(REGION)):
            recover(table.location, clock=in_an_hour)
        # The base table may go on after the plan, in the time until a task claims the region.
        metrics, warnings = run_recover_task(RegionsTask(table.location, (REGION,)))

        assert metrics["regions"] == 0
        assert str(REGION) in "".join(warnings)
        assert manifest(table) == before

    def test_makes_no_folder_where_the_table_was(
        self, faults: FaultyStores, make_table: MakeTable
    ) -> None:
        """The table is moved after the claim: Lance would make the folders of its generation."""
        table = make_table()
        leave(table, {1: 1})
        elsewhere = folder(table).with_name("elsewhere")
        # The claim looks at the newest entry, then the replay reads that and the fence.
        faults.of(table.location).act(
            "get", lambda: shutil.move(folder(table), elsewhere), key=WAL, skip=2, after=True
        )

        result = recover(table.location, clock=in_an_hour)

        assert result.metrics["recovered_regions"] == 0
        assert not folder(table).exists()
        moved = memwal.open(str(elsewhere))
        moved.recover(min_age_seconds=0)
        assert state(moved) == {1: 1}

    def test_of_a_table_that_was_made_anew_in_the_same_place(self, make_table: MakeTable) -> None:
        """Its entries have the names of others, which this process has seen."""
        table = make_table()
        for _ in range(2):
            writer = table.writer()
            writer.claim()
            writer.abort()
        assert recover(table.location, clock=in_an_hour).metrics["recovered_regions"] == 0
        shutil.rmtree(folder(table))
        again = memwal.create(table.uri, SCHEMA, primary_key=["id"], region_spec="unsharded")
        leave(again, {1: 1}, {2: 2})

        assert recover(again.location, clock=in_an_hour).metrics["recovered_regions"] == 1
        assert state(again) == {1: 1, 2: 2}

    def test_of_some_regions(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        leave(table, dict.fromkeys(range(8), 1))
        first = table.region_ids()[0]

        result = table.recover(regions=[first], min_age_seconds=0)

        assert result.metrics["recovered_regions"] == 1
        assert 0 < len(state(table)) < 8

    def test_an_entry_that_is_damaged_keeps_its_region_back_alone(
        self, make_table: MakeTable
    ) -> None:
        table = make_table(buckets=2)
        leave(table, dict.fromkeys(range(8), 1), dict.fromkeys(range(8), 2))
        entry = folder(table) / wal_key(table.region_ids()[0], 1)
        entry.write_bytes(b"nonsense" * 20)

        result = table.recover(min_age_seconds=0)

        assert result.metrics["recovered_regions"] == 1
        assert len(result.warnings) == 1
        assert 0 < len(state(table)) < 8

    def test_of_a_table_without_memwal(self, tmp_path: Path) -> None:
        lance.write_dataset(SCHEMA.empty_table(), str(tmp_path / "plain.lance"))

        with pytest.raises(TableSetupError):
            memwal.open(tmp_path / "plain.lance").recover()


class TestWriterThatLives:
    """A recovery took its writer for dead."""

    def test_claims_back_and_goes_on(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            table.recover(min_age_seconds=0)
            writer.upsert(rows({1: 10, 3: 3}))
            writer.delete(keys(2))

            assert state(writer) == {1: 10, 3: 3}
        assert state(table) == {1: 10, 3: 3}
        assert native.ordered(native.scan(table)) == native.ordered(table.scan().to_table())

    @pytest.mark.parametrize("step", ["flush", "close"])
    def test_flushes_after_it(self, make_table: MakeTable, step: str) -> None:
        table = make_table()
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        table.recover(min_age_seconds=0)

        getattr(writer, step)()

        assert state(table) == {1: 1}
        writer.abort()

    def test_every_time(self, make_table: MakeTable) -> None:
        table = make_table()
        with table.writer() as writer:
            for number in range(4):
                writer.upsert(rows({number: number}))
                assert table.recover(min_age_seconds=0).metrics["recovered_regions"] == 1
        assert state(table) == {number: number for number in range(4)}

    def test_stops_when_another_writer_claimed_since(self, make_table: MakeTable) -> None:
        """Two producers that claim from each other for ever would both look healthy."""
        table = make_table()
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        table.recover(min_age_seconds=0)
        with table.writer() as other:
            other.upsert(rows({1: 2}))

        with pytest.raises(RegionFencedError):
            writer.upsert(rows({1: 3}))
        assert state(table) == {1: 2}

    def test_applies_a_step_once(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        with table.writer() as writer:
            writer.apply(upserts=rows({1: 1, 2: 2}), source="stream", version=1)
            table.recover(min_age_seconds=0)
            assert (
                writer.apply(upserts=rows({1: 9, 2: 9}), source="stream", version=1).written == ()
            )
            writer.apply(upserts=rows({1: 10}), source="stream", version=2)
        assert state(table) == {1: 10, 2: 2}

    def test_with_buffered_writes_hears_of_those_that_were_lost(
        self, make_table: MakeTable
    ) -> None:
        table = make_table()
        options = memwal.WriterOptions(durable=False, buffer_interval=HOUR)
        writer = table.writer(options=options)
        writer.upsert(rows({1: 1}), wait=True)
        handle = writer.upsert(rows({2: 2}))
        table.recover(min_age_seconds=0)

        with pytest.raises(RegionFencedError):
            writer.flush()
        with pytest.raises(RegionFencedError):
            handle.wait()
        writer.upsert(rows({3: 3}), wait=True)
        writer.close()
        assert state(table) == {1: 1, 3: 3}


STEPS = {
    "manifest of the claim": ("create", REGION_MANIFEST, 0),
    "sentinel": ("create", WAL, 0),
    "generation": ("put", GENERATION, 0),
    "listing in the manifest": ("create", REGION_MANIFEST, 2),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_pauses_at_a_step_while_its_writer_goes_on(
    faults: FaultyStores, make_table: MakeTable, step: str, after: bool
) -> None:
    """What the writer was acknowledged is there in the end, whoever has the region."""
    table = make_table()
    store = faults.of(table.location)
    operation, key, skip = STEPS[step]
    has_sentinel = step.startswith(("generation", "list")) or (step == "sentinel" and after)
    writer = table.writer()
    writer.upsert(rows({1: 1, 2: 2}))
    pause = store.pause(operation, key, after=after, skip=skip)
    with pause.holding(recover, table.location, RecoverOptions(min_age_seconds=0)) as recovering:
        # Without a sentinel, these are before the one that will come, and are replayed.
        writer.upsert(rows({1: 10}))
        writer.delete(keys(2))
        # Nor can the writer tell then that it was a recovery that claimed the region.
        with nullcontext() if has_sentinel else suppress(RegionFencedError):
            writer.flush()
    recovering.result()
    if has_sentinel:
        writer.upsert(rows({3: 3}))
    writer.abort()
    table.recover(min_age_seconds=0)

    expected = {1: 10, 3: 3} if has_sentinel else {1: 10}
    assert state(table) == expected
    assert native.ordered(native.scan(table)) == native.ordered(table.scan().to_table())
    table.merge()
    assert base_state(table) == expected


def test_stops_when_the_table_is_replaced_under_it(
    faults: FaultyStores, make_table: MakeTable, tmp_path: Path
) -> None:
    """Nothing of it gets into the copy, and no folder is made in the place of the table."""
    table = make_table()
    leave(table, {1: 1})
    path = folder(table)
    pause = faults.of(table.location).pause("create", WAL, after=True)
    with pause.holding(recover, table.location, RecoverOptions(min_age_seconds=0)) as recovering:
        path.rename(tmp_path / "moved")

    assert len(recovering.result().warnings) == 1
    assert not path.exists()
    (tmp_path / "moved").rename(path)
    table.recover(min_age_seconds=0)
    assert state(table) == {1: 1}


def test_a_writer_that_cannot_ask_who_fenced_it_stays_fenced(
    faults: FaultyStores, make_table: MakeTable
) -> None:
    table = make_table(buckets=2)
    writer = table.writer()
    writer.upsert(rows(dict.fromkeys(range(8), 1)))
    table.recover(min_age_seconds=0)
    store = faults.of(table.location)
    store.fail("get*", WAL, times=1 << 30)

    with pytest.raises(MemWalError):
        writer.upsert(rows(dict.fromkeys(range(8), 2)))
    store.clear()
    writer.abort()
    assert state(table) == dict.fromkeys(range(8), 1)
