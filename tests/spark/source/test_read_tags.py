"""Loads whose files stay stored while they are read, whatever is merged and collected meanwhile."""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data.copied import copied_table
from support.data.tables import SCHEMA, age, keys, rows, state
from support.faults.collecting import DAY, collect
from support.stores.faulty_store import FaultyStore, FaultyStores, Killed

import memwal
import memwal.spark
from memwal.base_table.refs import ReadTag, delete_tag, list_read_tags
from memwal.base_table.snapshot import BaseTable
from memwal.errors import ConflictError, MemWalError, StoreAccessError, StoreUnavailableError
from memwal.jobs.gc import GarbageKind
from memwal.spark.source import partition_reader, scan_plan
from memwal.spark.source import read_tags as protection
from memwal.spark.source.partition_reader import open_pinned, read_partition
from memwal.spark.source.scan_plan import LoadPlan, ReadOptions, plan_load

# Collectors of these tests have clocks that are days ahead.
LONG = 10 * int(DAY)
MINE = "5e5510"

EXPECTED = {**dict.fromkeys(range(10), 0), **dict.fromkeys(range(10, 20), 1), 20: 2}
del EXPECTED[3]


def write(table: memwal.Table, values: dict[int, int | None], *deleted: int) -> None:
    with table.writer() as writer:
        writer.upsert(rows(values))
        if deleted:
            writer.delete(keys(*deleted))


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    """Return a table with base rows, and two generations that are not merged in each region."""

    def make(uri: str) -> None:
        table = memwal.create(uri, SCHEMA, primary_key=["id"], region_spec="bucket:id:2")
        write(table, dict.fromkeys(range(15), 0))
        table.merge()
        write(table, dict.fromkeys(range(10, 20), 1), 3)
        write(table, {20: 2})

    return copied_table("tagged by readers", tmp_path / "table", make)


@pytest.fixture
def no_later_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where files of a plan are gone."""

    def gone(plan: LoadPlan) -> None:
        raise AssertionError("files of the plan are gone")

    monkeypatch.setattr(partition_reader, "find_later_snapshot", gone)


def plan(table: memwal.Table, *, session: str = MINE, **options: Any) -> LoadPlan:
    given = ReadOptions(uri=table.uri, **{"partitions": 4, "protect_seconds": LONG, **options})
    return plan_load(table.location, given, columns=None, session=session)


def read(made: LoadPlan) -> dict[int, int | None]:
    open_pinned.cache_clear()
    batches = [batch for share in made.partitions for batch in read_partition(made, share)]
    return state(pa.Table.from_batches(batches, made.schema))


def collect_all(table: memwal.Table, *days: int, base_versions: bool = True) -> list[Any]:
    """Collect for good, as of so many days from now, with Lance's part of it."""
    decisions = []
    for day in days:
        retention = 0 if base_versions else None
        result = collect(table, day * DAY, version_retention_seconds=retention, explain=True)
        assert result.warnings == ()
        decisions += result.decisions
    return decisions


def replace_everything(table: memwal.Table) -> None:
    """Whatever makes a plan's rows unfindable elsewhere: newer rows in one commit with its own."""
    write(table, dict.fromkeys(range(25), 9))
    table.merge()
    lance.write_dataset(rows({500: 5}), table.uri, mode="append")
    table.base().dataset.optimize.compact_files()
    table.build_indexes()


def tags(table: memwal.Table) -> list[str]:
    return sorted(table.base().dataset.tags.list())


@pytest.mark.usefixtures("no_later_snapshot")
class TestProtected:
    def test_after_newer_rows_a_direct_write_and_a_compaction(self, table: memwal.Table) -> None:
        made = plan(table)
        replace_everything(table)
        decisions = collect_all(table, 1, 2)
        assert read(made) == EXPECTED
        (told,) = [d for d in decisions if d.kind is GarbageKind.READ][1:]
        assert not told.delete
        assert f"version {made.snapshot.version}" in told.message
        assert {d.reason for d in decisions if d.kind is GarbageKind.GENERATION} >= {"read"}

    def test_until_it_ends(self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch) -> None:
        made = plan(table)
        replace_everything(table)
        collect_all(table, 9)
        assert read(made) == EXPECTED
        monkeypatch.undo()
        decisions = collect_all(table, 11, 12)
        assert [d.what for d in decisions if d.kind is GarbageKind.READ and d.delete] == [
            made.protection.name
        ]
        assert tags(table) == []
        with pytest.raises(ConflictError, match="protect_seconds"):
            read(made)

    def test_a_past_version(self, table: memwal.Table) -> None:
        version = table.base().version
        replace_everything(table)
        made = plan(table, version=version)
        collect_all(table, 1, 2)
        assert read(made) == dict.fromkeys(range(15), 0)

    def test_a_tag_of_the_users_is_enough(self, table: memwal.Table) -> None:
        table.base().dataset.tags.create("report", table.base().version)
        made = plan(table, tag="report")
        assert made.protection is None
        assert tags(table) == ["report"]

    def test_a_session_has_one_tag_for_each_version(self, table: memwal.Table) -> None:
        first, second = plan(table), plan(table, columns=("id",))
        assert first.protection == second.protection
        other = plan(table, session="07e4")
        assert len(tags(table)) == 2
        write(table, {30: 3})
        table.merge()
        assert plan(table).protection not in (first.protection, other.protection)
        assert len(tags(table)) == 3

    def test_release(self, table: memwal.Table) -> None:
        plan(table, session=protection.SESSION)
        kept = plan(table, session="07e4").protection
        table.base().dataset.tags.create("mine", 1)
        assert memwal.spark.release(table.uri) == 1
        assert tags(table) == sorted([kept.name, "mine"])
        assert memwal.spark.release(table.uri) == 0

    def test_none_is_wanted(self, table: memwal.Table) -> None:
        assert plan(table, protect_seconds=0).protection is None
        assert tags(table) == []


class TestRenewal:
    @pytest.fixture
    def loaded(self, faults: FaultyStores, table: memwal.Table) -> tuple[LoadPlan, FaultyStore]:
        made = plan(table, protect_seconds=8000)
        store = faults.of(table.location)
        store.clear()
        return made, store

    def test_a_young_tag_costs_a_look_now_and_then(self, loaded) -> None:
        made, store = loaded
        for seconds, looks in ((0.0, 1), (1.0, 1), (999.0, 1), (1000.0, 2), (1500.0, 2)):
            protection.renew_if_due(
                made.snapshot.location, made.protection, clock=lambda seconds=seconds: seconds
            )
            assert store.calls == [("head", made.protection.key)] * looks

    def test_reading_renews_it(self, loaded, table: memwal.Table) -> None:
        made, _ = loaded
        age(table, 2100, pattern="_refs/tags/*")
        before = list_read_tags(table.location)[made.protection]
        assert read(made) == EXPECTED
        after = list_read_tags(table.location)[made.protection]
        assert (after - before).total_seconds() == pytest.approx(2100, abs=60)
        (told,) = table.base().dataset.tags.list().values()
        assert told["version"] == made.snapshot.version

    def test_a_tag_that_has_ended_is_left_alone(
        self, loaded, table: memwal.Table, caplog: pytest.LogCaptureFixture
    ) -> None:
        made, store = loaded
        age(table, 8001, pattern="_refs/tags/*")
        before = list_read_tags(table.location)
        with caplog.at_level(logging.WARNING, "memwal"):
            assert read(made) == EXPECTED
        assert list_read_tags(table.location) == before
        (warning,) = caplog.records
        assert "protect_seconds" in warning.getMessage()
        assert store.count("put") == store.count("replace") == 0
        again = plan(table, protect_seconds=8000)
        assert again.protection != made.protection, "the ended one may go at any moment"
        assert again.protection.reader.startswith(MINE)

    def test_it_is_taken_away_before_it_is_written(self, loaded, table: memwal.Table) -> None:
        made, store = loaded
        age(table, 2100, pattern="_refs/tags/*")
        store.act("replace", lambda: store.inner.delete(made.protection.key))
        assert read(made) == EXPECTED
        assert tags(table) == [], "what was taken away does not come back"

    @pytest.mark.parametrize("operation", ["head", "get", "replace"])
    def test_a_store_that_fails_is_no_error(self, loaded, table, operation: str) -> None:
        made, store = loaded
        age(table, 2100, pattern="_refs/tags/*")
        rule = store.fail(operation, "_refs/*")
        assert read(made) == EXPECTED
        assert rule.hits == 1


class TestNoPermission:
    def test_it_is_told_once_and_read_all_the_same(
        self,
        table: memwal.Table,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def refuse(base: BaseTable, tag: ReadTag) -> bool:
            raise StoreAccessError("placing a tag: access denied")

        monkeypatch.setattr(protection, "place_tag", refuse)
        with caplog.at_level(logging.WARNING, "memwal"):
            made, _ = plan(table), plan(table)
        assert made.protection is None
        assert caplog.text.count("protect_seconds") == 1
        table.merge()
        table.build_indexes()
        collect(table, DAY)
        collect(table, 2 * DAY)
        assert read(made) == EXPECTED

    def test_lance_cannot_write_the_tag(self, table: memwal.Table) -> None:
        (table.location.local_path / "_refs").write_bytes(b"no folder")
        made = plan(table)
        assert made.protection is None
        assert read(made) == EXPECTED


@pytest.fixture
def stepped(
    faults: FaultyStores, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> FaultyStore:
    """Return the store, which has what Lance does for a tag as steps as well."""
    store = faults.of(table.location)
    place, holds = protection.place_tag, scan_plan.is_still_newest
    monkeypatch.setattr(
        protection,
        "place_tag",
        lambda base, tag: store.step("place", tag.key, lambda: place(base, tag)),
    )
    monkeypatch.setattr(
        scan_plan, "is_still_newest", lambda b: store.step("holds", "", lambda: holds(b))
    )
    return store


def steps(store: FaultyStore, run: Callable[[], object]) -> Iterator[tuple[int, bool]]:
    """Before and after each request of something that was run once to count them."""
    store.clear()
    run()
    count = len(store.calls)
    store.clear()
    for number in range(count):
        yield number, False
        yield number, True


def at(store: FaultyStore, number: int, after: bool, act: Callable[[], None]) -> None:
    store.clear()
    store.act("*", act, after=after, skip=number)


@pytest.mark.usefixtures("no_later_snapshot")
class TestRaces:
    @pytest.mark.few(1)
    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("step", ["place", "holds"])
    def test_merged_and_collected_while_the_tag_is_placed(
        self, stepped: FaultyStore, table: memwal.Table, step: str, after: bool
    ) -> None:
        assert self.merged_and_collected(stepped, table, step, 0, after, base_versions=False)

    @pytest.mark.slow
    @pytest.mark.parametrize("base_versions", [False, True])
    def test_merged_and_collected_at_each_step_of_a_load(
        self, stepped: FaultyStore, table: memwal.Table, base_versions: bool
    ) -> None:
        """The load stands still for two days of the collector's."""
        number = 0
        while all(
            self.merged_and_collected(
                stepped, table, "*", number, after, base_versions=base_versions
            )
            for after in (False, True)
        ):
            number += 1
        assert number >= 6

    def merged_and_collected(
        self,
        store: FaultyStore,
        table: memwal.Table,
        step: str,
        number: int,
        after: bool,
        *,
        base_versions: bool,
    ) -> bool:
        """Returns whether the load has such a step."""
        for tag in list_read_tags(table.location):
            delete_tag(table.location, tag)
        write(table, dict.fromkeys(range(1000, 1010), number))
        expected = state(table)

        def act() -> None:
            store.clear()
            table.merge()
            table.build_indexes()
            collect_all(table, 1, 2, base_versions=base_versions)

        store.clear()
        rule = store.act(step, act, after=after, skip=number)
        made = plan(table)
        store.clear()
        write(table, dict.fromkeys(range(10), number))
        table.merge()
        table.build_indexes()
        collect_all(table, 1, 2)
        assert read(made) == expected, (step, number, after)
        return rule.hits == 1

    @pytest.mark.parametrize("cases", [4, pytest.param(60, marks=pytest.mark.slow)])
    def test_a_load_at_each_step_of_a_collector(
        self, quick_faults: FaultyStores, table: memwal.Table, tmp_path: Path, cases: int
    ) -> None:
        """It read the tags before ours was there, and goes on when all is merged."""
        write(table, {30: 3})
        table.merge()
        table.build_indexes()
        collect(table, 590)
        write(table, {31: 3})
        expected = state(table)

        def copy(name: str) -> memwal.Table:
            shutil.copytree(table.uri, tmp_path / name, copy_function=shutil.copy2)
            return memwal.open(str(tmp_path / name))

        def work(copied: memwal.Table) -> None:
            collect(copied, 1200, version_retention_seconds=0)

        counted = copy("counted")
        found = list(steps(quick_faults.of(counted.location), lambda: work(counted)))
        assert len(found) > 20
        for number, after in found[:: max(1, len(found) // cases)]:
            copied = copy(f"step-{number}-{after}")
            made: list[LoadPlan] = []

            def act(copied: memwal.Table = copied, made: list[LoadPlan] = made) -> None:
                made.append(plan(copied))
                replace_everything(copied)

            at(quick_faults.of(copied.location), number, after, act)
            work(copied)
            collect_all(copied, 1, 2)
            assert read(made[0]) == expected, (number, after)
            shutil.rmtree(copied.uri)

    def test_others_commit_all_the_time(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In the end the last plan stands, with a tag that all who come later respect."""
        holds = scan_plan.is_still_newest

        def busy(base: BaseTable) -> bool:
            write(table, {1: 0})
            table.merge()
            return holds(base)

        monkeypatch.setattr(scan_plan, "is_still_newest", busy)
        made = plan(table)
        monkeypatch.undo()
        assert tags(table) == [made.protection.name], "useless tags were taken away again"
        replace_everything(table)
        collect_all(table, 1, 2)
        assert read(made) == EXPECTED

    def test_a_version_that_is_cleaned_up_before_it_is_tagged(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = protection.place_tag
        placed = []

        def late(base: BaseTable, tag: ReadTag) -> bool:
            if not placed:
                table.merge()
                table.build_indexes()
                collect_all(table, 1, 2)
            placed.append(tag)
            return place(base, tag)

        monkeypatch.setattr(protection, "place_tag", late)
        made = plan(table)
        assert [tag.version for tag in placed] == [placed[0].version, made.snapshot.version]
        assert read(made) == EXPECTED


class TestDeaths:
    @pytest.mark.few(1)
    @pytest.mark.parametrize("fault", [Killed, StoreUnavailableError])
    def test_at_each_step(
        self, stepped: FaultyStore, table: memwal.Table, fault: type[BaseException]
    ) -> None:
        """What is left is at most a tag that ends."""

        def die() -> None:
            raise fault("here")

        for number, after in steps(stepped, lambda: plan(table, session="c0")):
            at(stepped, number, after, die)
            with suppress(Killed, MemWalError):
                plan(table, session=f"{number}{after:d}")
            stepped.clear()
            assert read(plan(table)) == EXPECTED
        assert all(name.startswith("memwal-read-") for name in tags(table))
        collect_all(table, 11)
        assert tags(table) == []
