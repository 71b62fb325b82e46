"""Rows with several vectors each, in every kind of place."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.oracles.read_sources import collect_sources, sources_now

import memwal
from memwal.errors import InvalidInputError
from memwal.reader.scan import open_newest
from memwal.search import search
from memwal.search.vector import candidates
from memwal.search.vector.candidates import nearest_multivectors

DIMENSION = 8
KIND = pa.list_(pa.list_(pa.float32(), DIMENSION))
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64()), pa.field("v", KIND)]
)


class Documents:
    """A table of documents with one vector per word, and what must be in it."""

    def __init__(self, folder: Path, *, indexed: bool) -> None:
        self.random = random.Random(0)
        self.model: dict[int, list[list[float]]] = {}
        self.uri = str(folder / "documents")
        dataset = lance.write_dataset(self.rows(range(300)), self.uri, schema=SCHEMA)
        if indexed:
            dataset.create_index(
                "v", "IVF_PQ", metric="cosine", num_partitions=2, num_sub_vectors=4, num_bits=4
            )
        self.table = memwal.enable(self.uri, primary_key=["id"], region_spec="bucket:id:2")

    def rows(self, ids: range) -> pa.Table:
        for key in ids:
            words = self.random.randint(1, 4)
            self.model[key] = [
                [self.random.gauss(0, 1) for _ in range(DIMENSION)] for _ in range(words)
            ]
        found = [{"id": key, "n": key % 10, "v": self.model[key]} for key in ids]
        return pa.Table.from_pylist(found, schema=SCHEMA)

    def check(self, reads: Any, metric: str, **options: Any) -> None:
        query = [[self.random.gauss(0, 1) for _ in range(DIMENSION)] for _ in range(3)]
        keys = sorted(self.model)
        keys = [key for key in keys if "filter" not in options or key % 10 < 4]
        merged = lance.write_dataset(
            pa.table({"id": keys, "v": pa.array([self.model[key] for key in keys], KIND)}),
            "memory://",
        )
        wanted = merged.scanner(
            columns=["id", "_distance"],
            nearest={"column": "v", "q": np.array(query, "f4"), "k": 10, "metric": metric},
        ).to_table()
        sources, newest = open_newest(lambda: sources_now(reads))
        found = search(sources, newest, query, metric=metric, columns=["id"], **options)
        assert found["id"].to_pylist() == wanted["id"].to_pylist()
        np.testing.assert_allclose(
            found["_distance"].to_numpy(), wanted["_distance"].to_numpy(), rtol=1e-4, atol=1e-5
        )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("indexed", "metric"), [(True, "cosine"), (False, "cosine"), (False, "l2"), (True, "dot")]
)
def test_equal_to_one_table_at_every_stage(tmp_path: Path, indexed: bool, metric: str) -> None:
    documents = Documents(tmp_path, indexed=indexed)
    # Every row is a candidate: an index only guesses how near a document is.
    options = {"refine_factor": 60, "nprobes": 2}
    documents.check(documents.table, metric, **options)
    with documents.table.writer() as writer:
        writer.upsert(documents.rows(range(250, 420)))
        writer.delete(pa.array(range(20)))
        for key in range(20):
            del documents.model[key]
        documents.check(writer, metric, **options)
        documents.check(writer, metric, filter="n < 4", **options)
        writer.flush()
        documents.check(documents.table, metric, **options)
        documents.table.merge()
        documents.check(documents.table, metric, **options)
        writer.upsert(documents.rows(range(400, 440)))
        documents.check(writer, metric, **options)
    documents.table.checkpoint()
    documents.check(documents.table, metric, filter="n < 4", **options)


def test_distances_of_lance_and_of_nothing() -> None:
    vectors = pa.chunked_array(
        [
            pa.array([[[1, 0], [0, 2]], None], pa.list_(pa.list_(pa.float32(), 2))),
            pa.array([[], [[3, 3]], [[0, 0]]], pa.list_(pa.list_(pa.float32(), 2))),
        ]
    )
    query = np.array([[1, 0], [0, 1]], np.float32)
    found = nearest_multivectors(vectors, query, k=9, metric="cosine", column="v")
    assert found.rows.tolist() == [0, 3]
    np.testing.assert_allclose(found.distances, [0, 2 - 2**0.5], atol=1e-6)
    find = partial(nearest_multivectors, vectors, query, k=1, column="v")
    found = find(metric="l2", allowed=np.arange(5) > 0)
    assert found.rows.tolist() == [4]
    assert found.distances.tolist() == [2.0]
    nothing = find(metric="l2", allowed=np.zeros(5, bool))
    assert not len(nothing.rows)
    with pytest.raises(InvalidInputError):
        find(metric="hamming")


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_nulls_within_a_document_are_zeros_as_in_lance(metric: str) -> None:
    kind = pa.list_(pa.list_(pa.float32(), 2))
    documents = [[[5, 5]], [None, [1, 0]], [[0, 1], [0, 1]], None, [[1, None], [2, 2]], [[1, 3]]]
    vectors = pa.chunked_array([pa.array(documents[:4], kind), pa.array(documents[4:], kind)])
    query = np.array([[1, 0], [1, 1]], np.float32)
    # A slice begins within its buffers.
    for start in range(len(documents)):
        part = vectors.slice(start)
        found = nearest_multivectors(part, query, k=9, metric=metric, column="v")
        plain = lance.write_dataset(pa.table({"id": range(len(part)), "v": part}), "memory://")
        wanted = plain.scanner(
            columns=["id", "_distance"],
            nearest={"column": "v", "q": query, "k": 9, "metric": metric, "use_index": False},
        ).to_table()
        assert sorted(found.rows.tolist()) == sorted(wanted["id"].to_pylist())
        expected = wanted.sort_by("id")["_distance"].to_numpy()
        by_row = found.distances[np.argsort(found.rows)]
        np.testing.assert_allclose(by_row, expected, rtol=1e-5, atol=1e-6)


def test_a_null_vector_is_zeros_whatever_its_buffer_has() -> None:
    values = pa.array([9, 9, 1, 0, 0, 1], pa.float32())
    inner = pa.FixedSizeListArray.from_arrays(values, 2, mask=pa.array([True, False, False]))
    vectors = pa.chunked_array([pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), inner)])
    query = np.array([[9, 9]], np.float32)
    found = nearest_multivectors(vectors, query, k=9, metric="l2", column="v")
    assert found.distances.tolist() == [145.0, 145.0]


def test_mistakes_are_told(tmp_path: Path) -> None:
    documents = Documents(tmp_path, indexed=False)
    sources, newest = open_newest(lambda: collect_sources(documents.table.location))
    for query in (
        np.zeros(3),
        np.zeros((2, 3)),
        np.zeros((0, DIMENSION)),
        np.zeros((1, 1, 8)),
        [[1.0] * DIMENSION, [1.0]],
    ):
        with pytest.raises(InvalidInputError):
            search(sources, newest, query)
    with pytest.raises(InvalidInputError, match="hamming"):
        search(sources, newest, np.ones((1, DIMENSION)), metric="hamming")
    one = search(sources, newest, np.ones(DIMENSION), metric="cosine")
    same = search(sources, newest, pa.array([[1.0] * DIMENSION]), metric="cosine")
    assert one.equals(same)


def test_rows_with_many_vectors_each_are_all_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index finds the nearest vectors, and here the nearest are those of a few rows."""
    monkeypatch.setattr(candidates, "_MANY_ROWS", 10)
    rows, words = 100, 60
    vectors = np.random.default_rng(0).normal(scale=0.01, size=(rows, words, DIMENSION))
    vectors[: rows // 2, :, 0] += 1
    vectors[rows // 2 :, :, 1] += 1
    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), DIMENSION)
    lists = pa.ListArray.from_arrays(np.arange(0, rows * words + 1, words, dtype="i4"), flat)
    found = pa.table([pa.array(range(rows)), pa.array(range(rows)), lists], schema=SCHEMA)
    dataset = lance.write_dataset(found, str(tmp_path / "documents"), schema=SCHEMA)
    dataset.create_index(
        "v", "IVF_PQ", metric="cosine", num_partitions=1, num_sub_vectors=4, num_bits=4
    )
    table = memwal.enable(dataset.uri, primary_key=["id"], region_spec="bucket:id:2")

    query = np.eye(DIMENSION, dtype="f4")[:1]
    assert table.search(query, column="v", metric="cosine", k=rows).to_table().num_rows == rows
