"""Merging generations into the base table, with every step killed, paused, raced and repeated."""

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import lance
import pyarrow as pa
import pytest
from support.data.sampled import sampled
from support.data.tables import (
    REGION,
    MakeTable,
    Rows,
    base_state,
    flush,
    folder,
    keys,
    manifest,
    merged,
    numbered,
    rows,
    state,
    undivided_tasks,
)
from support.stores.faulty_store import TABLE_MANIFEST, FaultyStore, FaultyStores, Pause

import memwal
from memwal.base_table.commit_records import read_details
from memwal.base_table.snapshot import open_base
from memwal.errors import ConflictError, MemWalError, TableSetupError
from memwal.format.paths import generation_dir
from memwal.jobs.job import Guard, JobResult
from memwal.jobs.merge import divided
from memwal.jobs.merge import job as merging
from memwal.jobs.merge.commit import read_source
from memwal.jobs.merge.job import merge, run_merge_task
from memwal.jobs.merge.run_files import MERGES_DIR
from memwal.jobs.options import MergeOptions
from memwal.region.router import bucket_region_id
from memwal.storage.location import TableLocation


def check_merged(table: memwal.Table, expected: Rows, region_id: UUID = REGION) -> None:
    """All is in the base table, once, and a merging read shows the same."""
    assert state(table) == expected
    assert base_state(table) == expected
    assert table.base().dataset.count_rows() == len(expected)
    newest = max((f.generation for f in manifest(table, region_id).flushed), default=0)
    assert merged(table, region_id) == newest


BEFORE_COMMITS = ("read", "opened again")
"""Right before the delete pass, and right before the marked commit."""


def at(place: str, store: FaultyStore, act: Callable[[], None]) -> Guard | None:
    """Have something done once at a place of the merge that comes next.

    Returns
    -------
    callable or None
        The guard that the merge is to have.
    """

    if place == "planned":
        store.act("get", act, key=TABLE_MANIFEST, after=True)
    elif place == "opened":
        # The plan reads the base table first, then the commit does.
        store.act("get", act, key=TABLE_MANIFEST, after=True, skip=1)
    elif place == "deleted":
        store.act("create", act, key=TABLE_MANIFEST, after=True)
    else:
        # The guard is asked before the delete pass, then before the marked commit.
        return at_call({"read": 0, "opened again": 1}[place], act)
    return None


def at_call(number: int, act: Callable[[], None]) -> Guard:
    """A guard that has something done at one of its calls."""
    calls = itertools.count()
    return lambda: act() if next(calls) == number else None


def guarded_merge(location: TableLocation, *, guard: Guard | None, **options: Any) -> JobResult:
    return merge(location, MergeOptions(guard=guard, **options))


@contextmanager
def standing_at(
    place: str,
    faults: FaultyStores,
    table: memwal.Table,
    run: Callable[..., Any] = guarded_merge,
    **options: Any,
) -> Iterator[Future[Any]]:
    """Let a merge in another thread stand still at a place until the block ends.

    ``run`` is given the location of the table, or ``task`` in its place, and a guard.
    """
    pause = Pause()
    guard = at(place, faults.of(table.location), pause.stand)
    given = options.pop("task", table.location)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, given, guard=guard, **options)
        try:
            assert pause.wait_until_reached(running), f"it did not come to {place}"
            yield running
        finally:
            pause.release()


class TestMerge:
    def test_brings_rows_and_deletes_into_the_base_table(self, table: memwal.Table) -> None:
        flush(table, {1: 1, 2: 2, 3: 3}, {2: 22, 4: 4}, [1, 99])

        result = table.merge()

        check_merged(table, {2: 22, 3: 3, 4: 4})
        assert result.warnings == ()
        assert result.metrics["generations"] == 3
        assert result.metrics["rows_upserted"] == 3
        assert result.version == table.base().version

    def test_of_deletes_alone_records_the_progress(self, table: memwal.Table) -> None:
        flush(table, [1, 2, 3])
        table.merge()
        check_merged(table, {})
        flush(table, {1: 1})
        table.merge()
        flush(table, [1])
        table.merge()
        check_merged(table, {})

    def test_without_a_backlog_commits_nothing(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        table.merge()
        version = table.base().version

        result = table.merge()

        assert (result.tasks, result.commits, result.version) == (0, 0, version)
        assert table.base().version == version

    def test_of_an_empty_table(self, table: memwal.Table) -> None:
        assert table.merge().commits == 0
        table.writer().claim()
        assert table.merge().commits == 0

    def test_takes_only_the_regions_asked_for(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        table.upsert(numbered(0, 20))
        chosen, other = bucket_region_id(0), bucket_region_id(1)

        table.merge(regions=[chosen])

        assert (merged(table, chosen), merged(table, other)) == (1, 0)
        assert state(table) == dict.fromkeys(range(20), 0)
        assert 0 < table.base().dataset.count_rows() < 20

    def test_does_what_it_explained(self, make_table: MakeTable) -> None:
        table = make_table(buckets=3)
        with table.writer() as writer:
            for turn in range(3):
                writer.upsert(numbered(0, 30, n=turn))
                writer.flush()
        version = table.base().version

        plan = table.explain_merge(commit_bytes=500, skip_regions=[bucket_region_id(2)]).to_dict()

        assert table.base().version == version
        assert all(decision["age_seconds"] >= 0 for decision in plan["decisions"])
        result = table.merge(commit_bytes=500, skip_regions=[bucket_region_id(2)])
        assert plan["candidates"] == 9
        assert plan["selected"] == result.metrics["generations"] == 6
        assert plan["bytes"] == result.metrics["bytes"]
        assert plan["commits"] == result.commits > 1

    def test_a_table_without_mem_wal_is_refused(self, tmp_path: Path) -> None:
        lance.write_dataset(rows({1: 1}), str(tmp_path / "plain"))
        with pytest.raises(TableSetupError):
            memwal.open(str(tmp_path / "plain")).merge()


def test_rows_for_lance_are_not_in_the_memory_of_arrow(table: memwal.Table) -> None:
    """Lance frees them on threads of its own, of which Arrow's allocator would get few back."""
    # Of the older generation half of the rows are left, so that they are copied.
    flush(table, dict.fromkeys(range(20_000), 1), dict.fromkeys(range(0, 20_000, 2), 2))
    (task,) = undivided_tasks(table)
    before = pa.system_memory_pool().bytes_allocated()

    source = read_source(table.base(), task.regions)

    assert source.upserts.num_rows == 20_000
    copied = source.upserts.nbytes // 2
    assert pa.system_memory_pool().bytes_allocated() - before >= copied


class TestOrder:
    @pytest.mark.few(1)
    @pytest.mark.parametrize("commit_bytes", [1, 60, 200, 1 << 30])
    def test_every_version_is_a_moment_of_the_history(
        self, table: memwal.Table, commit_bytes: int
    ) -> None:
        """Commits are made oldest first, whole generations each, and never skip one."""
        dice = random.Random(commit_bytes)
        moments: list[Rows] = [{}]
        with table.writer() as writer:
            for turn in range(1, 9):
                now = dict(moments[-1])
                changed = dice.sample(range(6), 3)
                writer.upsert(rows(dict.fromkeys(changed, turn)))
                now.update(dict.fromkeys(changed, turn))
                gone = dice.sample(range(6), 1)
                writer.delete(keys(*gone))
                for key in gone:
                    now.pop(key, None)
                writer.flush()
                moments.append(now)

        result = table.merge(commit_bytes=commit_bytes)

        progress = []
        for version in range(2, table.base().version + 1):
            base = open_base(table.location, version=version)
            done = base.details.merged.get(REGION, 0)
            assert not progress or done >= progress[-1]
            if not progress or done != progress[-1]:
                # The version that carries the mark has exactly what was flushed up to there.
                assert state(base.dataset.to_table()) == moments[done]
            progress.append(done)
        assert progress[-1] == 8
        if commit_bytes == 1:
            assert sorted(set(progress)) == list(range(9))
        if commit_bytes == 1 << 30:
            assert set(progress) == {0, 8}
        assert result.metrics["generations"] == 8
        check_merged(table, moments[-1])


class TestTwoMergers:
    def test_one_brings_back_what_the_other_has_deleted_before_its_rows(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        """It merges the first of several generations; the other one deleted for all of them."""
        flush(table, {1: 1, 2: 2}, [1], {3: 3})
        (whole,) = undivided_tasks(table)
        first = replace(whole.regions[0], generations=whole.regions[0].generations[:1])
        after_deletes = faults.of(table.location).pause("create", TABLE_MANIFEST, after=True)
        with after_deletes.holding(run_merge_task, whole) as slow:
            run_merge_task(replace(whole, regions=(first,)))
            assert merged(table) == 1
        slow.result()

        check_merged(table, {2: 2, 3: 3})

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_one_that_wakes_late_brings_nothing_back(
        self, faults: FaultyStores, table: memwal.Table, count: int
    ) -> None:
        """Its mark is that of the newest generation, or of one before it."""
        flush(table, {1: 1}, {1: 2, 2: 2}, {1: 3, 2: 3})
        (whole,) = undivided_tasks(table)
        first = replace(whole.regions[0], generations=whole.regions[0].generations[:count])
        late = replace(whole, regions=(first,))
        with standing_at("read", faults, table, run_merge_task, task=late) as slow:
            table.merge()
        assert slow.result().commits == 0

        check_merged(table, {1: 3, 2: 3})


class TestDirectWrites:
    """Whoever writes straight into the base table while a merge runs."""

    @pytest.mark.few(2)
    @pytest.mark.parametrize("place", BEFORE_COMMITS)
    @pytest.mark.parametrize("tagged", [True, False], ids=["tagged", "gone"])
    def test_of_versions_that_are_cleaned_up_leave_one_row_each(
        self, faults: FaultyStores, table: memwal.Table, place: str, tagged: bool
    ) -> None:
        """What such a version changed cannot be found out: the merge starts over.

        So it does when the version that it read is gone.
        """
        flush(table, {1: 1, 2: 2})
        table.merge()
        flush(table, {1: 11, 3: 3}, [2])
        with standing_at(place, faults, table) as slow:
            dataset = lance.dataset(table.uri)
            if tagged:
                dataset.tags.create("read", dataset.version)
            dataset = lance.write_dataset(rows({3: 300}), table.uri, mode="append")
            dataset.update_config({"a": "b"})
            dataset.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
        slow.result()

        check_merged(table, {1: 11, 3: 3})

    @pytest.mark.parametrize("by_lance", [True, False], ids=["lance", "memwal"])
    @pytest.mark.parametrize("then", ["nothing", "cleanup"])
    @pytest.mark.parametrize("place", ["deleted", "opened again"])
    def test_that_bring_deleted_rows_back_start_it_over(
        self, faults: FaultyStores, table: memwal.Table, place: str, then: str, by_lance: bool
    ) -> None:
        """The table is restored to a version before the deletes, with the same progress."""
        flush(table, {1: 1, 2: 2, 3: 3})
        table.merge()
        before = table.base().version
        flush(table, {1: 11, 4: 4}, [2])
        with standing_at(place, faults, table) as slow:
            faults.of(table.location).clear()
            if by_lance:
                lance.dataset(table.uri, version=before).restore()
            else:
                memwal.open(table.uri).restore(before)
            if then == "cleanup":
                lance.dataset(table.uri).cleanup_old_versions(timedelta(0))
        slow.result()

        check_merged(table, {1: 11, 3: 3, 4: 4})

    def test_of_other_columns_before_the_deletes_start_it_over(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        """The deletes are rebased, and the rows were read with the earlier columns."""
        flush(table, {1: 1, 2: 2})
        table.merge()
        flush(table, {1: 11}, [2])
        with standing_at("read", faults, table) as slow:
            lance.dataset(table.uri).drop_columns(["text"])
        slow.result()

        assert lance.dataset(table.uri).to_table().to_pylist() == [{"id": 1, "n": 11}]
        assert merged(table) == 3

    def test_between_the_deletes_and_the_rows_stay(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        flush(table, {1: 1, 2: 2})
        table.merge()
        flush(table, {1: 11}, [2])
        with standing_at("deleted", faults, table) as slow:
            lance.write_dataset(rows({5: 5}), table.uri, mode="append")
        slow.result()

        check_merged(table, {1: 11, 5: 5})


def damage(table: memwal.Table, region_id: UUID, generation: int, how: str) -> Callable[[], None]:
    """Damage a generation; returns what repairs it."""
    flushed = {f.generation: f.path for f in manifest(table, region_id).flushed}
    path = folder(table) / generation_dir(region_id, flushed[generation])
    backup = path.with_name("backup")
    shutil.copytree(path, backup)
    if how == "folder":
        shutil.rmtree(path)
    elif how == "data":
        for file in (path / "data").iterdir():
            file.unlink()
    elif how == "bytes":
        for file in (path / "data").iterdir():
            file.write_bytes(b"\0" * file.stat().st_size)
    elif how == "manifest":
        for file in (path / "_versions").iterdir():
            file.write_bytes(b"nonsense")

    def repair() -> None:
        shutil.rmtree(path, ignore_errors=True)
        backup.rename(path)

    return repair


class TestUnreadableGeneration:
    @pytest.mark.few(2)
    @pytest.mark.parametrize("how", ["folder", "data", "bytes", "manifest"])
    def test_stops_its_region_alone_and_is_a_problem(self, make_table: MakeTable, how: str) -> None:
        table = make_table(buckets=2)
        with table.writer() as writer:
            for turn in range(3):
                writer.upsert(numbered(0, 20, n=turn))
                writer.flush()
        bad, good = bucket_region_id(0), bucket_region_id(1)
        repair = damage(table, bad, 2, how)

        result = table.merge()

        assert merged(table, good) == 3
        assert merged(table, bad) == 1
        assert len(result.warnings) == 1
        (skipped,) = result.skipped_regions
        assert (skipped.region_id, skipped.generation) == (str(bad), 2)
        assert result.to_dict()["skipped_regions"][0]["generation"] == 2
        assert sorted(set(base_state(table).values())) == [0, 2]
        assert table.merge().skipped_regions[0].generation == 2
        assert merge(table.location, MergeOptions(skip_regions=[bad])).warnings == ()

        repair()
        assert table.merge().warnings == ()
        for region in (bad, good):
            check_merged(table, dict.fromkeys(range(20), 2), region)

    def test_is_never_skipped_by_later_commits(self, table: memwal.Table) -> None:
        flush(table, {1: 1}, {2: 2}, {3: 3}, {4: 4})
        repair = damage(table, REGION, 2, "folder")

        result = table.merge(commit_bytes=1)

        assert merged(table) == 1
        assert base_state(table) == {1: 1}
        assert len(result.warnings) == 1
        repair()
        table.merge()
        check_merged(table, {1: 1, 2: 2, 3: 3, 4: 4})

    def test_in_a_table_whose_name_looks_like_an_error(
        self, tmp_path: Path, make_table: MakeTable
    ) -> None:
        """Errors of Lance are told apart by their text, which contains the path."""
        made = make_table()
        path = tmp_path / "concurrent-conflict-403-not-found"
        folder(made).rename(path)
        table = memwal.open(str(path))
        flush(table, {1: 1, 2: 2})
        table.merge()
        flush(table, {1: 11})
        for file in (path / "data").iterdir():
            file.write_bytes(b"\0" * file.stat().st_size)

        with pytest.raises(MemWalError) as caught:
            table.merge()

        assert not isinstance(caught.value, ConflictError)
        assert merged(table) == 1


class TestUnknownRegion:
    def test_has_nothing_to_merge(self, table: memwal.Table) -> None:
        flush(table, {1: 1})
        result = table.merge(regions=[uuid4()])
        assert result.commits == 0
        assert merged(table) == 0


def crowd(table: memwal.Table, times: int | None = None) -> tuple[Guard, Rows]:
    """A guard by which somebody appends before each commit, and what is appended."""
    appended: Rows = {}

    def append() -> None:
        if times is None or len(appended) < times:
            appended[1000 + len(appended)] = 0
            lance.write_dataset(rows({max(appended): 0}), table.uri, mode="append")

    return append, appended


def test_a_conflict_that_never_ends_is_reported(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(table, {1: 1})
    monkeypatch.setattr(divided, "_ATTEMPTS", 3)
    guard, appended = crowd(table)

    with pytest.raises(ConflictError):
        merge(table.location, MergeOptions(guard=guard))
    assert len(appended) == merging._ATTEMPTS_BEFORE_DIVIDING + 3
    assert merged(table) == 0


def test_commits_that_change_no_row_are_no_conflict(table: memwal.Table) -> None:
    flush(table, {1: 1})
    calls = itertools.count()

    def guard() -> None:
        table.base().dataset.create_scalar_index("n", "BTREE", name=f"n{next(calls)}")

    assert merge(table.location, MergeOptions(guard=guard)).commits == 1
    assert next(calls) == 1
    check_merged(table, {1: 1})


@pytest.mark.parametrize(
    ("commit_bytes", "each"),
    [
        pytest.param(200, 1, id="small commits"),
        pytest.param(1 << 30, 1, id="before deletes"),
        pytest.param(1 << 30, 2, id="after deletes"),
    ],
)
def test_a_divided_merge_takes_over_where_others_get_in_between(
    table: memwal.Table, commit_bytes: int, each: int
) -> None:
    """It finds a delete pass that was committed, and no progress."""
    flush(table, {1: 0, 200: 0, 201: 0})
    table.merge()
    before = table.base().version
    flush(table, *({key: key, 100: key} for key in range(1, 9)), [200, 5], {201: 1})
    append, appended = crowd(table)
    calls = itertools.count(1)

    def until_it_is_divided() -> None:
        if not table.location.store.list_folders(MERGES_DIR) and next(calls) % each == 0:
            append()

    options = MergeOptions(guard=until_it_is_divided, commit_bytes=commit_bytes)
    result = merge(table.location, options)

    assert len(appended) >= merging._ATTEMPTS_BEFORE_DIVIDING
    expected = {key: key for key in range(1, 9) if key != 5}
    check_merged(table, {**expected, 100: 8, 201: 1, **appended})
    assert result.metrics["generations"] == 10
    progress = [
        read_details(table.base(), version).merged
        for version in range(before, table.base().version + 1)
    ]
    assert sum(old != new for old, new in itertools.pairwise(progress)) == 1


def test_a_task_that_cannot_be_divided_tries_longer(table: memwal.Table) -> None:
    flush(table, {1: 1}, {2: 2})
    (task,) = undivided_tasks(table)
    others = [crowd(table, merging._ATTEMPTS_BEFORE_DIVIDING + 1)[0] for _ in range(2)]
    assert run_merge_task(task, guard=others[0]).contended == task.regions
    outcome = run_merge_task(replace(task, can_divide=False), guard=others[1])
    assert (outcome.contended, outcome.metrics["generations"]) == ((), 2)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("add", "read"),
        ("drop", "read"),
        ("drop", "opened again"),
        ("rename", "opened again"),
        pytest.param("add", "opened again", marks=pytest.mark.slow),
        pytest.param("rename", "read", marks=pytest.mark.slow),
    ],
)
def test_columns_that_change_under_it_are_as_they_are_then(
    faults: FaultyStores, table: memwal.Table, place: str, change: str
) -> None:
    flush(table, {1: 1, 2: 2, 7: 7})
    table.merge()
    flush(table, {1: 11, 3: 3}, [2])

    def alter() -> None:
        dataset = table.base().dataset
        if change == "add":
            dataset.add_columns(pa.field("extra", pa.int64()))
        elif change == "drop":
            dataset.drop_columns(["text"])
        else:
            dataset.alter_columns({"path": "text", "name": "words"})

    merge(table.location, MergeOptions(guard=at(place, faults.of(table.location), alter)))

    found = table.base().dataset.to_table()
    assert ("text" in found.column_names) == (change == "add")
    assert {row["id"]: row["n"] for row in found.to_pylist()} == {1: 11, 3: 3, 7: 7}
    if change != "drop":
        name = "words" if change == "rename" else "text"
        assert set(found[name].to_pylist()) == {"1=11", "3=3", "7=7"}
    assert merged(table) == 3
    assert table.scan().count_rows() == 3


@pytest.mark.parametrize(
    ("run_bytes", "place"),
    [
        (1, "read"),
        (None, "opened again"),
        pytest.param(1, "opened again", marks=pytest.mark.slow),
        pytest.param(None, "read", marks=pytest.mark.slow),
    ],
)
def test_two_mergers_of_a_table_with_stable_row_ids(
    faults: FaultyStores, tmp_path: Path, place: str, run_bytes: int | None
) -> None:
    path = str(tmp_path / "stable")
    lance.write_dataset(rows({1: 1, 2: 2, 50: 50}), path, enable_stable_row_ids=True)
    table = memwal.enable(path, region_spec="unsharded", primary_key=["id"])
    flush(table, {1: 11, 7: 7, 9: 9}, [2, 7], {8: 8, 2: 22}, [9, 1], {1: 111})
    with standing_at(place, faults, table) as slow:
        table.merge(commit_bytes=1, run_bytes=run_bytes)
    slow.result()

    check_merged(table, {1: 111, 2: 22, 8: 8, 50: 50})


def test_a_task_that_is_run_again_much_later_does_nothing(table: memwal.Table) -> None:
    """As a retried task of a scheduler does."""
    flush(table, {1: 1}, [1], {2: 2})
    (task,) = undivided_tasks(table)
    run_merge_task(task)
    flush(table, {1: 111}, [2])
    table.merge()
    version = table.base().version

    outcome = run_merge_task(task)

    assert (outcome.commits, outcome.metrics["generations"]) == (0, 0)
    assert table.base().version == version
    check_merged(table, {1: 111})


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("version", sampled(["2.0", "2.1"], "2.0".__eq__))
def test_a_struct_that_is_added_while_rows_wait(
    make_table: MakeTable, version: str, flushed: bool
) -> None:
    """Files of version 2.0 have no null structs: its fields are null instead."""
    table = make_table(data_storage_version=version)
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 2}))
        if flushed:
            writer.flush()
        inner = pa.struct([("x", pa.int64()), ("deep", pa.struct([("y", pa.string())]))])
        table.base().dataset.add_columns(pa.field("s", inner))
    table.merge()
    found = table.base().dataset.to_table(columns=["id", "s"]).sort_by("id")
    null = {"x": None, "deep": {"y": None}} if version == "2.0" else None
    assert found.column("s").to_pylist() == [null, null]
    assert table.verify().findings == ()
    table.upsert(rows({1: 11}), partial=True)
    table.merge()
    assert table.lookup(keys(1)).to_table().column("n").to_pylist() == [11]
    assert table.verify().findings == ()
