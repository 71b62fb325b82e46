"""Building what an index lacks in parts."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest
from support.data.indexed import (
    KINDS,
    VECTOR,
    answers,
    indexed_copy,
    merge_rows,
    models,
    recall,
    rows,
    segments,
)
from support.data.merging import elsewhere
from support.data.sampled import every
from support.data.some_kinds import some
from support.data.tables import REGION, merged
from support.stores.faulty_store import TABLE_MANIFEST, FaultyStores

import memwal
from memwal.base_table.snapshot import open_base
from memwal.errors import TableSetupError
from memwal.jobs.index import job
from memwal.jobs.index.job import PartTask, build_indexes, run_part_task
from memwal.jobs.index.rebuild import commit_parts
from memwal.jobs.job import JobResult
from memwal.jobs.options import IndexOptions
from memwal.lsm.indexes.catchup import caught_up
from memwal.lsm.indexes.maintained import index_of
from memwal.util.retry import LostRaceError

# Their parts could never be joined with what is there.
UNDIVIDED = ("IVF_SQ", "IVF_HNSW_SQ")


def in_parts(table: memwal.Table, **options: Any) -> Any:
    return build_indexes(
        table.location, IndexOptions(max_tasks=3, part_rows=1, run=elsewhere, **options)
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", every(2, KINDS))
def test_parts_answer_as_one_build_does(tmp_path: Path, kind: str) -> None:
    table = indexed_copy(tmp_path, kind, backlog=True)
    before = models(table) if kind in VECTOR else None
    copy = tmp_path / "copy"
    shutil.copytree(table.uri, copy)
    other = memwal.open(str(copy))

    result = in_parts(table)
    other.build_indexes()

    assert result.warnings == ()
    assert caught_up(table.base(), "idx") == {REGION: 4}
    statistics = table.base().dataset.stats.index_stats("idx")
    assert statistics["num_unindexed_rows"] == 0
    assert len(segments(table)) == 2
    if kind in UNDIVIDED:
        assert "parts" not in result.metrics
    else:
        assert result.metrics["parts"] == 3
    if kind in VECTOR:
        assert models(table) == models(other) == before
        assert len(before) == 1
        ours, theirs = answers(table, kind), answers(other, kind)
        assert recall(table, ours) >= recall(other, theirs) - 0.005
    else:
        expected = answers(other, kind)
        assert answers(table, kind) == expected
        assert expected[0]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "kind",
    some([k for k in KINDS if k not in UNDIVIDED], "BTREE", "INVERTED", "IVF_PQ", "IVF_HNSW_FLAT"),
)
def test_parts_can_be_joined_with_the_rest_later(tmp_path: Path, kind: str) -> None:
    table = indexed_copy(tmp_path, kind, backlog=True)
    in_parts(table)
    before = models(table) if kind in VECTOR else None
    merge_rows(table, rows(2000, 50))

    in_parts(table, max_segments=1)

    assert len(segments(table)) == 1
    assert caught_up(table.base(), "idx") == {REGION: 5}
    if kind in VECTOR:
        assert models(table) == before
        assert recall(table, answers(table, kind)) > 0.5
    else:
        assert answers(table, kind)[0]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["BTREE", "INVERTED", "IVF_PQ"])
def test_a_merge_between_parts_and_commit_is_not_counted(tmp_path: Path, kind: str) -> None:
    table = indexed_copy(tmp_path, kind, backlog=True)
    calls = 0

    def run(tasks: Any, function: Any) -> list[Any]:
        nonlocal calls
        results = elsewhere(tasks, function)
        calls += 1
        if calls == 1:
            merge_rows(table, rows(0, 100, seed=2), rows(3000, 10))
        return results

    result = build_indexes(table.location, IndexOptions(max_tasks=3, part_rows=1, run=run))

    base = table.base()
    assert result.warnings == ()
    # The target of the job, and not what was merged meanwhile.
    assert caught_up(base, "idx") == {REGION: 4}
    assert merged(table) == 6
    assert base.dataset.stats.index_stats("idx")["num_unindexed_rows"] == 110
    in_parts(table)
    assert caught_up(table.base(), "idx") == {REGION: 6}


def test_an_index_that_is_covered_in_part_only_has_not_caught_up(tmp_path: Path) -> None:
    table = indexed_copy(tmp_path, "BTREE", backlog=True)
    base = table.base()
    index = index_of(base, "idx")
    assert index is not None

    commit_parts(base, index, [run_part_task(PartTask(table.location, base.version, "idx", (1,)))])

    assert segments(table) == [[0], [1]]
    assert caught_up(table.base(), "idx") == {}


def test_a_compaction_in_between_has_the_parts_built_again(tmp_path: Path) -> None:
    table = indexed_copy(tmp_path, "BTREE", backlog=True)
    rounds = []

    def run(tasks: Any, function: Any) -> list[Any]:
        results = elsewhere(tasks, function)
        rounds.append([type(task).__name__ for task in tasks])
        if len(rounds) == 1:
            assert table.base().dataset.optimize.compact_files().fragments_removed
        return results

    result = build_indexes(table.location, IndexOptions(max_tasks=3, part_rows=1, run=run))

    assert len(rounds) > 1
    assert caught_up(table.base(), "idx") == {REGION: 4}
    assert result.warnings == ()
    assert table.base().dataset.stats.index_stats("idx")["num_unindexed_rows"] == 0


def test_parts_that_always_meet_others_end_in_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = indexed_copy(tmp_path, "BTREE", backlog=True)

    def conflict(*args: Any) -> None:
        raise LostRaceError("somebody came first")

    monkeypatch.setattr(job, "commit_parts", conflict)

    result = in_parts(table)

    assert "parts" not in result.metrics
    assert caught_up(table.base(), "idx") == {REGION: 4}


def test_two_builds_in_parts_at_once_index_nothing_twice(tmp_path: Path) -> None:
    table = indexed_copy(tmp_path, "IVF_FLAT", backlog=True)
    second = []

    def run(tasks: Any, function: Any) -> list[Any]:
        results = elsewhere(tasks, function)
        if not second:
            second.append(True)
            in_parts(table)
        return results

    build_indexes(table.location, IndexOptions(max_tasks=3, part_rows=1, run=run))

    covered = [fragment for numbers in segments(table) for fragment in numbers]
    assert sorted(covered) == sorted(set(covered)) == table.base().dataset.fragment_ids()
    found = answers(table, "IVF_FLAT")
    assert all(len(set(answer)) == len(answer) for answer in found)
    assert recall(table, found) == 1.0


@pytest.mark.parametrize(
    ("kind", "part_rows", "parts"),
    [
        ("INVERTED", 701, 0),
        ("INVERTED", 700, 2),
        ("INVERTED", 300, 3),
        ("INVERTED", 10, 3),
        ("BTREE", 44, 0),
        ("BTREE", 43, 2),
    ],
)
def test_few_rows_are_not_divided(tmp_path: Path, kind: str, part_rows: int, parts: int) -> None:
    """What is missing are 700 rows; a scalar index is divided from sixteen times as many on."""
    table = indexed_copy(tmp_path, kind, backlog=True)

    result = build_indexes(table.location, IndexOptions(max_tasks=3, part_rows=part_rows))

    assert result.tasks == (parts or 1)
    assert result.metrics == ({"indexes": 1, "parts": parts} if parts else {"indexes": 1})


def test_one_fragment_is_not_divided(tmp_path: Path) -> None:
    table = indexed_copy(tmp_path, "BTREE")
    merge_rows(table, rows(600, 300))

    result = in_parts(table)

    assert (result.tasks, result.metrics) == (1, {"indexes": 1})


@pytest.mark.parametrize("build", [in_parts, memwal.Table.build_indexes], ids=["parts", "whole"])
def test_an_index_that_is_dropped_after_the_commit_has_no_balance(
    faults: FaultyStores, tmp_path: Path, build: Callable[[memwal.Table], JobResult]
) -> None:
    table = indexed_copy(tmp_path, "IVF_PQ")
    for start in (600, 700, 800):
        lance.write_dataset(rows(start, 10), table.uri, mode="append")
    pause = faults.of(table.location).pause("create", TABLE_MANIFEST, after=True)
    with pause.holding(build, table) as building:
        lance.dataset(table.uri).drop_index("idx")

    assert building.result().commits == 1


def test_a_part_of_no_maintained_index_is_refused(tmp_path: Path) -> None:
    table = indexed_copy(tmp_path, "BTREE")
    base = open_base(table.location)
    with pytest.raises(TableSetupError, match="other"):
        run_part_task(PartTask(table.location, base.version, "other", (0,)))


def test_numbers_below_one_are_refused(tmp_path: Path) -> None:
    table = indexed_copy(tmp_path, "BTREE")
    for wrong in ("max_tasks", "part_rows", "max_segments"):
        with pytest.raises(memwal.errors.InvalidInputError):
            build_indexes(table.location, IndexOptions(**{wrong: 0}))
