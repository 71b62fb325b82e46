"""Nearest vectors, against Lance."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from memwal.errors import InvalidInputError
from memwal.lsm.memtable.rows import RowView
from memwal.lsm.memtable.vector_index import Neighbours, nearest_rows

DIMENSION = 24
FLOATS = [pa.float16(), pa.float32(), pa.float64()]


def vectors(values: np.ndarray, nulls: np.ndarray | None = None) -> pa.FixedSizeListArray:
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.FixedSizeListArray.from_arrays(
        pa.array(values.reshape(-1), kind),
        values.shape[1],
        mask=None if nulls is None else pa.array(nulls),
    )


def chunked(column: pa.Array, size: int) -> pa.ChunkedArray:
    return pa.chunked_array([column.slice(n, size) for n in range(0, len(column), size)])


def find(
    vectors: pa.ChunkedArray, query: Any, *, k: int, metric: str = "l2", allowed: Any = None
) -> Neighbours:
    query = np.asarray(query)
    return nearest_rows(vectors, query, k=k, metric=metric, column="vec", allowed=allowed)


def numbers(kind: pa.DataType, count: int) -> np.ndarray:
    random = np.random.default_rng(3)
    if kind == pa.uint8():
        return random.integers(0, 256, (count, DIMENSION), dtype=np.uint8)
    return random.normal(size=(count, DIMENSION)).astype(kind.to_pandas_dtype())


def lance_nearest(dataset: Any, query: np.ndarray, metric: str, filter: str | None) -> pa.Table:
    nearest = {"column": "vec", "q": pa.array(query), "k": 10_000, "metric": metric}
    return dataset.to_table(
        columns=["row", "_distance"], nearest=nearest, filter=filter, prefilter=True
    )


CASES = [(kind, metric) for kind in FLOATS for metric in ("l2", "cosine", "dot")]


@pytest.mark.few(12)
@pytest.mark.parametrize("size", [5_000, 700, 1])
@pytest.mark.parametrize(("kind", "metric"), [*CASES, (pa.uint8(), "hamming")], ids=str)
def test_finds_what_lance_finds(tmp_path: Path, kind: pa.DataType, metric: str, size: int) -> None:
    count = 5_000 if size > 1 else 300
    values = numbers(kind, count)
    values[7] = 0
    values[8] = values[0]
    nulls = np.arange(count) % 11 == 5
    column = vectors(values, nulls)
    if kind != pa.uint8():
        values[9, 1] = np.nan
        column = vectors(values, nulls)
    table = pa.table({"row": np.arange(count), "vec": column})
    dataset = lance.write_dataset(table, tmp_path / "table")
    chunks = chunked(column, size)
    for mask, condition in [
        (None, None),
        (np.arange(count) % 3 > 0, "row % 3 > 0"),
        (np.arange(count) % 40 == 0, "row % 40 = 0"),
    ]:
        expected = lance_nearest(dataset, values[0], metric, condition)
        columns = (expected[name].to_pylist() for name in ("row", "_distance"))
        distances = dict(zip(*columns, strict=True))
        found = find(chunks, values[0], k=10_000, metric=metric, allowed=mask)
        assert found.distances.dtype == np.float32
        assert sorted(found.rows.tolist()) == sorted(distances)
        assert (np.diff(found.distances) >= 0).all()
        scale = 1 if metric == "cosine" else DIMENSION
        np.testing.assert_allclose(
            found.distances,
            [distances[row] for row in found.rows.tolist()],
            rtol=1e-5,
            atol=1e-6 * scale,
        )
        few = find(chunks, values[0], k=6, metric=metric, allowed=mask)
        assert few.rows.tolist() == found.rows[:6].tolist()


def test_close_vectors_far_from_the_origin_keep_their_digits() -> None:
    values = np.full((3, 8), 1e4, np.float32)
    values[1] += np.float32(0.01)
    values[2] += np.float32(0.02)
    found = find(chunked(vectors(values), 3), values[0], k=3)
    exact = ((values.astype(np.float64) - values[0]) ** 2).sum(1)
    assert found.rows.tolist() == [0, 1, 2]
    np.testing.assert_allclose(found.distances, exact, rtol=1e-5)


def test_equal_distances_come_in_the_order_of_the_log() -> None:
    values = np.ones((50, 2), np.float32)
    values[4] = 3
    found = find(chunked(vectors(values), 1), [1, 1], k=6)
    assert found.rows.tolist() == [0, 1, 2, 3, 5, 6]


def test_nested_columns_and_null_parents() -> None:
    inner = vectors(np.array([[1, 1], [2, 2], [3, 3]], np.float32))
    parent = pa.StructArray.from_arrays([inner], ["vec"], mask=pa.array([False, True, False]))
    view = RowView.of(
        pa.schema([("parent", parent.type)]), [pa.record_batch([parent], names=["parent"])]
    )
    found = find(view.column("parent.vec"), [2, 2], k=3)
    assert found.rows.tolist() == [0, 2]


def test_nothing_to_find() -> None:
    kind = pa.list_(pa.float32(), 2)
    for nothing in ([], [pa.nulls(0, kind)], [pa.nulls(3, kind)]):
        found = find(pa.chunked_array(nothing, kind), [0, 0], k=3)
        assert (len(found.rows), len(found.distances)) == (0, 0)


@pytest.mark.parametrize(("kind", "metric"), [(np.float32, "hamming"), (np.uint8, "l2")])
def test_refuses(kind: Any, metric: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"\b{metric}\b.*\bvec\b"):
        find(chunked(vectors(np.ones((2, 4), kind)), 2), [1, 2, 3, 4], k=1, metric=metric)
