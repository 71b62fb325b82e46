"""Our vector search beside Lance's own, and beside one table that has everything merged."""

from pathlib import Path

import lance
import numpy as np
import pytest
from support.data.searched import DIMENSION, Searched
from support.oracles import native

from memwal.search import search


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_flushed_rows_are_found_as_lance_finds_them(tmp_path: Path, seed: int) -> None:
    """With all partitions and as many candidates as rows, both are exact."""
    searched = Searched(tmp_path, seed=seed)
    table = searched.table
    for _ in range(3):
        with table.writer() as writer:
            for _ in range(4):
                searched.step(writer)
        for _ in range(4):
            _compare(searched)
        if searched.random.random() < 0.5:
            table.checkpoint()
            _compare(searched)


def _compare(searched: Searched) -> None:
    vector = np.array([searched.random.gauss(0, 1) for _ in range(DIMENSION)], np.float32)
    sources, newest = searched.sources(searched.table)
    ours = search(sources, newest, vector, column="v", k=400, nprobes=100, columns=["id"])
    theirs = native.nearest(searched.table, "v", vector.tolist(), k=400)
    assert sorted(ours["id"].to_pylist()) == sorted(theirs) == sorted(searched.model)


def test_recall_is_that_of_the_merged_table(tmp_path: Path) -> None:
    """Sources are searched one by one, which must not lose rows that one index would find."""
    searched = Searched(tmp_path, rows=1000)
    with searched.table.writer() as writer:
        for _ in range(3):
            writer.upsert(searched.rows(searched.random.sample(range(1200), 150)))
            writer.flush()
    ids = np.array(sorted(searched.model))
    vectors = np.array([searched.model[key]["v"] for key in ids.tolist()], np.float32)
    queries = np.random.default_rng(0).standard_normal((60, DIMENSION)).astype(np.float32)
    right = [set(ids[np.argsort(((vectors - q) ** 2).sum(axis=1))[:10]].tolist()) for q in queries]
    sources, newest = searched.sources(searched.table)
    ours = [
        search(sources, newest, q, k=10, columns=["id"], refine_factor=2, nprobes=100)["id"]
        for q in queries
    ]
    searched.table.checkpoint()
    merged = lance.dataset(searched.uri)
    theirs = [
        merged.scanner(
            columns=["id"],
            nearest={"column": "v", "q": q, "k": 10, "refine_factor": 2, "nprobes": 100},
            disable_scoring_autoprojection=True,
        ).to_table()["id"]
        for q in queries
    ]
    recalls = [
        np.mean([len(r & set(f.to_pylist())) / 10 for r, f in zip(right, found, strict=True)])
        for found in (ours, theirs)
    ]
    assert recalls[0] >= recalls[1] - 0.01, recalls


def test_generations_that_lance_flushed(tmp_path: Path) -> None:
    """Lance gives them a vector index of its own kind, and no text index like the base table's."""
    searched = Searched(tmp_path)
    native.upsert(searched.table, searched.rows(range(120, 170)))
    assert len(searched.sources(searched.table)[0].generations) == 2
    searched.check_nearest(searched.table, least=10, refine_factor=40)
    for _ in range(6):
        searched.check_text(searched.table, searched.query())
