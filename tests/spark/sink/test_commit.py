"""Writes without Spark: what tasks stage, and the commit that writes it, whatever dies."""

import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from support.data.changes import batch, change
from support.data.tables import MakeTable, generations, keys, rows, state
from support.faults.collecting import DAY, collect
from support.stores.faulty_store import (
    REGION_MANIFEST,
    WAL,
    FaultyStores,
    Killed,
    skip_waits,
)

import memwal
from memwal.errors import InvalidInputError, MemWalError, ObjectNotFoundError, RegionFencedError
from memwal.format.paths import STAGED_ROWS_DIR
from memwal.lsm.wal.applied_steps import AppliedStep, Step
from memwal.resharding import add_region_spec
from memwal.spark.sink import commit as commits
from memwal.spark.sink import staged_rows
from memwal.spark.sink.options import parse_write_options
from memwal.spark.sink.plan import WritePlan, plan_write
from memwal.spark.sink.staged_rows import RegionStream, delete_staged

SOURCE = "nightly"
CHANGE_OPTIONS = {"op_column": "op", "sequence_by": "at"}
EVENTS = pa.schema([("n", pa.int64()), ("text", pa.string())])


def plan(table: memwal.Table, given: pa.Table, **options: str) -> WritePlan:
    parsed = parse_write_options({"path": table.uri} | options)
    made = plan_write(table.location, parsed, given.schema.names, overwrite=False)
    return pickle.loads(pickle.dumps(made))


def stage(of: WritePlan, *tasks: pa.Table) -> list[RegionStream]:
    """What the driver hears of tasks."""
    found = [part for task in tasks for part in of.stage(task.to_batches())]
    return pickle.loads(pickle.dumps(found))


def write(
    table: memwal.Table, *tasks: pa.Table, version: int | None = None, **options: str
) -> AppliedStep:
    made = plan(table, tasks[0], **options)
    return made.commit(stage(made, *tasks), None if version is None else Step(SOURCE, version))


def staged(table: memwal.Table) -> list[str]:
    return [info.key for info in table.location.store.list(STAGED_ROWS_DIR)]


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each batch of a task staged as an object."""
    monkeypatch.setattr(staged_rows, "_MESSAGE_BYTES", 0)
    monkeypatch.setattr(staged_rows, "_OBJECT_BYTES", 1)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each region written by itself."""
    monkeypatch.setattr(commits, "_GROUP_BYTES", 1)


@pytest.fixture
def events(make_table: MakeTable) -> memwal.Table:
    return make_table(EVENTS, primary_key=(), region_spec=memwal.RegionSpec.bucket("n", 3))


def events_of(*numbers: int) -> pa.Table:
    return pa.table({"n": numbers, "text": [str(n) for n in numbers]}, schema=EVENTS)


def counts(table: memwal.Table) -> Counter[int]:
    return Counter(table.scan(columns=["n"]).to_table()["n"].to_pylist())


class TestRows:
    @pytest.mark.usefixtures("objects")
    def test_of_all_tasks_the_newest_counts(self, make_table: MakeTable) -> None:
        table = make_table(buckets=3)
        table.upsert(rows({8: 8, 9: 9}))
        first = batch(*(change(key, 1, at=1) for key in range(6)), change(9, 0, op="d"))
        second = batch(change(2, 5, at=0), change(3, 5, at=2), change(4, 0, at=2, op="delete"))
        done = write(table, first, second, **CHANGE_OPTIONS)
        assert len(done.written) == 3
        assert state(table) == {0: 1, 1: 1, 2: 1, 3: 5, 5: 1, 8: 8}
        assert {len(generations(table, region)) for region in table.region_ids()} <= {1, 2}

    def test_a_key_in_two_tasks_needs_an_order(self, table: memwal.Table) -> None:
        with pytest.raises(InvalidInputError, match="sequence_by"):
            write(table, rows({1: 1}), rows({1: 2}))
        assert state(table) == {}

    def test_columns_that_are_not_given_keep_their_values(self, table: memwal.Table) -> None:
        table.upsert(rows({1: 1, 2: 2}))
        part = pa.table({"id": [1, 3], "text": ["a", "c"], "op": ["u", "u"]})
        write(table, part, partial="true", op_column="op")
        found = table.scan().to_table().sort_by("id")
        assert found["n"].to_pylist() == [1, 2, None]
        assert found["text"].to_pylist() == ["a", "2=2", "c"]

    def test_of_a_table_without_a_key_are_added(self, events: memwal.Table) -> None:
        write(events, events_of(1, 1, 2), events_of(1))
        assert counts(events) == {1: 3, 2: 1}

    def test_none(self, table: memwal.Table) -> None:
        assert write(table, rows({})) == AppliedStep()

    def test_deletes_of_which_only_the_key_is_given(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        write(table, batch(change(1, 1), change(2, 2)), **CHANGE_OPTIONS)
        write(table, batch((1, None, None, "d", 1)), **CHANGE_OPTIONS)
        assert state(table) == {2: 2}


class TestSteps:
    @pytest.mark.parametrize("version", [7, 6])
    def test_are_written_once_and_fence_nobody_again(
        self, make_table: MakeTable, version: int
    ) -> None:
        table = make_table(buckets=3)
        given = rows(dict.fromkeys(range(9), 1))
        assert len(write(table, given, version=7).written) == 3
        with table.writer() as producer:
            producer.upsert(rows({1: 7}))
            assert len(write(table, given, version=version).skipped) == 3
            producer.upsert(rows({2: 7}))
        assert state(table) == {**dict.fromkeys(range(9), 1), 1: 7, 2: 7}

    @pytest.mark.few(2)
    @pytest.mark.usefixtures("one_by_one")
    @pytest.mark.parametrize(
        ("operation", "key", "after"),
        [
            ("create", REGION_MANIFEST, False),
            ("create", REGION_MANIFEST, True),
            ("create", WAL, False),
            ("create", WAL, True),
        ],
    )
    def test_a_commit_that_dies_anywhere_is_completed(
        self, faults: FaultyStores, events: memwal.Table, operation: str, key: str, after: bool
    ) -> None:
        given = events_of(*range(9), *range(9))
        expected = Counter(given["n"].to_pylist())
        store = faults.of(events.location)
        for skip in range(12):
            store.clear()
            rule = store.kill(operation, key, after=after, skip=skip)
            # The thread of a flush dies alone.
            with suppress(Killed, MemWalError):
                write(events, given, version=skip)
            store.clear()
            write(events, given, version=skip)
            assert counts(events) == Counter({n: c * (skip + 1) for n, c in expected.items()})
            if not rule.hits:
                return
        raise AssertionError("there are fewer calls than that")

    @pytest.mark.parametrize("key", [REGION_MANIFEST, WAL])
    @pytest.mark.parametrize("after", [False, True])
    def test_a_commit_that_wakes_after_it_was_repeated(
        self, faults: FaultyStores, events: memwal.Table, key: str, after: bool
    ) -> None:
        given = events_of(*range(9), 1)
        pause = faults.of(events.location).pause("create", key, after=after)
        with pause.holding(write, events, given, version=1) as sleeping:
            write(events, given, version=1)
            write(events, events_of(1), version=2)
        error = sleeping.exception()
        assert error is None or isinstance(error, MemWalError)
        assert counts(events) == Counter([*range(9), 1, 1])

    def test_another_division_of_the_table_is_refused(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        given = rows(dict.fromkeys(range(9), 1))
        made = plan(table, given)
        parts = stage(made, given)
        add_region_spec(table.uri, memwal.RegionSpec.bucket("id", 3))
        with pytest.raises(InvalidInputError, match="claim"):
            made.commit(parts, Step(SOURCE, 1))
        assert state(table) == {}


class TestObjects:
    @pytest.mark.usefixtures("objects")
    def test_of_tries_that_did_not_count_are_collected(self, make_table: MakeTable) -> None:
        table = make_table(buckets=3)
        given = rows(dict.fromkeys(range(9), 1))
        made = plan(table, given)
        lost, counted = stage(made, given), stage(made, given)
        made.commit(counted, None)
        delete_staged(table.location.store, counted)
        assert set(staged(table)) == {part.key for part in lost}
        collect(table, DAY / 2)
        assert len(staged(table)) == 1
        collect(table, 2 * DAY)
        assert staged(table) == []
        assert state(table) == dict.fromkeys(range(9), 1)

    @pytest.mark.usefixtures("objects")
    def test_that_are_gone_or_torn_are_an_error(self, make_table: MakeTable) -> None:
        table = make_table(buckets=3)
        given = rows(dict.fromkeys(range(9), 1))
        made = plan(table, given)
        parts = stage(made, given)
        store = table.location.store
        whole = store.get(parts[0].key)
        store.put(parts[0].key, whole[:-8] + bytes(8))
        with pytest.raises(MemWalError):
            made.commit(parts, None)
        delete_staged(store, parts)
        with pytest.raises(ObjectNotFoundError):
            made.commit(parts, None)
        assert state(table) == {}


class TestOtherWriters:
    def fenced(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
        def writer(self: memwal.Table, **options: Any) -> Any:
            calls.append(1)
            raise RegionFencedError("again")

        calls: list[int] = []
        monkeypatch.setattr(memwal.Table, "writer", writer)
        skip_waits(monkeypatch)
        while True:
            yield len(calls)

    def test_that_claim_the_regions_are_waited_for(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = self.fenced(monkeypatch)
        next(calls)
        with pytest.raises(RegionFencedError):
            write(table, rows({1: 1}))
        assert next(calls) == 6

    def test_but_rows_that_could_be_added_twice_are_not_repeated(
        self, events: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = self.fenced(monkeypatch)
        next(calls)
        with pytest.raises(RegionFencedError):
            write(events, events_of(1))
        assert next(calls) == 1

    def test_may_flush_what_a_commit_left_in_the_log(self, table: memwal.Table) -> None:
        writer = table.writer()
        writer.apply(upserts=rows({1: 1}), source=SOURCE, version=0)
        writer.abort()
        assert state(table) == {}
        assert write(table, rows({1: 1}), version=0).written == ()
        assert state(table) == {1: 1}
        table.delete(keys(1))
        assert write(table, rows({1: 1}), version=0).written == ()
        assert state(table) == {}
