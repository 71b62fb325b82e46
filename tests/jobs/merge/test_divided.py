"""A merge divided into tasks: the same rows as one worker merges, every step killed and raced."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable
from support.data.copied import copied_table
from support.data.damage import damage_column
from support.data.merging import DIVIDED, elsewhere
from support.data.tables import (
    Rows,
    base_state,
    flush,
    flush_and_merge,
    folder,
    later,
    merged,
    numbered,
    rows,
    state,
    undivided_tasks,
)
from support.faults.deaths import die_at_commit
from support.stores.faulty_store import TABLE_MANIFEST, FaultyStore, FaultyStores, Killed, Pause

import memwal
from memwal.errors import MemWalError, OutcomeUnknownError
from memwal.jobs.gc.job import collect_garbage
from memwal.jobs.job import Guard, JobResult, ParallelRunner, wrap_runner
from memwal.jobs.merge import match
from memwal.jobs.merge.commit import read_source
from memwal.jobs.merge.divided import merge_divided
from memwal.jobs.merge.job import MergeTask, merge, plan_merge, run_merge_task
from memwal.jobs.merge.picker import Candidate, RegionSelection, Share, divide
from memwal.jobs.merge.rewrite import RewriteTask
from memwal.jobs.merge.run_files import MERGES_DIR
from memwal.jobs.options import GcOptions, MergeOptions
from memwal.jobs.verify.merged_rows import are_merges_since
from memwal.reader.base_indexes import merged_fragments
from memwal.reader.base_rows import scan_keys
from memwal.region.router import bucket_region_id
from memwal.storage.location import TableLocation

REGIONS = [bucket_region_id(number) for number in range(2)]
TEXT = 2
"""Number of a column."""


def divided(table: memwal.Table | TableLocation, **options: Any) -> JobResult:
    """Merge in parts, however small."""
    location = table.location if isinstance(table, memwal.Table) else table
    options = DIVIDED | {"run": elsewhere} | options
    return merge(location, MergeOptions(**options))


def check_merged(table: memwal.Table, expected: Rows) -> None:
    """All is in the base table, once, and nothing is pending."""
    assert state(table) == expected
    assert base_state(table) == expected
    assert table.base().dataset.count_rows() == len(expected)
    assert table.status().backlog_generations == 0
    assert not table.verify(deep=True).errors


@pytest.fixture(
    params=[
        pytest.param(False, id="addresses"),
        pytest.param(True, id="stable row ids", marks=pytest.mark.slow),
    ]
)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> memwal.Table:
    """Two regions, of which the base table has rows."""

    def make(uri: str) -> None:
        empty = rows({}).schema.empty_table()
        lance.write_dataset(empty, uri, enable_stable_row_ids=request.param)
        table = memwal.enable(uri, primary_key=["id"], region_spec="bucket:id:2")
        flush_and_merge(table, dict.fromkeys(range(60), 0))

    return copied_table(f"divided {request.param}", tmp_path / "table", make)


EXPECTED: Rows = {
    **dict.fromkeys(range(10), 0),
    **dict.fromkeys(range(10, 20), 1),
    **dict.fromkeys(range(25, 40), 2),
    **dict.fromkeys(range(40, 60), 0),
    **dict.fromkeys(range(60, 90), 3),
    # Deleted, and written again.
    **dict.fromkeys((41, 42, 43, 95, 96, 97), 3),
}


def fill(table: memwal.Table) -> None:
    """Write a backlog of three generations for each region; see EXPECTED."""
    flush(
        table,
        dict.fromkeys(range(10, 40), 1),
        [*range(20, 25), 999, 41, 42, 43, 95, 96, 97],
        {
            **dict.fromkeys(range(25, 40), 2),
            **dict.fromkeys([*range(60, 90), 41, 42, 43, 95, 96, 97], 3),
        },
    )


class TestParts:
    def test_of_large_and_small_regions(self, table: memwal.Table) -> None:
        def region(number: int, *sizes: int) -> RegionSelection:
            chosen = tuple(Candidate(n, str(n), size) for n, size in enumerate(sizes, start=1))
            return RegionSelection(bucket_region_id(number), chosen)

        large, small = region(0, 500, 700), [region(number, 90) for number in range(1, 8)]

        parts = divide([large, *small], 300, 1)

        shares = [part for part in parts if part.regions == (large,)]
        assert [part.share for part in shares] == [
            Share(n, len(shares)) for n in range(len(shares))
        ]
        whole = [region for part in parts if part not in shares for region in part.regions]
        assert sorted(whole, key=str) == sorted(small, key=str)
        assert all(part.bytes <= 300 for part in parts)

    def test_of_many_regions_have_about_the_same_size(self) -> None:
        regions = [
            RegionSelection(UUID(int=n), (Candidate(1, "a", n << 20),)) for n in range(1, 200)
        ]

        sizes = [part.bytes for part in divide(regions, 1 << 40, 8)]

        assert (len(sizes), sum(sizes)) == (8, sum(region.bytes for region in regions))
        assert max(sizes) - min(sizes) <= 199 << 20

    @pytest.mark.parametrize("workers", [1, 5])
    def test_are_few_however_little_a_task_may_take(self, workers: int) -> None:
        regions = [RegionSelection(r, (Candidate(1, "a", 22_000),)) for r in REGIONS]

        assert len(divide(regions, 1, workers)) <= 8 * workers + len(regions)


class TestRows:
    @pytest.mark.few(1)
    @pytest.mark.parametrize("commit_bytes", [200, 500, 1 << 30])
    def test_are_those_of_an_undivided_merge(
        self, table: memwal.Table, tmp_path: Path, commit_bytes: int
    ) -> None:
        fill(table)
        shutil.copytree(folder(table), tmp_path / "copy")
        other = memwal.open(str(tmp_path / "copy"))
        other.merge()

        result = divided(table, commit_bytes=commit_bytes)

        check_merged(table, EXPECTED)
        assert base_state(other) == base_state(table)
        assert result.commits == 1
        assert (result.tasks > 2) is (commit_bytes < 1 << 30)
        assert result.metrics["generations"] == 6
        assert result.metrics["rows_upserted"] == 61
        assert result.metrics["rows_deleted"] == 5
        assert result.metrics["bytes_read"] > 0
        assert not list(table.location.store.list(MERGES_DIR))

    @pytest.mark.few(1)
    @pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
    def test_of_composite_keys_and_nested_values(self, tmp_path: Path, version: str) -> None:
        schema = pa.schema(
            [
                pa.field("place", pa.string(), nullable=False),
                pa.field("day", pa.int32(), nullable=False),
                pa.field("at", pa.struct([("x", pa.int64()), ("names", pa.list_(pa.string()))])),
                pa.field("v", pa.list_(pa.float32(), 4)),
            ]
        )
        uri = str(tmp_path / "nested.lance")
        lance.write_dataset(schema.empty_table(), uri, data_storage_version=version)
        table = memwal.enable(uri, primary_key=["place", "day"], region_spec="bucket:place:3")

        def some(days: range, x: int) -> pa.Table:
            return pa.Table.from_pylist(
                [
                    {
                        "place": place,
                        "day": day,
                        "at": {"x": x, "names": [place, str(x)]},
                        "v": [x, 1.0, 2.0, float(day)],
                    }
                    for place in ("ä", "b", "")
                    for day in days
                ],
                schema=schema,
            )

        table.upsert(some(range(40), 1))
        divided(table)
        with table.writer() as writer:
            writer.upsert(some(range(20, 60), 2))
            writer.flush()
            writer.delete(some(range(25, 30), 0).select(["place", "day"]))
        expected = table.scan().to_table().sort_by([("place", "ascending"), ("day", "ascending")])
        divided(table)

        found = (
            lance.dataset(uri).to_table().sort_by([("place", "ascending"), ("day", "ascending")])
        )
        assert found == expected
        assert found.num_rows == 3 * 55

    def test_are_found_through_the_indexes_of_the_base_table(self, table: memwal.Table) -> None:
        lance.dataset(table.uri).create_scalar_index("id", "BTREE")
        lance.dataset(table.uri).create_scalar_index("n", "BTREE")
        fill(table)
        divided(table)

        dataset = lance.dataset(table.uri)
        assert dataset.to_table(filter="id = 22").num_rows == 0
        assert dataset.to_table(filter="n = 1").num_rows == 10
        assert dataset.to_table(filter="n = 2").num_rows == 15
        table.build_indexes()
        assert lance.dataset(table.uri).to_table(filter="n = 2").num_rows == 15
        check_merged(table, EXPECTED)


class TestStableRowIds:
    """A row that is replaced keeps its id, and Lance tells what a merge changed."""

    @pytest.fixture
    def table(self, tmp_path: Path) -> memwal.Table:
        uri = str(tmp_path / "stable")
        lance.write_dataset(numbered(0, 60), uri, max_rows_per_file=25, enable_stable_row_ids=True)
        for column in ("id", "n"):
            lance.dataset(uri).create_scalar_index(column, "BTREE")
        return memwal.enable(uri, primary_key=["id"], region_spec="bucket:id:2")

    def ids(self, table: memwal.Table) -> dict[int, int]:
        """Return the row id of each key."""
        stored = lance.dataset(table.uri).to_table(columns=["id"], with_row_id=True)
        return dict(
            zip(stored.column("id").to_pylist(), stored.column("_rowid").to_pylist(), strict=True)
        )

    def check_ids(self, table: memwal.Table, before: dict[int, int]) -> None:
        after = self.ids(table)
        assert {key: after[key] for key in after.keys() & before} == {
            key: before[key] for key in after.keys() & before
        }
        # Rows that are appended later get ids that no row has.
        lance.write_dataset(rows({1000: 1, 1001: 1}), table.uri, mode="append")
        assert len({*self.ids(table).values()}) == len(after) + 2

    @pytest.mark.parametrize("commit_bytes", [200, 1 << 30])
    def test_are_kept(self, table: memwal.Table, commit_bytes: int) -> None:
        before, version = self.ids(table), table.base().version
        fill(table)
        divided(table, commit_bytes=commit_bytes)

        check_merged(table, EXPECTED)
        dataset = lance.dataset(table.uri)
        changes = dataset.delta(compared_against=version)
        inserted = [row["id"] for batch in changes.get_inserted_rows() for row in batch.to_pylist()]
        updated = [row["id"] for batch in changes.get_updated_rows() for row in batch.to_pylist()]
        assert sorted(inserted) == [*range(60, 90), 95, 96, 97]
        assert sorted(updated) == [*range(10, 20), *range(25, 40), 41, 42, 43]
        assert dataset.to_table(filter="n = 0").num_rows == 10 + 20 - 3
        assert dataset.to_table(filter="id = 22").num_rows == 0
        assert dataset.to_table(filter="id = 12").column("n").to_pylist() == [1]
        self.check_ids(table, before)

    @pytest.mark.few(3)
    @pytest.mark.parametrize("write", ["append of a key that is merged", "compaction", "delete"])
    @pytest.mark.parametrize("place", ["rewriting", "matched"])
    def test_are_kept_next_to_others(
        self, faults: FaultyStores, table: memwal.Table, write: str, place: str
    ) -> None:
        """The rows are written again only where another id is to be kept."""
        before = self.ids(table)
        fill(table)
        act, _ = DIRECT_WRITES[write]
        files = folder(table) / "data"
        with standing_at(place, faults, table, commit_bytes=1 << 30) as running:
            written = len(list(files.iterdir()))
            act(table.uri)
            written_by_others = len(list(files.iterdir())) - written
        assert running.result().commits == 1

        appended = self.ids(table)
        again = len(list(files.iterdir())) - written - written_by_others
        assert again == (place == "rewriting") + (write != "compaction")
        gone = {5} if write == "delete" else set()
        check_merged(table, {key: n for key, n in EXPECTED.items() if key not in gone})
        if write == "delete":
            # What was deleted directly is new for the table.
            assert appended[12] not in before.values()
            del before[12]
        self.check_ids(table, before)


class TestKeyIndex:
    """The index on the key is asked where few of its pages can have the keys of a merge."""

    ROWS = 40_000

    @pytest.fixture
    def table(self, tmp_path: Path) -> memwal.Table:
        uri = str(tmp_path / "indexed")
        lance.write_dataset(numbered(0, self.ROWS), uri, max_rows_per_file=10_000)
        lance.dataset(uri).create_scalar_index("id", "BTREE")
        lance.dataset(uri).delete("id = 5 or id >= 15000 and id < 15010")
        spec = memwal.RegionSpec.bucket("id", 2)
        return memwal.enable(uri, primary_key=["id"], region_spec=spec)

    def merge(self, table: memwal.Table) -> JobResult:
        """Merge keys at both ends of the table: rows that are there, deleted, and new."""
        flush(table, {4: 1, 5: 1, 6: 1, 39_998: 1, 40_001: 1}, [7, 15_005, 90_000])
        result = divided(table, commit_bytes=1 << 30)
        gone = {7, *range(15_000, 15_010)}
        expected: Rows = {key: 0 for key in range(self.ROWS) if key not in gone}
        check_merged(table, {**expected, **dict.fromkeys((4, 5, 6, 39_998, 40_001), 1)})
        return result

    def test_is_read_in_place_of_the_keys(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scanned: list[int] = []

        def spied(base: Any, wanted: Any, fragments: Sequence[Any], **options: Any) -> Any:
            scanned.extend(fragment.fragment_id for fragment in fragments)
            return scan_keys(base, wanted, fragments, **options)

        monkeypatch.setattr(match, "scan_keys", spied)
        # A fragment that the index does not cover.
        lance.write_dataset(numbered(50_000, 3), table.uri, mode="append")
        flush(table, {50_001: 1, 3: 1})
        divided(table, commit_bytes=1 << 30)

        assert scanned == [4]
        found = lance.dataset(table.uri).to_table(filter="id in (3, 50001)", columns=["id", "n"])
        assert sorted(found.column("n").to_pylist()) == [1, 1]
        assert table.base().dataset.count_rows() == self.ROWS - 11 + 3

    def test_tells_deleted_rows_from_others(self, table: memwal.Table) -> None:
        assert self.merge(table).metrics["rows_deleted"] == 1

    def test_in_several_segments(self, table: memwal.Table) -> None:
        lance.write_dataset(numbered(60_000, 10), table.uri, mode="append")
        lance.dataset(table.uri).optimize.optimize_indices(num_indices_to_merge=0)
        lance.dataset(table.uri).delete("id >= 60000")
        self.merge(table)

    def test_whose_rows_a_compaction_moved_without_it(self, table: memwal.Table) -> None:
        """It is said to cover the new fragment, and has the rows where they were."""
        lance.dataset(table.uri).optimize.compact_files(
            target_rows_per_fragment=100_000, defer_index_remap=True
        )
        self.merge(table)

    def test_that_is_damaged(self, table: memwal.Table) -> None:
        for path in folder(table).glob("_indices/*/page_data.lance"):
            path.write_bytes(path.read_bytes()[:-40])
        flush(table, {4: 1, 45_000: 1}, [7])
        divided(table, commit_bytes=1 << 30)

        dataset = lance.dataset(table.uri)
        ids = dataset.to_table(columns=["id"]).column("id").to_pylist()
        assert len(ids) == len(set(ids)) == self.ROWS - 11
        assert {4, 45_000} <= set(ids)
        assert 7 not in ids


class TestDamagedGeneration:
    @pytest.mark.parametrize("commit_bytes", [500, 1 << 30])
    @pytest.mark.parametrize("number", [3, 4], ids=["every column", "no key column"])
    def test_stops_its_region_in_every_part(
        self, table: memwal.Table, number: int, commit_bytes: int
    ) -> None:
        fill(table)
        region = REGIONS[0]
        (damaged,) = folder(table).glob(f"_mem_wal/{region}/*_gen_{number}")
        if number == 3:
            for path in (damaged / "data").iterdir():
                path.write_bytes(path.read_bytes()[:-40])
        else:
            damage_column(damaged, TEXT)

        result = divided(table, commit_bytes=commit_bytes)

        (skipped,) = result.skipped_regions
        assert (skipped.region_id, skipped.generation) == (str(region), number)
        assert merged(table, REGIONS[1]) == 4
        assert merged(table, region) == number - 1

    def test_of_a_later_attempt_takes_no_keys_from_the_first(self, table: memwal.Table) -> None:
        """Spark repeats slow tasks; the second attempt may end after the first one was taken."""
        fill(table)
        (damaged,) = folder(table).glob(f"_mem_wal/{REGIONS[0]}/*_gen_3")
        contents = {path: path.read_bytes() for path in (damaged / "data").iterdir()}

        def run(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
            results = run_here(tasks, function)
            if isinstance(tasks[0], RewriteTask) and not results[0].task.kept:
                for path, data in contents.items():
                    path.write_bytes(data[:-40])
                repeated = run_here(tasks, function)
                assert any(result.skipped for result in repeated)
                for path, data in contents.items():
                    path.write_bytes(data)
            return results

        assert not divided(table, run=run).warnings

        check_merged(table, EXPECTED)


PLACES = ("rewriting", "matched", "committed")
FOUND = f"{MERGES_DIR}/*/matched-*.arrow"
"""What tasks store that compare a part of the keys each."""


def at(place: str, store: FaultyStore, act: Callable[[], None]) -> Guard | None:
    """Have something done once at a place of the divided merge that comes next."""
    if place == "rewriting":
        store.act("put", act, key=f"{MERGES_DIR}/*.arrow", after=True)
    elif place == "found":
        store.act("put", act, key=FOUND, after=True)
    elif place == "committed":
        store.act("create", act, key=TABLE_MANIFEST, after=True)
    else:
        calls = iter([act])
        return lambda: next(calls, lambda: None)()
    return None


@contextmanager
def standing_at(
    place: str, faults: FaultyStores, table: memwal.Table, **options: Any
) -> Iterator[Future[JobResult]]:
    """Let a divided merge in another thread stand still at a place until the block ends."""
    pause = Pause()
    guard = at(place, faults.of(table.location), pause.stand)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(divided, table.location, guard=guard, run=run_here, **options)
        try:
            assert pause.wait_until_reached(running), f"it did not come to {place}"
            yield running
        finally:
            pause.release()


def run_here(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
    return [function(task) for task in tasks]


class TestDeath:
    @pytest.mark.few(2)
    @pytest.mark.parametrize("landed", [True, False])
    @pytest.mark.parametrize("dies", [True, False], ids=["dies", "does not know the outcome"])
    def test_at_the_commit_leaves_rows_and_progress_or_neither(
        self, faults: FaultyStores, table: memwal.Table, landed: bool, dies: bool
    ) -> None:
        fill(table)
        store = faults.of(table.location)
        if dies:
            die_at_commit(store, after=landed)
        else:
            unknown = OutcomeUnknownError("the store does not say")
            store.fail("create", TABLE_MANIFEST, unknown, after=landed)
        with pytest.raises((Killed, MemWalError)):
            divided(table, run=run_here)
        store.clear()
        assert (base_state(table) == EXPECTED) is landed
        assert table.status().backlog_generations == (0 if landed else 6)
        assert state(table) == EXPECTED
        assert table.verify(deep=True).clean

        result = table.merge() if dies else divided(table)

        assert result.metrics["generations"] == (0 if landed else 6)
        check_merged(table, EXPECTED)

    @pytest.mark.parametrize("undone", [True, False])
    def test_before_the_marks_of_a_table_that_was_restored(
        self, faults: FaultyStores, table: memwal.Table, undone: bool
    ) -> None:
        fill(table)
        before = lance.dataset(table.uri).version
        die_at_commit(faults.of(table.location), after=True)
        with pytest.raises((Killed, MemWalError)):
            divided(table, run=run_here)
        faults.of(table.location).clear()
        if undone:
            lance.dataset(table.uri, version=before).restore()
        else:
            lance.write_dataset(rows({777: 7}), table.uri, mode="append")
        result = divided(table)

        assert (result.metrics["generations"] == 6) is undone
        check_merged(table, EXPECTED if undone else {**EXPECTED, 777: 7})


def test_a_version_that_is_cleaned_up_under_it(faults: FaultyStores, table: memwal.Table) -> None:
    """Tasks that start later cannot open it any more."""
    fill(table)

    def clean_up() -> None:
        lance.write_dataset(rows({777: 7}), table.uri, mode="append")
        lance.dataset(table.uri).cleanup_old_versions(timedelta(0))

    at("rewriting", faults.of(table.location), clean_up)

    assert divided(table, run=run_here).metrics["generations"] == 6
    check_merged(table, {**EXPECTED, 777: 7})


def test_rows_that_a_disk_lost_are_written_again(faults: FaultyStores, table: memwal.Table) -> None:
    """The commit finds it; another commit of the same files would find the same."""
    fill(table)
    before = {*(folder(table) / "data").iterdir()}

    def cut_off() -> None:
        path = next(path for path in (folder(table) / "data").iterdir() if path not in before)
        path.write_bytes(path.read_bytes()[:-1])

    guard = at("matched", faults.of(table.location), cut_off)
    assert divided(table, run=run_here, guard=guard).metrics["generations"] == 6
    check_merged(table, EXPECTED)


class TestTwoMergers:
    @pytest.mark.few(3)
    @pytest.mark.parametrize("how", ["divided", "undivided"])
    @pytest.mark.parametrize("place", PLACES)
    def test_one_sleeps_while_the_other_merges_further(
        self, faults: FaultyStores, table: memwal.Table, place: str, how: str
    ) -> None:
        """It brings back what the sleeper deletes, and deletes what the sleeper writes."""
        fill(table)
        with standing_at(place, faults, table):
            if place != "committed":
                divided(table)
            flush(table, dict.fromkeys(range(20, 25), 7), [*range(60, 65)])
            divided(table) if how == "divided" else table.merge()

        expected = {**EXPECTED, **dict.fromkeys(range(20, 25), 7)}
        check_merged(table, {key: n for key, n in expected.items() if key not in range(60, 65)})

    @pytest.mark.few(4)
    @pytest.mark.parametrize("how", ["divided", "undivided", "by Lance"])
    @pytest.mark.parametrize("place", ["rewriting", "matched"])
    def test_one_sleeps_while_the_other_merges_less(
        self, faults: FaultyStores, table: memwal.Table, place: str, how: str
    ) -> None:
        """The base table has older rows then: the sleeper must not commit what it rewrote."""
        fill(table)
        (task,) = undivided_tasks(table)
        with standing_at(place, faults, table) as running:
            first = tuple(replace(r, generations=r.generations[:1]) for r in task.regions)
            if how == "divided":
                _merge_first_divided(table)
            elif how == "undivided":
                run_merge_task(replace(task, regions=first))
            else:
                merge_first_by_lance(table)()
        running.exception()

        assert state(table) == EXPECTED
        divided(table)
        check_merged(table, EXPECTED)

    def test_one_sleeps_before_its_commit_while_the_other_dies_after_its_deletes(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        """It deleted what a later generation wrote, which is pending for it."""
        fill(table)
        task = first_two(table)

        def die_at_the_second_call() -> None:
            calls.append(0)
            if len(calls) == 2:
                raise Killed

        calls: list[int] = []
        with (
            standing_at("matched", faults, table) as running,
            pytest.raises((Killed, MemWalError)),
        ):
            run_merge_task(task, guard=die_at_the_second_call)
        running.exception()

        assert state(table) == EXPECTED
        divided(table)
        check_merged(table, EXPECTED)

    def test_one_commits_while_the_other_sleeps_before_its_deletes(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        fill(table)
        task = first_two(table)
        before_deletes = Pause()
        guard = at("matched", faults.of(table.location), before_deletes.stand)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(run_merge_task, task, guard=guard)
            assert before_deletes.wait_until_reached(other)
            assert divided(table).commits == 1
            before_deletes.release()
            assert other.result().metrics["generations"] == 0

        check_merged(table, EXPECTED)

    def test_one_commits_rows_between_the_deletes_and_the_rows_of_the_other(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        """The rows are those that the other one has deleted."""
        flush(table, {100: 1, 101: 1, 102: 1, 103: 1}, [100, 101, 102, 103], {104: 2, 105: 2})
        (task,) = undivided_tasks(table)
        after_deletes = Pause()
        store = faults.of(table.location)
        store.act("create", after_deletes.stand, key=TABLE_MANIFEST, after=True)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(run_merge_task, task)
            assert after_deletes.wait_until_reached(other)
            first = [replace(r, generations=r.generations[:1]) for r in task.regions]
            die_at_commit(store, after=True)
            with pytest.raises((Killed, MemWalError)):
                merge_divided(table.location, first, MergeOptions(commit_bytes=500))
            store.clear()
            after_deletes.release()
            other.result()

        check_merged(table, {**dict.fromkeys(range(60), 0), 104: 2, 105: 2})

    def test_a_native_one_that_was_prepared_before_is_refused(self, table: memwal.Table) -> None:
        """It would mark a generation below the progress, with older rows."""
        fill(table)
        commit_older = merge_first_by_lance(table)
        divided(table)

        with pytest.raises((OSError, ValueError)):
            commit_older()
        check_merged(table, EXPECTED)

    def test_of_different_regions_do_not_wait_for_each_other(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        fill(table)
        with standing_at("committed", faults, table, regions=[REGIONS[0]]) as running:
            divided(table, regions=[REGIONS[1]])
        assert running.result().metrics["generations"] == 3
        check_merged(table, EXPECTED)


def first_two(table: memwal.Table) -> MergeTask:
    """Return the task of a merge of the two oldest generations of each region."""
    (task,) = undivided_tasks(table)
    regions = tuple(replace(r, generations=r.generations[:2]) for r in task.regions)
    return replace(task, regions=regions)


def _merge_first_divided(table: memwal.Table) -> None:
    """Merge the oldest generation of each region, in parts, without helping a run that sleeps."""
    merge_divided(table.location, first_of_each(table), MergeOptions(commit_bytes=500))


def first_of_each(table: memwal.Table) -> list[RegionSelection]:
    """Return the oldest generation of each region."""
    plan = plan_merge(table.location, MergeOptions(divide_bytes=0, max_tasks=2))
    return [replace(r, generations=r.generations[:1]) for r in plan.selections]


def merge_first_by_lance(table: memwal.Table) -> Callable[[], object]:
    """Prepare a merge of these by Lance's call, and return what makes its commit."""
    first = first_of_each(table)
    upserts = read_source(table.base(), first).upserts
    builder = lance.dataset(table.uri).merge_insert("id").when_matched_update_all()
    builder.when_not_matched_insert_all().mark_sstables_as_compacted(
        [CompactedSsTable(str(r.region_id), r.generations[-1].number) for r in first]
    )
    return lambda: builder.execute(upserts)


DIRECT_WRITES: dict[str, tuple[Callable[[str], object], Rows]] = {
    "append": (lambda uri: lance.write_dataset(rows({777: 7}), uri, mode="append"), {777: 7}),
    "append of a key that is merged": (
        lambda uri: lance.write_dataset(rows({70: 1}), uri, mode="append"),
        {},
    ),
    "delete": (lambda uri: lance.dataset(uri).delete("id = 5 or id = 12"), {5: None}),
    "compaction": (lambda uri: lance.dataset(uri).optimize.compact_files(), {}),
    "index": (lambda uri: lance.dataset(uri).create_scalar_index("n", "BTREE"), {}),
}


class TestDirectWrites:
    def test_of_other_columns_start_it_over(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        fill(table)
        with standing_at("matched", faults, table) as running:
            lance.dataset(table.uri).drop_columns(["text"])
            lance.dataset(table.uri).add_columns(pa.field("text", pa.string()))
        running.result()

        found = lance.dataset(table.uri).to_table()
        assert dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True)) == EXPECTED
        assert found.num_rows == len(EXPECTED)


class TestPartsOfTheKeys:
    """Where tasks compare a part of the keys each, what they find is stored for the next stage."""

    OPTIONS: ClassVar[dict[str, Any]] = {"commit_bytes": 200, "max_tasks": 8}

    @pytest.fixture(autouse=True)
    def small_tasks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(match, "MIN_TASK_ROWS", 1)

    @pytest.mark.parametrize(("later", "matches"), [(1, 1), (8, 2)])
    def test_are_as_many_as_run_at_once_when_they_are_matched(
        self, table: memwal.Table, later: int, matches: int
    ) -> None:
        """Executors may register while the first tasks run."""
        fill(table)
        stages: list[int] = []

        def run(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
            stages.append(len(tasks))
            return run_here(tasks, function)

        runner = ParallelRunner(run, lambda: later if stages else 1)
        divided(table, commit_bytes=2000, max_tasks=None, run=wrap_runner(runner, runner))

        check_merged(table, EXPECTED)
        assert stages[1] == matches

    def test_find_the_same_rows_however_often_a_task_runs(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        fill(table)

        def twice(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
            run_here(tasks, function)
            return run_here(tasks, function)

        result = divided(table, run=twice, **self.OPTIONS)

        check_merged(table, EXPECTED)
        assert result.metrics["rows_deleted"] == 5
        assert faults.of(table.location).count("put", FOUND) >= 4

    @pytest.mark.few(1)
    @pytest.mark.parametrize("write", ["append of a key that is merged", "delete", "compaction"])
    def test_are_compared_again_with_what_others_change(
        self, faults: FaultyStores, table: memwal.Table, write: str
    ) -> None:
        fill(table)
        act, changed = DIRECT_WRITES[write]
        with standing_at("found", faults, table, **self.OPTIONS) as running:
            act(table.uri)
        assert running.result().commits == 1

        expected = {**EXPECTED, **changed}
        check_merged(table, {key: n for key, n in expected.items() if n is not None})

    def test_are_dropped_if_another_one_merges_further(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        fill(table)
        with standing_at("found", faults, table, **self.OPTIONS):
            divided(table)
            flush(table, dict.fromkeys(range(20, 25), 7), [*range(60, 65)])
            divided(table, **self.OPTIONS)

        expected = {**EXPECTED, **dict.fromkeys(range(20, 25), 7)}
        check_merged(table, {key: n for key, n in expected.items() if key not in range(60, 65)})


class TestWhoeverLooksBack:
    def test_knows_that_a_divided_merge_wrote_the_rows(self, table: memwal.Table) -> None:
        fill(table)
        divided(table)
        base = table.base()

        assert are_merges_since(base, REGIONS[0], 2)
        new = base.dataset.fragment_ids()
        assert merged_fragments(base, new) == frozenset(new)
        lance.dataset(table.uri).delete("id = 1")
        assert not are_merges_since(table.base(), REGIONS[0], 2)


class TestLeftovers:
    def test_of_a_run_that_died_are_collected_by_age(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        fill(table)
        store = faults.of(table.location)
        store.kill("create", TABLE_MANIFEST)
        store.kill("delete_folder")
        with pytest.raises((Killed, MemWalError)):
            divided(table, run=run_here)
        store.clear()
        left = [info.key for info in table.location.store.list(MERGES_DIR)]
        assert left

        def collect(seconds: float) -> int:
            options = GcOptions(dry_run=False, grace_seconds=0, orphan_grace_seconds=1000)
            result = collect_garbage(table.location, options, clock=later(seconds))
            return result.metrics["staging_files"]

        assert collect(10) == 0
        assert collect(2000) >= len(left)
        assert not list(table.location.store.list(MERGES_DIR))
        divided(table)
        check_merged(table, EXPECTED)

    @pytest.mark.parametrize("place", ["rewriting", "found"])
    def test_that_are_collected_too_early_fail_the_run_and_nothing_else(
        self,
        faults: FaultyStores,
        table: memwal.Table,
        monkeypatch: pytest.MonkeyPatch,
        place: str,
    ) -> None:
        monkeypatch.setattr(match, "MIN_TASK_ROWS", 1)
        options = TestPartsOfTheKeys.OPTIONS if place == "found" else {"commit_bytes": 1 << 30}
        fill(table)
        with standing_at(place, faults, table, **options) as running:
            shutil.rmtree(folder(table) / MERGES_DIR)
        with pytest.raises(MemWalError):
            running.result()

        assert state(table) == EXPECTED
        divided(table)
        check_merged(table, EXPECTED)
