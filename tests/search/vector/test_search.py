"""Nearest vectors over all sources: which rows exist is exact, and enough of the best are found."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.searched import DIMENSION, SCHEMA, Searched
from support.oracles.read_sources import sources_now

import memwal
from memwal.errors import InvalidInputError
from memwal.reader.base_indexes import find_gap, find_index
from memwal.reader.scan import open_newest
from memwal.search import search


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("seed", "in_memory"),
    [
        pytest.param(seed, in_memory, marks=() if default else pytest.mark.slow)
        for seed in range(4)
        for in_memory in (False, True)
        for default in [(seed, in_memory) in ((0, False), (2, True))]
    ],
)
@pytest.mark.timeout(120)
def test_histories(
    tmp_path: Path, seed: int, in_memory: bool, search_in_memory: Callable[[bool], None]
) -> None:
    """Whatever was written, flushed, merged, appended beside, indexed or compacted."""
    search_in_memory(in_memory)
    searched = Searched(tmp_path, seed=seed, maintained=["v_idx"])
    table = searched.table
    for _ in range(3):
        with table.writer() as writer:
            for _ in range(searched.random.randint(1, 5)):
                searched.step(writer)
            _check(searched, writer)
        _check(searched, table)
        if searched.random.random() < 0.7:
            table.merge()
            _check(searched, table)
            if searched.random.random() < 0.5:
                searched.update_by_hand(searched.random.sample(sorted(searched.model), 20))
                _check(searched, table)
        if searched.random.random() < 0.3:
            start = 10_000 + max(searched.model)
            lance.write_dataset(searched.rows(range(start, start + 5)), table.uri, mode="append")
            _check(searched, table)
        if searched.random.random() < 0.4:
            table.build_indexes()
            _check(searched, table)
        if searched.random.random() < 0.3:
            lance.dataset(table.uri).optimize.compact_files()
            _check(searched, table)


def _check(searched: Searched, reads: Any) -> None:
    # With as many candidates as there are rows, nothing is left to chance.
    searched.check_nearest(reads, least=10, refine_factor=40, nprobes=10)
    searched.check_nearest(reads, least=10, refine_factor=40, nprobes=10, filter="n < 4")
    searched.check_nearest(reads, least=5)
    searched.check_nearest(reads, k=1000, least=0)


def test_all_but_a_few_rows_are_stale(tmp_path: Path) -> None:
    """The rows that are left come back however many candidates have to be dropped first."""
    searched = Searched(tmp_path, rows=600)
    with searched.table.writer() as writer:
        searched.delete(writer, range(590))
        searched.check_nearest(writer, k=5, least=5, refine_factor=2)
        writer.flush()
        searched.check_nearest(searched.table, k=10, least=10)
        searched.check_nearest(searched.table, k=11, least=10)


class TestIndexBehindTheMerge:
    def test_generations_answer_for_what_the_index_lacks(self, tmp_path: Path) -> None:
        searched = Searched(tmp_path)
        with searched.table.writer() as writer:
            writer.upsert(searched.rows(range(100, 200)))
            searched.delete(writer, range(20))
        searched.table.merge()
        gap = _gap(searched)
        assert gap is not None
        assert sum(len(bridge.rows) for bridge in gap.bridges) == 100
        assert not len(gap.unbridged)
        searched.check_nearest(searched.table, least=10, refine_factor=40)

        lance.write_dataset(searched.rows(range(900, 920)), searched.uri, mode="append")
        gap = _gap(searched)
        assert gap is not None
        assert len(gap.unbridged) == 20
        searched.check_nearest(searched.table, least=10, refine_factor=40)
        with searched.table.writer() as writer:
            writer.upsert(searched.rows(range(150, 160)))
            searched.delete(writer, range(900, 910))
            searched.check_nearest(writer, least=10, refine_factor=40)

        searched.table.checkpoint()
        assert _gap(searched) is None

    def test_nothing_is_missing_when_they_are_collected(self, tmp_path: Path) -> None:
        searched = Searched(tmp_path)
        searched.table.upsert(searched.rows(range(100, 200)))
        searched.table.merge()
        sources, newest = searched.sources(searched.table)
        assert sources.plan.merged
        for folder in Path(searched.uri).glob("_mem_wal/*/*_gen_*"):
            folder.rename(folder.with_name("gone"))
        found = search(sources, newest, np.zeros(DIMENSION), k=1000)
        assert sorted(found["id"].to_pylist()) == sorted(searched.model)


def test_a_generation_without_an_index_is_searched_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    searched = Searched(tmp_path, maintained=[])
    searched.table.upsert(searched.rows(range(200, 230)))
    with caplog.at_level(logging.WARNING):
        searched.check_nearest(searched.table, k=1000, least=180)
        searched.check_nearest(searched.table, least=10, refine_factor=40)
    messages = [record.getMessage() for record in caplog.records]
    told = [message for message in messages if "no vector index" in message]
    assert len(told) == len(set(told)) == len(searched.sources(searched.table)[0].generations)


@pytest.mark.few(1)
@pytest.mark.parametrize("metric", ["cosine", "dot", "L2"])
def test_another_metric_than_the_index_has(tmp_path: Path, metric: str) -> None:
    searched = Searched(tmp_path)
    with searched.table.writer() as writer:
        writer.upsert(searched.rows(range(100, 160)))
        writer.flush()
        writer.upsert(searched.rows(range(150, 170)))
        sources, newest = searched.sources(writer)
        vector = np.arange(DIMENSION, dtype=np.float32) - 2
        found = search(sources, newest, vector, k=5, metric=metric, refine_factor=40)
    keys = list(searched.model)
    vectors = np.array([searched.model[key]["v"] for key in keys], np.float32)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(vector)
    distances = {
        "cosine": 1 - vectors @ vector / lengths,
        "dot": 1 - vectors @ vector,
        "L2": ((vectors - vector) ** 2).sum(axis=1),
    }[metric]
    order = np.argsort(distances)[:5]
    assert found["id"].to_pylist() == [keys[at] for at in order]
    np.testing.assert_allclose(found["_distance"].to_numpy(), distances[order], rtol=1e-4)


def test_filtering_afterwards_leaves_fewer(tmp_path: Path) -> None:
    searched = Searched(tmp_path)
    searched.table.upsert(searched.rows(range(100, 160)))
    sources, newest = searched.sources(searched.table)
    vector = np.zeros(DIMENSION)
    every = search(sources, newest, vector, k=20)
    found = search(sources, newest, vector, k=20, filter="n < 4", prefilter=False)
    wanted = [key for key in every["id"].to_pylist() if searched.model[key]["n"] < 4]
    assert found["id"].to_pylist() == wanted
    assert 0 < found.num_rows < 20


def test_a_table_without_an_index_and_vectors_that_are_null(make_table: Any) -> None:
    table = make_table(SCHEMA)
    none = {"id": 1, "n": 1, "v": None, "t": None, "u": None}
    one = {"id": 2, "n": 2, "v": [1.0] * DIMENSION, "t": None, "u": None}
    sources, newest = _collect(table)
    assert search(sources, newest, [0.0] * DIMENSION).num_rows == 0
    for _ in range(2):
        with table.writer() as writer:
            writer.upsert(pa.Table.from_pylist([none, one], schema=SCHEMA))
            for reads in (writer, table):
                sources, newest = _collect(reads)
                found = search(sources, newest, [0.0] * DIMENSION, columns=["id"])
                assert found.to_pylist() in ([{"id": 2, "_distance": DIMENSION}], [])
            writer.flush()
        assert found.num_rows or table.merge()
    sources, newest = _collect(table)
    assert search(sources, newest, [0.0] * DIMENSION, columns=["id"]).num_rows == 1


def test_every_base_row_of_a_replaced_key_is_hidden(make_table: Any) -> None:
    """A plain append can give a key several rows: none of them is the newest one."""
    table = make_table(SCHEMA)
    near = {"id": 1, "n": 1, "v": [0.0] * DIMENSION, "t": None, "u": None}
    for _ in range(2):
        appended = pa.Table.from_pylist([near], schema=SCHEMA)
        lance.write_dataset(appended, table.uri, mode="append")
    table.upsert(pa.Table.from_pylist([near | {"v": [1.0] * DIMENSION}], schema=SCHEMA))
    sources, newest = _collect(table)
    found = search(sources, newest, [0.0] * DIMENSION, columns=["id"])
    assert found.to_pylist() == [{"id": 1, "_distance": DIMENSION}]


def test_mistakes_are_told(tmp_path: Path) -> None:
    searched = Searched(tmp_path, rows=40)
    sources, newest = searched.sources(searched.table)
    good = [0.0] * DIMENSION
    assert search(sources, newest, good).num_rows
    for vector, named, options in (
        (good, "k is", {"k": 0}),
        (good, "refine_factor", {"refine_factor": 0}),
        (good, "column w", {"column": "w"}),
        (good, "int64", {"column": "n"}),
        (good[1:], "column v", {}),
        (["a"] * DIMENSION, "", {}),
        ([float("nan")] * DIMENSION, "", {}),
        (good, "x", {"columns": ["x"]}),
        (good, "far", {"metric": "far"}),
        (good, "nosuch", {"filter": "nosuch > 1"}),
    ):
        with pytest.raises(InvalidInputError) as refused:
            search(sources, newest, vector, **options)  # type: ignore[arg-type]
        assert named in str(refused.value)
    with pytest.raises(TypeError, match="probes"):
        search(sources, newest, good, probes=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("k", [2**40, 2**64])
def test_more_rows_than_any_table_has(tmp_path: Path, k: int) -> None:
    searched = Searched(tmp_path, rows=40)
    with searched.table.writer() as writer:
        writer.upsert(searched.rows(range(30, 60)))
        for reads in (writer, searched.table):
            vector = [0.0] * DIMENSION
            assert reads.search(vector, k=k).to_table().num_rows == 60
            hybrid = reads.search_hybrid(vector, "fox", text_column="t", k=k)
            assert hybrid.to_table().num_rows == 60
            writer.flush()


def test_a_table_without_vectors(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = memwal.create(tmp_path / "plain", schema, primary_key="id")
    sources, newest = _collect(table)
    with pytest.raises(InvalidInputError):
        search(sources, newest, [0.0])


def _collect(reads: Any) -> Any:
    return open_newest(lambda: sources_now(reads))


def _gap(searched: Searched) -> Any:
    sources, _ = searched.sources(searched.table)
    index = find_index(sources.base.dataset.describe_indices(), "v", lambda kind: kind.is_vector)
    assert index is not None
    return find_gap(sources, index)
