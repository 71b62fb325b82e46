"""Plans whose files were collected between the driver and the tasks."""

import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import lance
import pyarrow as pa
import pytest
from support.data.copied import copied_table
from support.data.tables import SCHEMA, MakeTable, keys, rows, state
from support.faults.collecting import DAY, collect
from support.oracles.read_sources import forget_caches

import memwal
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import ConflictError, InvalidInputError
from memwal.reader.sources import snapshot as snapshot_module
from memwal.spark.source import partition_reader
from memwal.spark.source.partition_reader import find_later_snapshot, open_pinned, read_partition
from memwal.spark.source.scan_plan import LoadPlan, ReadOptions, plan_load
from memwal.storage.location import TableLocation

# One of the two ways to merge by default.
pytestmark = pytest.mark.few(1)


def plan(table: memwal.Table, **options: Any) -> LoadPlan:
    given = ReadOptions(uri=table.uri, **{"partitions": 5, **options})
    return plan_load(table.location, given, columns=None)


HOW: dict[str, int] = {}
"""Options of every merge here; see :func:`how`."""


@pytest.fixture(
    autouse=True,
    params=[{}, {"divide_bytes": 0, "commit_bytes": 2_000, "max_tasks": 2}],
    ids=["undivided", "divided"],
)
def how(request: pytest.FixtureRequest) -> None:
    """Choose how tables are merged: by one worker, or in parts."""
    HOW.clear()
    HOW.update(request.param)


def merge(table: memwal.Table, **options: Any) -> None:
    table.merge(**HOW, **options)


def write(table: memwal.Table, values: dict[int, int], deleted: Iterable[int] = ()) -> None:
    with table.writer() as writer:
        writer.upsert(rows(values))
        if deleted:
            writer.delete(keys(*deleted))
        writer.flush()


def collect_all(table: memwal.Table) -> None:
    table.build_indexes()
    for days in (1, 2):
        collect(table, days * DAY)
    open_pinned.cache_clear()


def read(made: LoadPlan, shares: Iterable[int] | None = None) -> list[pa.RecordBatch]:
    chosen = range(len(made.partitions)) if shares is None else shares
    return [batch for number in chosen for batch in read_partition(made, made.partitions[number])]


def shown(made: LoadPlan, batches: list[pa.RecordBatch]) -> dict[int, int | None]:
    return state(pa.Table.from_batches(batches, made.schema))


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    """Return a table whose base rows are covered in part by two generations of each region."""

    def make(uri: str) -> None:
        table = memwal.create(uri, SCHEMA, primary_key=["id"], region_spec="bucket:id:3")
        write(table, dict.fromkeys(range(40), 0))
        merge(table)
        write(table, dict.fromkeys(range(20, 50), 1), deleted=[3, 4])
        write(table, dict.fromkeys(range(30, 55), 2), deleted=[21])

    return copied_table("of a partition reader", tmp_path / "covered", make)


EXPECTED = {
    **dict.fromkeys(range(20), 0),
    **dict.fromkeys(range(20, 30), 1),
    **dict.fromkeys(range(30, 55), 2),
}
for _deleted in (3, 4, 21):
    del EXPECTED[_deleted]


def add_column(table: memwal.Table) -> None:
    lance.dataset(table.uri).add_columns(pa.schema([pa.field("more", pa.int64())]))
    merge(table)


def write_after_a_merge(table: memwal.Table) -> None:
    merge(table)
    write(table, {1: 9, 100: 9})


def merge_newer_rows_later(table: memwal.Table) -> None:
    write_after_a_merge(table)
    merge(table)


def merge_newer_deletes_later(table: memwal.Table) -> None:
    """They have a commit of their own, before the one that shows too much."""
    merge(table)
    write(table, {1: 9}, deleted=[2])
    write(table, {100: 9}, deleted=[5])
    merge(table)


class TestCollected:
    @pytest.mark.few(5)
    @pytest.mark.parametrize(
        "change",
        [merge, write_after_a_merge, merge_newer_rows_later, merge_newer_deletes_later, add_column],
    )
    def test_what_else_is_in_the_table_by_then_is_left_out(
        self, table: memwal.Table, change: Callable[[memwal.Table], None]
    ) -> None:
        made = plan(table)
        change(table)
        collect_all(table)
        assert shown(made, read(made)) == EXPECTED

    @pytest.mark.few(2)
    @pytest.mark.parametrize("seed", range(4))
    def test_in_the_midst_of_a_query(self, table: memwal.Table, seed: int) -> None:
        """Tasks before and after the collection have each row once between them."""
        dice = random.Random(seed)
        made = plan(table)
        order = list(range(len(made.partitions)))
        dice.shuffle(order)
        cut = dice.randint(1, len(order) - 1)
        before = read(made, order[:cut])
        merge(table, regions=dice.sample(table.region_ids(), dice.randint(1, 3)))
        collect_all(table)
        assert shown(made, before + read(made, order[cut:])) == EXPECTED

    def test_with_a_filter_and_regions(self, table: memwal.Table) -> None:
        region, *_ = table.region_ids()
        options: dict[str, Any] = {"filter": "n > 0", "regions": frozenset([region])}
        made = plan(table, **options)
        expected = shown(made, read(made))
        assert 0 < len(expected) < len(EXPECTED)
        merge(table)
        collect_all(table)
        assert shown(made, read(made)) == expected

    def test_generations_that_the_filter_rules_out_may_be_merged(self, table: memwal.Table) -> None:
        """None of their rows passes, so a version that contains them shows what the plan shows."""
        made = plan(table, filter="id = 7 or id = 33")
        assert made.pruned
        assert made.snapshot.generations
        merge(table)
        collect_all(table)
        assert shown(made, read(made)) == {7: 0, 33: 2}

    def test_newer_generations_of_the_other_regions_do_not_matter(
        self, table: memwal.Table
    ) -> None:
        region, other, *_ = table.region_ids()
        made = plan(table, regions=frozenset([region]))
        expected = shown(made, read(made))
        merge(table, regions=[region])
        write(table, dict.fromkeys(range(60), 9))
        merge(table, regions=[other])
        collect_all(table)
        assert shown(made, read(made)) == expected

    def test_without_a_spec_that_has_all_the_regions(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base = table.base()
        without = replace(base, details=replace(base.details, region_specs=()))
        with monkeypatch.context() as patch:
            patch.setattr(snapshot_module, "open_base", lambda location, **_: without)
            made = plan(table)
        assert len([share for share in made.partitions if share.generations]) == 1
        merge(table)
        collect_all(table)
        assert shown(made, read(made)) == EXPECTED


class TestNotToBeTold:
    def test_newer_rows_in_the_same_commit(self, table: memwal.Table) -> None:
        made = plan(table)
        write(table, {1: 9, 100: 9})
        merge(table)
        collect_all(table)
        with pytest.raises(ConflictError):
            read(made)

    @pytest.mark.parametrize("write_directly", ["upsert", "compact"])
    def test_somebody_else_wrote(self, table: memwal.Table, write_directly: str) -> None:
        dataset = lance.write_dataset(rows({200: 0}), table.uri, mode="append")
        made = plan(table)
        if write_directly == "upsert":
            dataset.merge_insert("id").when_matched_update_all().execute(rows({1: 9}))
        else:
            assert dataset.optimize.compact_files().fragments_removed == 2
        merge(table)
        collect_all(table)
        with pytest.raises(ConflictError):
            read(made)

    def test_keys_belong_to_other_regions(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = plan(table)
        merge(table)
        collect_all(table)

        def respecified(location: TableLocation, *, version: int | None = None) -> BaseTable:
            base = open_base(location, version=version)
            if base.version == made.snapshot.version:
                return base
            return replace(base, details=replace(base.details, region_specs=()))

        assert find_later_snapshot(made) is not None
        monkeypatch.setattr(partition_reader, "open_base", respecified)
        assert find_later_snapshot(made) is None

    def test_the_version_of_the_plan_is_gone(self, table: memwal.Table) -> None:
        made = plan(table)
        merge(table)
        collect_all(table)
        lance.dataset(table.uri).cleanup_old_versions(timedelta(0))
        with pytest.raises(ConflictError):
            read(made)


def test_another_table_in_its_place_is_told(make_table: MakeTable, tmp_path: Path) -> None:
    """A worker may still have the version open that the old table had."""
    table = make_table()
    write(table, {1: 1})
    merge(table)
    made = plan(table)
    assert shown(made, read(made)) == {1: 1}
    kept = tmp_path / "kept"
    shutil.move(table.uri, kept)
    table = memwal.create(
        made.snapshot.location.uri, SCHEMA, primary_key=["id"], region_spec="unsharded"
    )
    write(table, {1: 2})
    merge(table)
    anew = plan(table)
    assert anew.snapshot.version == made.snapshot.version
    assert shown(anew, read(anew)) == {1: 2}
    open_pinned.cache_clear()
    with pytest.raises(ConflictError):
        read(made)


class TestFresh:
    """Loads that read the logs."""

    @pytest.fixture
    def writer(self, table: memwal.Table) -> Iterator[memwal.Writer]:
        """Return a writer with unflushed rows: 60 and 22 are new, 30 is deleted."""
        with table.writer() as writer:
            writer.upsert(rows({60: 5, 22: 5}))
            writer.delete(keys(30))
            yield writer

    NEWER: ClassVar[dict[int, int | None]] = {
        key: n for key, n in {**EXPECTED, 60: 5, 22: 5}.items() if key != 30
    }

    def test_the_logs_are_read(self, table: memwal.Table, writer: memwal.Writer) -> None:
        plain, fresh = plan(table), plan(table, fresh=True)
        assert shown(plain, read(plain)) == EXPECTED
        assert shown(fresh, read(fresh)) == self.NEWER
        assert not plain.snapshot.logs
        assert fresh.snapshot.logs
        with pytest.raises(InvalidInputError):
            plan(table, fresh=True, version=table.version)

    def test_of_some_regions_and_with_a_filter(
        self, table: memwal.Table, writer: memwal.Writer
    ) -> None:
        found: dict[int, int | None] = {}
        for region in table.region_ids():
            made = plan(table, fresh=True, regions=frozenset([region]), filter="n > 1")
            found |= shown(made, read(made))
        assert found == {key: n for key, n in self.NEWER.items() if n is not None and n > 1}

    def test_writes_after_the_load_are_not_seen(
        self, table: memwal.Table, writer: memwal.Writer
    ) -> None:
        made = plan(table, fresh=True)
        writer.upsert(rows({60: 6, 61: 6, 1: 6}))
        writer.delete(keys(2))
        assert shown(made, read(made)) == self.NEWER

    @pytest.mark.parametrize("cut", [0, 2])
    def test_rows_that_are_flushed_and_merged_after_the_load(
        self, table: memwal.Table, writer: memwal.Writer, cut: int
    ) -> None:
        made = plan(table, fresh=True)
        before = read(made, range(cut))
        writer.upsert(rows({60: 6, 61: 6}))
        writer.flush()
        merge(table)
        open_pinned.cache_clear()
        assert shown(made, before + read(made, range(cut, len(made.partitions)))) == self.NEWER

    def test_logs_that_were_collected(self, table: memwal.Table, writer: memwal.Writer) -> None:
        """After the protection of the load has ended."""
        made = plan(table, fresh=True)
        writer.flush()
        merge(table)
        collect_all(table)
        forget_caches()
        with pytest.raises(ConflictError):
            read(made)

    def test_a_table_without_any_generation(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            made = plan(table, fresh=True)
            assert shown(made, read(made)) == {1: 1, 2: 2}
