"""Indexing rows that other clients wrote to the base table directly, beside the log."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance
import lancedb
import pytest
from support.data.indexed import answers, indexed_copy, models, rows

import memwal
from memwal.jobs.due import due
from memwal.jobs.policy import Policy

NOW = datetime(2026, 3, 1, tzinfo=UTC)

Write = Callable[[str], None]


def append(uri: str) -> None:
    lance.write_dataset(rows(5000, 40), uri, mode="append")


def add(uri: str) -> None:
    path = Path(uri)
    path.rename(path.with_suffix(".lance"))
    lancedb.connect(path.parent).open_table(path.name).add(rows(5000, 40))
    path.with_suffix(".lance").rename(path)


def merge_insert(uri: str) -> None:
    writing = lance.dataset(uri).merge_insert("id")
    writing.when_matched_update_all().when_not_matched_insert_all().execute(rows(580, 40))


def update(uri: str) -> None:
    lance.dataset(uri).update({"text": "text || ' word17'"}, where="id < 40")


def behind(table: memwal.Table) -> int:
    """Rows that the index lacks, as status tells and as Lance does."""
    (lag,) = table.status().indexes
    dataset = table.base().dataset
    assert lag.rows == dataset.stats.index_stats("idx")["num_unindexed_rows"]
    return lag.rows or 0


def is_due(table: memwal.Table) -> bool:
    return due(table.status(), Policy(), now=NOW, last_runs={})["index"].reason is not None


@pytest.mark.few(4)
@pytest.mark.parametrize("stable_row_ids", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("write", [append, add, merge_insert, update])
def test_an_index_covers_rows_that_were_written_directly(
    tmp_path: Path, write: Write, stable_row_ids: bool
) -> None:
    table = indexed_copy(tmp_path, "BTREE", stable_row_ids=stable_row_ids)
    assert not is_due(table)
    write(table.uri)
    table = memwal.open(table.uri)
    assert behind(table) == 40
    assert is_due(table)
    found = answers(table, "BTREE")

    result = table.build_indexes()

    assert result.commits == 1
    assert behind(table) == 0
    assert not is_due(table)
    assert answers(table, "BTREE") == found
    assert table.build_indexes().commits == 0


@pytest.mark.parametrize("stable_row_ids", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("max_tasks", [1, 3])
def test_the_model_of_a_vector_index_stays(
    tmp_path: Path, max_tasks: int, stable_row_ids: bool
) -> None:
    table = indexed_copy(tmp_path, "IVF_PQ", stable_row_ids=stable_row_ids)
    before = models(table)
    assert len(before) == 1
    for start in (5000, 6000, 7000):
        lance.write_dataset(rows(start, 300, seed=start), table.uri, mode="append")

    table.build_indexes(max_tasks=max_tasks, part_rows=1)

    assert behind(table) == 0
    assert models(table) == before


def test_rows_that_come_during_a_build_belong_to_the_next(tmp_path: Path) -> None:
    """A build ends although another client does not stop appending."""
    table = indexed_copy(tmp_path, "BTREE")
    append(table.uri)
    append(table.uri)
    rounds = 0

    def run(tasks: Any, function: Any) -> list[Any]:
        nonlocal rounds
        rounds += 1
        append(table.uri)
        return [function(task) for task in tasks]

    result = table.build_indexes(max_tasks=2, part_rows=1, run=run)

    assert rounds == 1
    assert result.metrics["parts"] == 2
    assert behind(table) == 40
    table.build_indexes()
    assert behind(table) == 0
