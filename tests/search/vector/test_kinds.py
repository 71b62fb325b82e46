"""Every kind of vector, index and metric, through the generations' indexes and in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import memwal

DIMENSION = 8
PQ = {"num_sub_vectors": 4, "num_bits": 4}


class Vectors:
    """A table with one column of vectors, and what must be in it."""

    def __init__(self, folder: Path, kind: pa.DataType, *, nested: bool) -> None:
        self.random = np.random.default_rng(0)
        self.model: dict[int, np.ndarray] = {}
        self.column = "s.v" if nested else "v"
        self.uri = str(folder / "vectors")
        self._number = kind.to_pandas_dtype()
        vector = pa.field("v", pa.list_(kind, DIMENSION))
        self._nested = [vector] if nested else None
        self._schema = pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("s", pa.struct([vector])) if nested else vector,
            ]
        )

    def rows(self, ids: range) -> pa.Table:
        vectors = self.random.standard_normal((len(ids), DIMENSION)).astype(self._number)
        self.model.update(zip(ids, vectors.astype("f8"), strict=True))
        column: Any = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSION)
        if self._nested:
            column = pa.StructArray.from_arrays([column], fields=self._nested)
        return pa.table([pa.array(ids, pa.int64()), column], schema=self._schema)

    def check(self, reads: Any, metric: str) -> None:
        query = self.random.standard_normal(DIMENSION).astype(self._number)
        keys = list(self.model)
        vectors, wide = np.array([self.model[key] for key in keys]), query.astype("f8")
        products = vectors @ wide
        distances = {
            "l2": ((vectors - wide) ** 2).sum(axis=1),
            "cosine": 1 - products / np.linalg.norm(vectors, axis=1) / np.linalg.norm(wide),
            "dot": 1 - products,
        }[metric]
        near = np.argsort(distances)[:10]
        found = reads.search(query, column=self.column, refine_factor=100, nprobes=9).to_table()
        assert found["id"].to_pylist() == [keys[at] for at in near]
        np.testing.assert_allclose(found["_distance"], distances[near], rtol=5e-3, atol=1e-3)


@pytest.mark.few(3)
@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize(
    ("index", "options", "number", "metric", "nested"),
    [
        ("IVF_FLAT", {}, pa.float32(), "l2", False),
        ("IVF_HNSW_SQ", {}, pa.float32(), "cosine", False),
        ("IVF_PQ", PQ, pa.float32(), "dot", False),
        ("IVF_PQ", PQ, pa.float16(), "l2", False),
        ("IVF_FLAT", {}, pa.float64(), "cosine", False),
        ("IVF_SQ", {}, pa.float32(), "l2", True),
    ],
)
def test_the_nearest_rows(
    tmp_path: Path,
    search_in_memory: Callable[[bool], None],
    in_memory: bool,
    index: str,
    options: dict[str, Any],
    number: pa.DataType,
    metric: str,
    nested: bool,
) -> None:
    search_in_memory(in_memory)
    vectors = Vectors(tmp_path, number, nested=nested)
    base = lance.write_dataset(vectors.rows(range(700)), vectors.uri)
    base.create_index(
        vectors.column, index, metric=metric, name="v_idx", num_partitions=2, **options
    )
    table = memwal.enable(
        vectors.uri,
        primary_key=["id"],
        region_spec="bucket:id:2",
        # Lance maintains indexes on columns of float32 that are not nested.
        maintained_indexes=["v_idx"] if number == pa.float32() and not nested else [],
    )
    with table.writer() as writer:
        writer.upsert(vectors.rows(range(1000, 1100)))
        writer.flush()
        table.merge()
        vectors.check(table, metric)
        writer.upsert(vectors.rows(range(50, 150)))
        writer.flush()
        vectors.check(table, metric)
        writer.upsert(vectors.rows(range(120, 130)))
        vectors.check(writer, metric)


@pytest.mark.few(2)
@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize(
    ("index", "options"), [("IVF_PQ", PQ), ("IVF_FLAT", {}), ("IVF_HNSW_SQ", {})]
)
def test_vectors_without_a_distance_are_never_found(
    tmp_path: Path,
    search_in_memory: Callable[[bool], None],
    in_memory: bool,
    index: str,
    options: dict[str, Any],
) -> None:
    """Zeros under cosine, NaN and null, wherever they are: also where more rows are asked for."""
    search_in_memory(in_memory)
    random = np.random.default_rng(0)
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("v", pa.list_(pa.float32(), DIMENSION)),
        ]
    )
    known: set[int] = set()

    def rows(ids: range) -> pa.Table:
        vectors: list[Any] = random.standard_normal((len(ids), DIMENSION)).tolist()
        vectors[3:6] = [[0.0] * DIMENSION, None, [float("nan")] * DIMENSION]
        known.update([*ids[:3], *ids[6:]])
        return pa.table({"id": list(ids), "v": vectors}, schema=schema)

    def check(reads: Any) -> None:
        found = reads.search(np.ones(DIMENSION), k=2_000, refine_factor=5, nprobes=2).to_table()
        assert set(found["id"].to_pylist()) == known
        assert np.isfinite(found["_distance"].to_numpy()).all()

    uri = str(tmp_path / "vectors")
    base = lance.write_dataset(rows(range(600)), uri)
    base.create_index("v", index, metric="cosine", name="v_idx", num_partitions=2, **options)
    table = memwal.enable(
        uri, primary_key=["id"], region_spec="unsharded", maintained_indexes=["v_idx"]
    )
    with table.writer() as writer:
        writer.upsert(rows(range(1000, 1020)))
        writer.flush()
        check(table)
        writer.upsert(rows(range(2000, 2010)))
        check(writer)
    table.merge()
    check(table)
    lance.write_dataset(rows(range(3000, 3010)), uri, mode="append")
    check(table)
