"""Vectors by partition: nothing is lost, and what is estimated as near is near."""

import lance
import numpy as np
import pyarrow as pa
import pytest

from memwal.search.vector.in_memory import Estimates, Partitions, VectorLayout, as_arrow, as_matrix
from memwal.util.arrays import nbytes_of

DIMENSION = 8


def _rows(count: int, seed: int) -> pa.Table:
    vectors = np.random.default_rng(seed).standard_normal((count, DIMENSION), np.float32)
    ids = np.arange(count, dtype=np.uint64) * 3
    return pa.table({"v": as_arrow(vectors), "_rowid": ids})


def _partitions(metric: str) -> Partitions:
    dataset = lance.write_dataset(_rows(600, 0).select(["v"]), "memory://")
    dataset = dataset.create_index("v", "IVF_FLAT", metric=metric, num_partitions=6)
    found = Partitions.of(dataset, "v_idx", metric)
    assert found is not None
    assert found.centroids.shape == (6, DIMENSION)
    return found


def _distances(vectors: np.ndarray, query: np.ndarray, metric: str) -> np.ndarray:
    if metric == "l2":
        return ((vectors - query) ** 2).sum(axis=1)
    products = vectors @ query
    if metric == "cosine":
        products = products / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    return 1 - products


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_the_nearest_are_among_the_best_estimates(metric: str) -> None:
    partitions = _partitions(metric)
    tables = [_rows(200, 1), _rows(1, 2), _rows(150, 3)]
    layouts = [VectorLayout.of(rows, partitions) for rows in tables]
    query = np.random.default_rng(9).standard_normal(DIMENSION, np.float32)
    probes = partitions.nearest(query[None], 6)[0]
    assert sorted(probes) == list(range(6))
    found = Estimates(layouts, np.sort(probes), query, metric)
    assert len(found.values) == 351
    of, positions = found.rows_of(np.arange(351))
    assert len(set(zip(of.tolist(), positions.tolist(), strict=True))) == 351
    vectors = np.array(
        [layouts[n].vectors[at] for n, at in zip(of.tolist(), positions.tolist(), strict=True)]
    )
    exact = _distances(vectors, query, metric)
    for count in (1, 10, 350, 351):
        assert set(np.argsort(exact)[:count]) <= set(found.best(count))
    assert len(found.best(10)) < 20


def test_only_the_probed_partitions_are_estimated() -> None:
    partitions = _partitions("l2")
    layouts = [
        VectorLayout.of(rows, partitions) for rows in (_rows(200, 1), _rows(1, 2), _rows(90, 3))
    ]
    query = np.random.default_rng(9).standard_normal(DIMENSION, np.float32)
    for probes in ([0], [5], [0, 1, 2], [1, 3, 4], [0, 2, 4, 5]):
        found = Estimates(layouts, np.array(probes), query, "l2")
        of, positions = found.rows_of(np.arange(len(found.values)))
        got = set(zip(of.tolist(), positions.tolist(), strict=True))
        wanted = {
            (number, row)
            for number, layout in enumerate(layouts)
            for probe in probes
            for row in range(layout.starts[probe], layout.starts[probe + 1])
        }
        assert got == wanted
        assert len(found.values) == len(wanted)
        for value, number, row in zip(found.values, of, positions, strict=True):
            vector = layouts[number].vectors[row]
            assert value == pytest.approx(((vector - query) ** 2).sum() - query @ query, abs=1e-4)


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_a_layout_has_every_row_in_its_nearest_partition(metric: str) -> None:
    partitions = _partitions(metric)
    rows = _rows(300, 4)
    layout = VectorLayout.of(rows, partitions)
    assert sorted(layout.addresses) == rows["_rowid"].to_pylist()
    given = as_matrix(rows["v"])
    np.testing.assert_array_equal(layout.vectors, given[(layout.addresses // 3).astype(int)])
    home = np.repeat(np.arange(6), np.diff(layout.starts))
    unit = layout.vectors
    if metric == "cosine":
        unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    kind = "dot" if metric == "dot" else "l2"
    apart = [_distances(partitions.centroids, vector, kind) for vector in unit]
    np.testing.assert_array_equal(home, np.argmin(apart, axis=1))
    assert nbytes_of(layout) > layout.vectors.nbytes


def test_rows_without_a_vector_or_a_distance_are_left_out() -> None:
    partitions = _partitions("cosine")
    good = [1.0] * DIMENSION
    vectors = pa.array(
        [None, good, [0.0] * DIMENSION, [float("nan")] * DIMENSION],
        pa.list_(pa.float32(), DIMENSION),
    )
    rows = pa.table({"v": vectors, "_rowid": pa.array([1, 2, 3, 4], pa.uint64())})
    layout = VectorLayout.of(rows, partitions)
    assert sorted(layout.addresses) == [2, 3, 4]
    found = Estimates([layout], np.arange(6), np.ones(DIMENSION, np.float32), "cosine")
    best = found.best(10)
    assert layout.addresses[found.rows_of(best)[1]].tolist() == [2]


def test_no_partitions_for_other_metrics() -> None:
    dataset = lance.write_dataset(_rows(10, 0).select(["v"]), "memory://")
    assert Partitions.of(dataset, "v_idx", "hamming") is None
