"""Compacting the base table."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable
from typing import Any

import lance
import pytest
from lance.optimize import Compaction
from support.data.tables import MakeTable, base_state, folder, keys, numbered, rows
from support.stores.faulty_store import TABLE_MANIFEST, FaultyStores, Killed

import memwal
from memwal.base_table.snapshot import small_fragment_ids
from memwal.errors import InvalidInputError, StoreAccessError, StoreUnavailableError
from memwal.jobs.index.job import build_indexes
from memwal.jobs.job import JobResult
from memwal.jobs.merge.job import merge
from memwal.jobs.options import CompactOptions, MergeOptions
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


def stored_data(table: memwal.Table) -> set[str]:
    return {path.name for path in (folder(table) / "data").iterdir()}


def named_data(table: memwal.Table) -> set[str]:
    """Data files of all versions."""
    found: set[str] = set()
    for version in range(1, table.base().version + 1):
        dataset = lance.dataset(table.uri, version=version)
        found |= {f.path for fragment in dataset.get_fragments() for f in fragment.data_files()}
    return found


def test_makes_few_of_many(indexed: memwal.Table) -> None:
    expected = fragmented(indexed)
    assert len(small_fragment_ids(indexed.base(), target_rows=1 << 20)) == 10

    result = indexed.compact()

    assert result.metrics == {"fragments_removed": 10, "fragments_added": 1}
    assert (result.job, result.tasks, result.commits) == ("compact", 1, 1)
    assert result.warnings == ()
    assert len(indexed.base().dataset.get_fragments()) == 1
    assert base_state(indexed) == expected
    assert indexed.compact().commits == 0


def test_leaves_what_is_not_worth_it(indexed: memwal.Table) -> None:
    fragmented(indexed, 4)
    assert compact(indexed.location, CompactOptions(min_fragments=5)).commits == 0
    assert compact(indexed.location, CompactOptions(min_fragments=4)).commits == 1


def test_progress_stays_and_indexes_catch_up_again(indexed: memwal.Table) -> None:
    fragmented(indexed)
    build_indexes(indexed.location)
    merged = indexed.base().details.merged

    indexed.compact()

    base = indexed.base()
    assert base.details.merged == merged
    build_indexes(indexed.location)
    base = indexed.base()
    assert covers(base, "id_idx", merged)
    assert covers(base, "n_idx", merged)
    plan = base.dataset.scanner(filter="id = 15").explain_plan()
    assert "ScalarIndex" in plan
    assert base.dataset.to_table(filter="id = 15").column("n").to_pylist() == [1]


def test_tasks_travel(indexed: memwal.Table) -> None:
    expected = fragmented(indexed)

    def elsewhere(tasks: Any, function: Any) -> list[Any]:
        sent = pickle.loads(pickle.dumps((list(tasks), function)))
        return [pickle.loads(pickle.dumps(sent[1](task))) for task in sent[0]]

    assert compact(indexed.location, CompactOptions(run=elsewhere)).commits == 1
    assert base_state(indexed) == expected


def test_small_commits_do_it_piece_by_piece(indexed: memwal.Table) -> None:
    expected = fragmented(indexed)
    result = compact(indexed.location, CompactOptions(target_rows=20, commit_bytes=1))
    assert result.commits > 1
    assert len(indexed.base().dataset.get_fragments()) < 10
    assert base_state(indexed) == expected


def test_a_process_that_dies_before_its_commit_has_changed_nothing(indexed: memwal.Table) -> None:
    expected = fragmented(indexed)

    def die() -> None:
        raise Killed

    with pytest.raises(Killed):
        compact(indexed.location, CompactOptions(guard=die))
    assert base_state(indexed) == expected
    assert indexed.compact().commits == 1
    assert base_state(indexed) == expected


def test_a_merge_in_between_is_kept_and_the_rest_is_tried_again(
    faults: FaultyStores, indexed: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fragmented(indexed)
    with indexed.writer() as writer:
        writer.upsert(rows({5: 500}))
        writer.delete(keys(7))
        writer.flush()
    store = faults.of(indexed.location)
    guards = itertools.count()
    merges: list[JobResult] = []

    def arrange() -> None:
        if next(guards) == 0:
            # After the last look at the fragments, which is the next to read the base table.
            store.act(
                "get",
                lambda: merges.append(merge(indexed.location)),
                key=TABLE_MANIFEST,
                after=True,
            )

    monkeypatch.setattr(compaction, "_CONFLICT_WAIT_SECONDS", 0)
    result = compact(indexed.location, CompactOptions(guard=arrange))

    assert [merged.commits for merged in merges] == [2]
    assert result.metrics["rewrites_lost"] == 1
    assert result.commits > 0
    assert result.warnings == ()
    assert stored_data(indexed) == named_data(indexed)
    expected.update({5: 500})
    del expected[7]
    assert base_state(indexed) == expected


def test_a_merge_under_way_goes_on_after_a_compaction(indexed: memwal.Table) -> None:
    expected = fragmented(indexed)
    with indexed.writer() as writer:
        writer.upsert(rows({5: 500, 1000: 1}))
        writer.flush()
    done: list[int] = []

    def late() -> None:
        if not done:
            done.append(indexed.compact().commits)

    merge(indexed.location, MergeOptions(guard=late))

    assert done == [1]
    assert base_state(indexed) == {**expected, 5: 500, 1000: 1}


def test_a_commit_whose_answer_is_lost_is_done(
    indexed: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fragmented(indexed)
    real = Compaction.commit

    def commit(*args: Any) -> None:
        real(*args)
        raise OSError("connection reset")

    monkeypatch.setattr(Compaction, "commit", staticmethod(commit))
    result = indexed.compact()

    assert (result.commits, result.warnings) == (1, ())
    assert base_state(indexed) == expected


def test_a_commit_that_failed_is_not_done_because_the_old_fragments_are_gone(
    indexed: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragmented(indexed)

    def commit(*args: Any) -> None:
        indexed.base().dataset.delete("id >= 0")
        raise OSError("the disk is broken")

    monkeypatch.setattr(Compaction, "commit", staticmethod(commit))

    with pytest.raises(StoreUnavailableError):
        indexed.compact()


@pytest.mark.parametrize("commit_bytes", [1, 1 << 30])
def test_ends_beside_merges_that_never_do(indexed: memwal.Table, commit_bytes: int) -> None:
    expected = fragmented(indexed)
    turns: list[int] = []

    def run(tasks: Any, function: Any) -> list[Any]:
        turns.append(1000 + len(turns))
        assert len(turns) <= 10, "it runs after every merge"
        with indexed.writer() as writer:
            writer.upsert(rows({turns[-1]: 1}))
        merge(indexed.location)
        return [function(task) for task in tasks]

    result = compact(indexed.location, CompactOptions(commit_bytes=commit_bytes, run=run))

    assert result.warnings == ()
    assert result.metrics["fragments_removed"] >= 10
    assert base_state(indexed) == {**expected, **dict.fromkeys(turns, 1)}


def test_gives_up_where_others_never_stop_and_leaves_the_indexes_alone(
    indexed: memwal.Table,
) -> None:
    expected = fragmented(indexed)
    build_indexes(indexed.location)
    indices = folder(indexed) / "_indices"
    merges: list[int] = []

    def run(tasks: Any, function: Any) -> list[Any]:
        assert len(merges) < 9
        results = [function(task) for task in tasks]
        merges.append(len(merges))
        with indexed.writer() as writer:
            # A row of each fragment that no earlier one has moved.
            writer.upsert(rows(dict.fromkeys(range(merges[-1] + 1, 100, 10), 1000)))
        merge(indexed.location)
        return results

    before = set(indices.iterdir())
    result = compact(indexed.location, CompactOptions(attempts=3, run=run))

    assert (result.commits, result.metrics["rewrites_lost"], len(merges)) == (0, 3, 3)
    assert len(result.warnings) == 1
    assert set(indices.iterdir()) == before
    assert stored_data(indexed) == named_data(indexed)
    touched = (range(number, 100, 10) for number in (1, 2, 3))
    expected |= dict.fromkeys(itertools.chain(*touched), 1000)
    assert base_state(indexed) == expected


@pytest.mark.parametrize("deleted", [0, 1], ids=["before", "after"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, StoreAccessError])
def test_who_dies_or_is_refused_when_it_clears_up_has_changed_nothing(
    indexed: memwal.Table,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
    deleted: int,
) -> None:
    expected = fragmented(indexed)
    store = indexed.location.store
    real = type(store).delete_many

    def fail(self: Any, names: Iterable[str]) -> None:
        real(self, list(names)[:deleted])
        raise kind("in the middle")

    def run(tasks: Any, function: Any) -> list[Any]:
        results = [function(task) for task in tasks]
        indexed.base().dataset.delete("id = 11")
        return results

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "delete_many", fail)
        if kind is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                compact(indexed.location, CompactOptions(attempts=1, run=run))
        else:
            assert (
                compact(indexed.location, CompactOptions(attempts=1, run=run)).metrics[
                    "rewrites_lost"
                ]
                == 1
            )
    del expected[11]
    assert base_state(indexed) == expected
    assert named_data(indexed) <= stored_data(indexed)
    assert compact(indexed.location).commits == 1
    assert base_state(indexed) == expected
    assert named_data(indexed) <= stored_data(indexed)


def test_ends_after_as_many_commits_as_it_may_make(indexed: memwal.Table) -> None:
    expected = fragmented(indexed)
    result = compact(
        indexed.location,
        CompactOptions(min_fragments=2, target_rows=20, commit_bytes=1, max_commits=2),
    )
    assert (result.commits, result.warnings) == (2, ())
    assert len(small_fragment_ids(indexed.base(), target_rows=20)) > 2
    assert base_state(indexed) == expected
    for limit in ("max_commits", "attempts"):
        with pytest.raises(InvalidInputError, match=limit):
            compact(indexed.location, CompactOptions(**{limit: 0}))


def test_a_commit_that_landed_and_was_replaced_since_loses_nothing(
    indexed: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is a conflict with itself, and by then another compaction has replaced it."""
    expected = fragmented(indexed)
    real = Compaction.commit
    done: list[int] = []

    def commit(*args: Any) -> None:
        real(*args)
        indexed.base().dataset.delete("id = 11")
        indexed.base().dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
        done.append(1)
        raise OSError("Retryable commit conflict for version 3: concurrent transaction Rewrite")

    with monkeypatch.context() as patched:
        patched.setattr(Compaction, "commit", staticmethod(commit))
        result = compact(indexed.location)

    assert (done, result.commits, result.warnings) == ([1], 1, ())
    del expected[11]
    assert base_state(indexed) == expected
    assert named_data(indexed) <= stored_data(indexed)


def test_stable_row_ids_stay(make_table: MakeTable) -> None:
    table = make_table()
    expected = fragmented(table)
    path = str(folder(table)) + "-stable"
    plain = table.base().dataset.to_table()
    dataset = lance.write_dataset(
        plain, path, enable_stable_row_ids=True, max_rows_per_file=10, max_rows_per_group=10
    )
    stable = memwal.enable(path, region_spec=memwal.RegionSpec.unsharded(), primary_key=["id"])
    with stable.writer() as writer:
        writer.upsert(rows({5: 500}))
        writer.flush()
    stable.merge()
    ids = dict(
        zip(
            *(
                stable.base().dataset.to_table(columns=["id"], with_row_id=True)[name].to_pylist()
                for name in ("id", "_rowid")
            ),
            strict=True,
        )
    )
    assert len(dataset.get_fragments()) > 8

    stable.compact()

    after = stable.base().dataset.to_table(columns=["id"], with_row_id=True)
    assert dict(zip(after["id"].to_pylist(), after["_rowid"].to_pylist(), strict=True)) == ids
    assert base_state(stable) == {**expected, 5: 500}


@pytest.mark.parametrize("name", ["min_fragments", "target_rows", "commit_bytes"])
def test_refuses_nonsense(table: memwal.Table, name: str) -> None:
    with pytest.raises(InvalidInputError, match=name):
        compact(table.location, CompactOptions(**{name: 0}))
