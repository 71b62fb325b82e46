"""Compacting the base table."""

import itertools
import os
import shutil
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction
from support.data.tables import SCHEMA, MakeTable, base_state, folder, keys, numbered, rows
from support.processes import run_python
from support.stores.faulty_store import TABLE_MANIFEST, FaultyStores, skip_waits

import memwal
from memwal.base_table.fragments import FragmentLimits, fragment_sizes, small_runs
from memwal.errors import (
    InvalidInputError,
    ObjectNotFoundError,
    ResourceLimitError,
    StoreAccessError,
    StoreUnavailableError,
)
from memwal.jobs.index.job import build_indexes
from memwal.jobs.job import JobResult
from memwal.jobs.merge.job import merge
from memwal.jobs.options import CompactOptions, IndexOptions, MergeOptions
from memwal.jobs.table import compact as compaction
from memwal.jobs.table.compact import compact
from memwal.lsm.indexes.catchup import covers


@pytest.fixture
def indexed(make_table: MakeTable) -> memwal.Table:
    return make_table(maintained_indexes=["id_idx", "n_idx"])


def fragmented(table: memwal.Table, count: int = 10, *, start: int = 0) -> dict[int, int]:
    """Merge generation by generation: as many fragments, with a deleted row here and there."""
    with table.writer() as writer:
        for turn in range(start, start + count):
            writer.upsert(numbered(turn * 10, 10, n=turn))
            writer.delete(keys(turn * 10))
            writer.flush()
    merge(table.location, MergeOptions(commit_bytes=1))
    return {key: key // 10 for key in range(start * 10, (start + count) * 10) if key % 10}


TEN = {key: key // 10 for key in range(100) if key % 10}
"""What is in a table with ten fragments."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an indexed table with ten fragments, which is copied."""
    path = tmp_path_factory.mktemp("prepared") / "table"
    table = memwal.create(path, SCHEMA, primary_key="id", maintained_indexes=["id_idx", "n_idx"])
    assert fragmented(table) == TEN
    return path


@pytest.fixture
def ten(prepared: Path, tmp_path: Path) -> memwal.Table:
    """Return an indexed table with ten fragments."""
    # Nobody writes into a file that exists: what changes gets a new one.
    shutil.copytree(prepared, tmp_path / "ten", copy_function=os.link)
    return memwal.open(str(tmp_path / "ten"))


def small(table: memwal.Table, *, target_rows: int = 1 << 20) -> int:
    """Count the fragments that are to be joined."""
    base = table.base()
    return len(small_runs(base, fragment_sizes(base), FragmentLimits(target_rows, 1 << 28)).ids)


def stored_data(table: memwal.Table) -> set[str]:
    return {path.name for path in (folder(table) / "data").iterdir()}


def named_data(table: memwal.Table) -> set[str]:
    """Data files of all versions."""
    found: set[str] = set()
    for version in range(1, table.base().version + 1):
        dataset = lance.dataset(table.uri, version=version)
        found |= {f.path for fragment in dataset.get_fragments() for f in fragment.data_files()}
    return found


def test_makes_few_of_many(ten: memwal.Table) -> None:
    expected = dict(TEN)
    assert small(ten) == 10

    result = ten.compact()

    assert result.metrics == {"fragments_removed": 10, "fragments_added": 1}
    assert (result.job, result.tasks, result.commits) == ("compact", 1, 1)
    assert result.warnings == ()
    assert len(ten.base().dataset.get_fragments()) == 1
    assert base_state(ten) == expected
    assert ten.compact().commits == 0


def test_a_data_file_that_is_gone_is_named(ten: memwal.Table) -> None:
    (lost, *_) = ten.base().dataset.get_fragments()[0].data_files()
    (folder(ten) / "data" / lost.path).unlink()
    for call in (ten.compact, lambda: ten.head(1), lambda: ten.scan().to_table()):
        with pytest.raises(ObjectNotFoundError, match=lost.path):
            call()


def test_leaves_what_is_not_worth_it(indexed: memwal.Table) -> None:
    fragmented(indexed, 4)
    assert compact(indexed.location, CompactOptions(min_fragments=5)).commits == 0
    assert compact(indexed.location, CompactOptions(min_fragments=None)).commits == 0
    assert compact(indexed.location, CompactOptions(min_fragments=4)).commits == 1


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("first", "replaced", "rewritten"), [(0, 9, 0), (0, 10, 1), (40, 60, 1), (50, 100, 2)]
)
def test_fragments_with_many_deleted_rows_are_rewritten_however_few(
    indexed: memwal.Table, first: int, replaced: int, rewritten: int
) -> None:
    for start in (0, 100):
        indexed.upsert(numbered(start, 100))
        merge(indexed.location)
    indexed.upsert(numbered(first, replaced, n=1))
    merge(indexed.location)
    before = set(indexed.base().dataset.fragment_ids())
    expected = base_state(indexed)
    options = CompactOptions(target_rows=40)
    assert compact(indexed.location, replace(options, deleted_percent=None)).commits == 0

    result = compact(indexed.location, options)

    assert len(before - set(indexed.base().dataset.fragment_ids())) == rewritten
    assert result.metrics["fragments_removed"] == rewritten
    assert base_state(indexed) == expected
    assert indexed.status().deleted_percent < 10
    assert compact(indexed.location, options).commits == 0
    build_indexes(indexed.location)
    assert indexed.verify(deep=True).clean


def test_progress_and_catch_up_stay(ten: memwal.Table) -> None:
    build_indexes(ten.location)
    merged = ten.base().details.merged

    ten.compact()

    base = ten.base()
    assert base.details.merged == merged
    assert covers(base, "id_idx", merged)
    assert covers(base, "n_idx", merged)
    plan = base.dataset.scanner(filter="id = 15").explain_plan()
    assert "ScalarIndex" in plan
    assert base.dataset.to_table(filter="id = 15").column("n").to_pylist() == [1]


class TestBeforeTheCatchUp:
    """Lance forgets it in the commit of a compaction, and another commit records it."""

    def test_a_merge_in_between_leaves_them_as_far_as_they_were(self, ten: memwal.Table) -> None:
        build_indexes(ten.location)
        merged = ten.base().details.merged
        calls = itertools.count()

        def merge_more() -> None:
            if next(calls):
                ten.upsert(rows({1000: 1}))
                merge(ten.location)

        compact(ten.location, CompactOptions(guard=merge_more))

        base = ten.base()
        for name in ("id_idx", "n_idx"):
            assert base.details.catchup[name] == merged != base.details.merged
        assert base_state(ten) == {**TEN, 1000: 1}
        assert ten.verify(deep=True).clean

    def test_an_index_that_covers_a_part_stays_as_far_as_it_was(self, ten: memwal.Table) -> None:
        build_indexes(ten.location)
        merged = ten.base().details.merged
        expected = {**TEN, **fragmented(ten, 3, start=20)}
        build_indexes(ten.location, IndexOptions(indexes=["id_idx"]))

        # In two commits.
        assert compact(ten.location, CompactOptions(commit_bytes=1)).commits == 2

        base = ten.base()
        assert base.details.catchup["id_idx"] == base.details.merged
        assert base.details.catchup["n_idx"] == merged
        assert base_state(ten) == expected
        assert ten.verify(deep=True).clean

    @pytest.mark.parametrize("after", ["commit", "reading"])
    def test_rows_that_another_client_has_moved_are_not_known(
        self, ten: memwal.Table, monkeypatch: pytest.MonkeyPatch, after: str
    ) -> None:
        build_indexes(ten.location)
        expected = {**TEN, **fragmented(ten, 3, start=20)}
        calls = itertools.count()
        real = Compaction.commit

        def move() -> None:
            dataset = ten.base().dataset
            dataset.delete("id = 1")
            dataset.optimize.compact_files(materialize_deletions_threshold=0.0)

        def commit(*args: Any) -> None:
            real(*args)
            if after == "commit":
                move()

        def guard() -> None:
            if next(calls) and after == "reading":
                move()

        monkeypatch.setattr(Compaction, "commit", staticmethod(commit))
        compact(ten.location, CompactOptions(guard=guard))

        assert ten.base().details.catchup == {}
        del expected[1]
        assert base_state(ten) == expected

    def test_an_index_that_another_client_has_emptied_covers_nothing(
        self, ten: memwal.Table
    ) -> None:
        build_indexes(ten.location)
        expected = {**TEN, **fragmented(ten, 3, start=20)}
        calls = itertools.count()

        def replace_index() -> None:
            if next(calls):
                ten.base().dataset.create_scalar_index(
                    "n", "BTREE", name="n_idx", replace=True, train=False
                )

        compact(ten.location, CompactOptions(guard=replace_index))

        assert set(ten.base().details.catchup) == {"id_idx"}
        assert base_state(ten) == expected

    def test_an_index_that_was_behind_stays_behind(self, ten: memwal.Table) -> None:
        build_indexes(ten.location, IndexOptions(indexes=["id_idx"]))

        ten.compact()

        base = ten.base()
        assert covers(base, "id_idx", base.details.merged)
        assert not covers(base, "n_idx", base.details.merged)
        assert ten.verify(deep=True).clean


def test_a_merge_in_between_is_kept_and_the_rest_is_tried_again(
    faults: FaultyStores, ten: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = dict(TEN)
    with ten.writer() as writer:
        writer.upsert(rows({5: 500}))
        writer.delete(keys(7))
        writer.flush()
    store = faults.of(ten.location)
    guards = itertools.count()
    merges: list[JobResult] = []

    def arrange() -> None:
        if next(guards) == 0:
            # After the last look at the fragments, which is the next to read the base table.
            store.act(
                "get",
                lambda: merges.append(merge(ten.location)),
                key=TABLE_MANIFEST,
                after=True,
            )

    skip_waits(monkeypatch, compaction)
    result = compact(ten.location, CompactOptions(guard=arrange))

    assert [merged.commits for merged in merges] == [2]
    assert result.metrics["rewrites_lost"] == 1
    assert result.commits > 0
    assert result.warnings == ()
    assert stored_data(ten) == named_data(ten)
    expected.update({5: 500})
    del expected[7]
    assert base_state(ten) == expected


def test_a_rewrite_that_was_not_stored_whole_is_done_again(ten: memwal.Table) -> None:
    before = stored_data(ten)
    lost: list[str] = []

    def lose() -> None:
        if not lost:
            lost.extend(stored_data(ten) - before)
            (folder(ten) / "data" / lost[0]).write_bytes(b"")

    assert compact(ten.location, CompactOptions(guard=lose)).commits == 1
    assert base_state(ten) == dict(TEN)
    assert stored_data(ten) == named_data(ten)


def test_a_commit_whose_answer_is_lost_is_done(
    ten: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = dict(TEN)
    real = Compaction.commit

    def commit(*args: Any) -> None:
        real(*args)
        raise OSError("connection reset")

    monkeypatch.setattr(Compaction, "commit", staticmethod(commit))
    result = ten.compact()

    assert (result.commits, result.warnings) == (1, ())
    assert base_state(ten) == expected


def test_a_commit_that_failed_is_not_done_because_the_old_fragments_are_gone(
    ten: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:

    def commit(*args: Any) -> None:
        ten.base().dataset.delete("id >= 0")
        raise OSError("the disk is broken")

    monkeypatch.setattr(Compaction, "commit", staticmethod(commit))

    with pytest.raises(StoreUnavailableError):
        ten.compact()


@pytest.mark.parametrize("commit_bytes", [1, 1 << 30])
def test_ends_beside_merges_that_never_do(ten: memwal.Table, commit_bytes: int) -> None:
    expected = dict(TEN)
    turns: list[int] = []

    def run(tasks: Any, function: Any) -> list[Any]:
        turns.append(1000 + len(turns))
        assert len(turns) <= 10, "it runs after every merge"
        ten.upsert(rows({turns[-1]: 1}))
        merge(ten.location)
        return [function(task) for task in tasks]

    result = compact(ten.location, CompactOptions(commit_bytes=commit_bytes, run=run))

    assert result.warnings == ()
    assert result.metrics["fragments_removed"] >= 10
    assert base_state(ten) == {**expected, **dict.fromkeys(turns, 1)}


def test_gives_up_where_others_never_stop_and_leaves_the_indexes_alone(
    ten: memwal.Table,
) -> None:
    expected = dict(TEN)
    build_indexes(ten.location)
    indices = folder(ten) / "_indices"
    merges: list[int] = []

    def run(tasks: Any, function: Any) -> list[Any]:
        assert len(merges) < 9
        results = [function(task) for task in tasks]
        merges.append(len(merges))
        with ten.writer() as writer:
            # A row of each fragment that no earlier one has moved.
            writer.upsert(rows(dict.fromkeys(range(merges[-1] + 1, 100, 10), 1000)))
        merge(ten.location)
        return results

    before = set(indices.iterdir())
    result = compact(ten.location, CompactOptions(attempts=3, run=run))

    assert (result.commits, result.metrics["rewrites_lost"], len(merges)) == (0, 3, 3)
    assert len(result.warnings) == 1
    assert set(indices.iterdir()) == before
    assert stored_data(ten) == named_data(ten)
    touched = (range(number, 100, 10) for number in (1, 2, 3))
    expected |= dict.fromkeys(itertools.chain(*touched), 1000)
    assert base_state(ten) == expected


@pytest.mark.parametrize("deleted", [0, 1], ids=["before", "after"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, StoreAccessError])
def test_who_dies_or_is_refused_when_it_clears_up_has_changed_nothing(
    ten: memwal.Table,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
    deleted: int,
) -> None:
    expected = dict(TEN)
    store = ten.location.store
    real = type(store).delete_many

    def fail(self: Any, names: Iterable[str]) -> None:
        real(self, list(names)[:deleted])
        raise kind("in the middle")

    def run(tasks: Any, function: Any) -> list[Any]:
        results = [function(task) for task in tasks]
        ten.base().dataset.delete("id = 11")
        return results

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "delete_many", fail)
        if kind is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                compact(ten.location, CompactOptions(attempts=1, run=run))
        else:
            assert (
                compact(ten.location, CompactOptions(attempts=1, run=run)).metrics["rewrites_lost"]
                == 1
            )
    del expected[11]
    assert base_state(ten) == expected
    assert named_data(ten) <= stored_data(ten)
    assert compact(ten.location).commits == 1
    assert base_state(ten) == expected
    assert named_data(ten) <= stored_data(ten)


@pytest.mark.parametrize("planned", [0, 1])
def test_a_plan_that_lacks_descriptors_says_so(
    ten: memwal.Table, planned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the small fragments are found, then their rewrite is planned."""
    real, calls = Compaction.plan, itertools.count()

    def plan(*arguments: Any) -> Any:
        if next(calls) == planned:
            raise OSError("LanceError(IO): Too many open files (os error 24)")
        return real(*arguments)

    monkeypatch.setattr(Compaction, "plan", plan)
    with pytest.raises(ResourceLimitError):
        compact(ten.location)


def append(path: Path, fragments: int, *, first: int, rows: int = 1, width: int) -> None:
    """Append fragments of random bytes to a plain table."""
    for start in range(first, first + fragments * rows, rows):
        values = [os.urandom(width) for _ in range(rows)]
        data = pa.table({"id": range(start, start + rows), "value": values})
        lance.write_dataset(data, str(path), mode="append" if start else "create")


def test_wide_rows_are_rewritten_until_their_fragment_is_full(tmp_path: Path) -> None:
    """Of a table that was compacted before: the new fragments, and one old one."""
    path, width, target = tmp_path / "wide", 1 << 14, 1 << 18
    options = CompactOptions(min_fragments=2, target_bytes=target)
    for turn in range(8):
        append(path, 5, first=5 * turn, width=width)
        table = memwal.open(str(path))
        new = set(fragment_sizes(table.base()).ids.tolist()[-5:])
        old = {number for number in table.base().dataset.fragment_ids() if number not in new}
        assert table.status(compaction=options).small_fragments in (5, 6)
        before = stored_data(table)

        compact(table.location, options)

        left = old - set(table.base().dataset.fragment_ids())
        assert len(left) <= 1
        written = sum((path / "data" / name).stat().st_size for name in stored_data(table) - before)
        assert written < (5 * width + target) * 1.1
        again = stored_data(table)
        assert compact(table.location, options).commits == 0
        assert stored_data(table) == again
        assert table.status(compaction=options).small_fragments == 0
    sizes = fragment_sizes(table.base())
    assert (sizes.stored[:-1] >= target).all()
    assert sizes.rows.sum() == 40


_COMPACT_IN_A_CHILD = """
import sys
from pathlib import Path
import memwal

def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))

table = memwal.open(sys.argv[1])
table.status()
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
table.compact()
print(memory("VmHWM") - before)
"""


@pytest.mark.slow
def test_rows_of_a_wide_fragment_are_not_all_in_memory(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", pa.large_binary())])
    batches = (
        pa.record_batch([range(at, at + 8), [os.urandom(1 << 20)] * 8], schema=schema)
        for at in range(0, 480, 8)
    )
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    lance.write_dataset(reader, str(tmp_path / "wide")).delete("id % 5 = 0")
    child = run_python(_COMPACT_IN_A_CHILD, tmp_path / "wide")
    assert memwal.open(str(tmp_path / "wide")).status().deleted_rows == 0
    assert int(child.stdout) << 10 < 300 << 20


def test_fragments_that_became_much_smaller_are_joined_in_the_same_run(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    append(path, 40, first=0, width=8)
    table = memwal.open(str(path))
    # A file of one row is mostly its header.
    options = CompactOptions(min_fragments=2, target_bytes=5_000)

    result = compact(table.location, options)

    assert result.commits > 1
    assert small(table) < 2
    assert compact(table.location, options).commits == 0
    assert table.base().dataset.to_table(columns=["id"])["id"].to_pylist() == list(range(40))


def test_ends_after_as_many_commits_as_it_may_make(ten: memwal.Table) -> None:
    expected = dict(TEN)
    result = compact(
        ten.location,
        CompactOptions(min_fragments=2, target_rows=20, commit_bytes=1, max_commits=2),
    )
    assert (result.commits, result.warnings) == (2, ())
    assert small(ten, target_rows=20) > 2
    assert base_state(ten) == expected
    for limit in ("max_commits", "attempts"):
        with pytest.raises(InvalidInputError, match=limit):
            compact(ten.location, CompactOptions(**{limit: 0}))


def test_a_commit_that_landed_and_was_replaced_since_loses_nothing(
    ten: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is a conflict with itself, and by then another compaction has replaced it."""
    expected = dict(TEN)
    real = Compaction.commit
    done: list[int] = []

    def commit(*args: Any) -> None:
        real(*args)
        ten.base().dataset.delete("id = 11")
        ten.base().dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
        done.append(1)
        raise OSError("Retryable commit conflict for version 3: concurrent transaction Rewrite")

    with monkeypatch.context() as patched:
        patched.setattr(Compaction, "commit", staticmethod(commit))
        result = compact(ten.location)

    assert (done, result.commits, result.warnings) == ([1], 1, ())
    del expected[11]
    assert base_state(ten) == expected
    assert named_data(ten) <= stored_data(ten)


@pytest.fixture
def inserted(make_table: MakeTable) -> memwal.Table:
    """Return a table whose MemWAL index covers a fragment that Lance has inserted."""
    table = make_table(stable_row_ids=True)
    table.upsert(rows({0: 0, 1: 1}))
    table.merge()
    table.build_snapshot()
    insert = lance.dataset(table.uri).merge_insert("id").when_not_matched_insert_all()
    insert.execute(rows({2: 2}))
    return table


def test_rows_that_lance_inserts_with_stable_ids_are_joined(inserted: memwal.Table) -> None:
    table = inserted
    with pytest.raises(OSError, match="rewrite group"):
        lance.dataset(table.uri).optimize.compact_files()
    details = table.base().details

    result = table.compact(min_fragments=2)

    assert (result.commits, result.warnings) == (1, ())
    assert len(table.base().dataset.get_fragments()) == 1
    assert base_state(table) == {0: 0, 1: 1, 2: 2}
    assert table.base().details == details


@pytest.mark.parametrize("is_committed", [True, False], ids=["died after", "lost the race"])
def test_the_commit_before_their_compaction(
    inserted: memwal.Table, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    commit = compaction.commit_details

    def interrupted(base: Any, details: Any) -> int:
        monkeypatch.undo()
        if is_committed:
            commit(base, details)
            raise KeyboardInterrupt
        lance.write_dataset(rows({3: 3}), inserted.uri, mode="append")
        return commit(base, details)

    monkeypatch.setattr(compaction, "commit_details", interrupted)
    with pytest.raises(KeyboardInterrupt) if is_committed else nullcontext():
        inserted.compact(min_fragments=2)

    inserted.compact(min_fragments=2)

    assert len(inserted.base().dataset.get_fragments()) == 1
    assert base_state(inserted) == {0: 0, 1: 1, 2: 2} | ({} if is_committed else {3: 3})


@pytest.mark.parametrize("name", ["min_fragments", "target_rows", "target_bytes", "commit_bytes"])
def test_refuses_nonsense(table: memwal.Table, name: str) -> None:
    with pytest.raises(InvalidInputError, match=name):
        compact(table.location, CompactOptions(**{name: 0}))
