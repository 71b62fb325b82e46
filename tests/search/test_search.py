"""Searches by vectors and texts together, and the form of every search's result."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.data.searched import DIMENSION, SCHEMA, Searched
from support.oracles import native
from support.oracles.read_sources import collect_sources

from memwal.errors import InvalidInputError
from memwal.reader.latest import NewestRows
from memwal.reader.scan import open_newest
from memwal.reader.sources import generation
from memwal.reader.sources.generation import ReadSources, retry_if_collected
from memwal.search import search, search_hybrid, search_text
from memwal.search.text.query import MatchQuery

VECTOR = np.linspace(-1, 1, DIMENSION)
QUERY = MatchQuery("apple quick fox", "t")


@pytest.fixture
def searched(tmp_path: Path) -> Searched:
    """Return a table with rows in every kind of place but a MemTable."""
    searched = Searched(tmp_path)
    with searched.table.writer() as writer:
        writer.upsert(searched.rows(range(100, 200)))
        searched.delete(writer, range(10))
        writer.flush()
        writer.upsert(searched.rows(range(50, 60)))
    return searched


@pytest.mark.few(2)
@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("filter", [None, "n < 4"])
def test_fusion_of_ranks(searched: Searched, weight: float, filter: str | None) -> None:
    sources, newest = searched.sources(searched.table)
    near = search(sources, newest, VECTOR, k=30, filter=filter)
    texts = search_text(sources, newest, QUERY, k=30, filter=filter)
    wanted: dict[int, float] = {}
    for rows, share in ((near, weight), (texts, 1 - weight)):
        for rank, key in enumerate(rows["id"].to_pylist(), 1):
            wanted[key] = wanted.get(key, 0) + 2 * share / (60 + rank)
    found = search_hybrid(
        sources,
        newest,
        VECTOR,
        QUERY,
        k=20,
        candidates=30,
        filter=filter,
        weight=weight,
        columns=["id", "t"],
    )
    assert found.column_names == ["id", "t", "_distance", "_score", "_relevance_score"]
    relevance = found["_relevance_score"].to_pylist()
    best = sorted(wanted.values(), reverse=True)[: found.num_rows]
    assert found.num_rows == min(20, len(wanted))
    np.testing.assert_allclose(relevance, best, rtol=1e-5)
    for row in found.to_pylist():
        assert row["_relevance_score"] == pytest.approx(wanted[row["id"]], rel=1e-5)
        assert row["t"] == searched.model[row["id"]]["t"]
    for rows, name in ((near, "_distance"), (texts, "_score")):
        values = dict(zip(rows["id"].to_pylist(), rows[name].to_pylist(), strict=True))
        for row in found.to_pylist():
            assert row[name] == values.get(row["id"])


def test_fewer_candidates_than_rows_wanted(searched: Searched) -> None:
    sources, newest = searched.sources(searched.table)
    assert search_hybrid(sources, newest, VECTOR, "apple", k=70, candidates=1).num_rows >= 70


@pytest.mark.parametrize("options", [{"weight": 1.1}, {"k": 0}])
def test_mistakes_are_told(searched: Searched, options: dict[str, int]) -> None:
    (named,) = options
    with pytest.raises(InvalidInputError, match=named):
        search_hybrid(*searched.sources(searched.table), VECTOR, "apple", **options)


def test_columns_have_the_types_of_the_table(searched: Searched) -> None:
    sources, newest = searched.sources(searched.table)
    schema = sources.base.schema
    for found, score in (
        (search(sources, newest, VECTOR), "_distance"),
        (search_text(sources, newest, QUERY), "_score"),
        (search(sources, newest, VECTOR, filter="n > 100"), "_distance"),
        (search_text(sources, newest, "nothing"), "_score"),
    ):
        assert found.schema.names == [*SCHEMA.names, score]
        assert found.schema.field(score).type == pa.float32()
        assert found.drop_columns([score]).schema == schema
    assert search(sources, newest, VECTOR, columns=[]).column_names == ["_distance"]
    order = ["t", "id"]
    assert search_text(sources, newest, QUERY, columns=order).column_names == [*order, "_score"]


@pytest.mark.few(1)
@pytest.mark.parametrize("text", [False, True])
def test_what_was_collected_meanwhile_is_found_in_the_base_table(
    searched: Searched, text: bool
) -> None:
    stale, _ = searched.sources(searched.table)
    searched.table.checkpoint()
    native.collect_all(searched.table)
    plans = [stale]

    def collect() -> ReadSources:
        return plans.pop() if plans else searched.sources(searched.table)[0]

    def run(sources: ReadSources, newest: NewestRows) -> pa.Table:
        if text:
            return search_text(sources, newest, QUERY, k=None)
        return search(sources, newest, VECTOR, k=1000)

    found = retry_if_collected(lambda: run(*open_newest(collect)))
    assert not plans
    assert found.num_rows > 20
    for row in found.to_pylist():
        assert row["t"] == searched.model[row["id"]]["t"]


@pytest.mark.few(1)
@pytest.mark.parametrize("filter", ["id = 123", "id IN (52, 190, 11)", "id = 3"])
def test_regions_that_a_filter_rules_out_change_nothing(searched: Searched, filter: str) -> None:
    with searched.table.writer() as writer:
        searched.delete(writer, [190])
        writer.upsert(searched.rows([3, 123]))
        claims = writer.claims()
        every = searched.sources(writer)
        some = open_newest(lambda: collect_sources(searched.table.location, claims, filter=filter))
        assert len(some[0].generations) <= len(every[0].generations)
        assert bool(some[0].plan.pruned) == ("IN" not in filter)
        found = search(*some, VECTOR, filter=filter, k=300)
        assert found.equals(search(*every, VECTOR, filter=filter, k=300))
        assert found.num_rows == (2 if filter.endswith("11)") else 1)


def test_a_memtable_is_searched_where_it_lies(
    searched: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(rows: pa.Table) -> Any:
        raise AssertionError("a MemTable was copied")

    with searched.table.writer() as writer:
        writer.upsert(searched.rows(range(210, 240)))
        monkeypatch.setattr(generation, "write_in_memory", copied)
        searched.check_nearest(writer, k=300, least=0, filter="n < 4")
        every = searched.sources(writer)
        near = search(*every, VECTOR, k=300, filter="n < 4", prefilter=False)
        assert sorted(near["id"].to_pylist()) == sorted(
            key for key, row in searched.model.items() if row["n"] < 4
        )


def test_a_table_that_is_made_anew_in_the_same_place(tmp_path: Path) -> None:
    for seed in range(2):
        searched = Searched(tmp_path, seed=seed, maintained=[])
        searched.table.upsert(searched.rows(range(100, 200)))
        searched.check_text(searched.table, QUERY)
        searched.table.merge()
        searched.check_text(searched.table, QUERY)
        searched.check_nearest(searched.table, least=10, refine_factor=40)
        shutil.rmtree(searched.uri)
