"""Generations that are searched often are searched in memory, and with the same answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest
from support.data.searched import DIMENSION, Searched

from memwal.search import search
from memwal.search.vector import in_memory
from memwal.search.vector import search as vector_search


@pytest.fixture
def searched(tmp_path: Path) -> Searched:
    """Return a table with merged, unmerged and appended rows that its index lacks."""
    searched = Searched(tmp_path, maintained=["v_idx"], rows=700)
    with searched.table.writer() as writer:
        writer.upsert(searched.rows(range(100, 200)))
        writer.flush()
        searched.table.merge()
        lance.write_dataset(searched.rows(range(900, 920)), searched.uri, mode="append")
        writer.upsert(searched.rows(range(50, 60)))
        writer.flush()
        writer.upsert(searched.rows(range(55, 65)))
        searched.delete(writer, [66, 67, 910])
    return searched


class ThroughIndexError(Exception):
    """A generation was searched through its index."""


def _through_indexes(*args: Any, **kwargs: Any) -> Any:
    raise ThroughIndexError


def test_a_few_searches_go_through_indexes_and_the_next_do_not(
    searched: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        searched.check_nearest(searched.table, least=10, refine_factor=100)
    monkeypatch.setattr(vector_search, "generation_candidates", _through_indexes)
    monkeypatch.setattr(vector_search, "unindexed_candidates", _through_indexes)
    for k in (1, 10, 1000):
        searched.check_nearest(searched.table, k=k, least=k, refine_factor=1000)
    searched.check_nearest(searched.table, least=0, nprobes=1)


def test_a_filter_is_evaluated_over_all_generations_at_once(
    searched: Searched, monkeypatch: pytest.MonkeyPatch, search_in_memory: Callable[[bool], None]
) -> None:
    search_in_memory(True)
    for k in (1, 10, 1000):
        searched.check_nearest(searched.table, k=k, least=k, refine_factor=1000, filter="n < 4")
    # A newer row does not pass: the older one, which does, is not found.
    with searched.table.writer() as writer:
        writer.upsert(searched.rows(range(100, 140)))
        writer.flush()
        for _ in range(3):
            searched.check_nearest(writer, k=1000, least=1000, refine_factor=1000, filter="n < 4")
        monkeypatch.setattr(vector_search, "generation_candidates", _through_indexes)
        searched.check_nearest(writer, k=1000, least=1000, refine_factor=1000, filter="n < 4")
        writer.upsert(searched.rows(range(100, 120)))
        searched.check_nearest(writer, k=1000, least=1000, refine_factor=1000, filter="n < 4")


def test_a_filter_on_a_column_that_is_not_kept_is_evaluated_by_the_generations(
    searched: Searched, monkeypatch: pytest.MonkeyPatch, search_in_memory: Callable[[bool], None]
) -> None:
    search_in_memory(True)
    both = "n < 4 and v is not null"
    searched.check_nearest(searched.table, k=1000, least=1000, refine_factor=1000, filter=both)
    monkeypatch.setattr(vector_search, "generation_candidates", _through_indexes)
    with pytest.raises(ThroughIndexError):
        searched.check_nearest(searched.table, least=10, filter=both)


@pytest.mark.parametrize(
    ("limit", "value"), [("_MEMORY_BYTES", 40 * (DIMENSION + 3) * 4), ("_LONGEST_LAYOUT", 1)]
)
def test_what_does_not_fit_is_searched_through_indexes(
    searched: Searched,
    monkeypatch: pytest.MonkeyPatch,
    search_in_memory: Callable[[bool], None],
    limit: str,
    value: int,
) -> None:
    search_in_memory(True)
    monkeypatch.setattr(in_memory, limit, value)
    searched.check_nearest(searched.table, least=10, refine_factor=100)
    monkeypatch.setattr(vector_search, "generation_candidates", _through_indexes)
    with pytest.raises(ThroughIndexError):
        searched.check_nearest(searched.table, least=10, refine_factor=100)


def test_a_search_reads_no_more_than_its_share(
    searched: Searched, monkeypatch: pytest.MonkeyPatch, search_in_memory: Callable[[bool], None]
) -> None:
    made = []
    layout_of = in_memory.VectorLayout.of
    monkeypatch.setattr(
        in_memory.VectorLayout, "of", lambda *args: made.append(args) or layout_of(*args)
    )
    search_in_memory(True)
    monkeypatch.setattr(in_memory, "_LAYOUT_WORK", 1)
    for number in range(1, 4):
        searched.check_nearest(searched.table, least=10, refine_factor=100)
        assert len(made) == number


def test_one_partition_is_enough_where_it_is_asked_for(
    searched: Searched, search_in_memory: Callable[[bool], None]
) -> None:
    search_in_memory(True)
    sources, newest = searched.sources(searched.table)
    vector = np.full(DIMENSION, 0.1)
    every = search(sources, newest, vector, k=1000)
    some = search(sources, newest, vector, k=1000, nprobes=1)
    assert 0 < some.num_rows < every.num_rows == len(searched.model)
    assert set(some["id"].to_pylist()) < set(every["id"].to_pylist())
