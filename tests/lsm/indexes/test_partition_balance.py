"""How even the partitions of a vector index are, and what is said about it."""

from pathlib import Path

import numpy as np
import pytest
from support.data.indexed import DIMENSION, indexed_table, merge_rows, rows

from memwal.jobs.index.job import build_indexes
from memwal.lsm.indexes.partition_balance import PartitionBalance, partition_balance


def balance(*, empty: int = 0, rows: int = 100_000, largest: int = 2_000) -> PartitionBalance:
    return PartitionBalance(
        index="idx", partitions=100, empty=empty, rows=rows, largest=largest, segments=1
    )


def test_counts_all_segments(tmp_path: Path) -> None:
    table = indexed_table(tmp_path, "IVF_PQ")
    merge_rows(table, rows(600, 200))
    table.build_indexes()

    found = partition_balance(table.base(), "idx")

    assert found is not None
    assert (found.partitions, found.rows, found.segments, found.same_model) == (2, 800, 2, True)
    assert 400 <= found.largest < 800
    assert found.unevenness == found.largest / 400
    assert found.advice is None


def test_an_index_of_another_kind_has_no_partitions(tmp_path: Path) -> None:
    assert partition_balance(indexed_table(tmp_path, "BTREE").base(), "idx") is None


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (balance(), None),
        (balance(largest=5_001), "5.0"),
        (balance(empty=26), "26"),
        (balance(empty=25), None),
        (balance(rows=1_000, largest=900), None),
        (balance(rows=0, largest=0), None),
    ],
)
def test_advice(found: PartitionBalance, word: str | None) -> None:
    if word is None:
        assert found.advice is None
    else:
        assert found.advice is not None
        assert word in found.advice


def test_vectors_that_drift_are_a_problem(tmp_path: Path) -> None:
    centroids = np.zeros((8, DIMENSION), "float32")
    centroids[:, 0] = np.arange(8)
    table = indexed_table(
        tmp_path, "IVF_FLAT", count=300, num_partitions=8, ivf_centroids=centroids
    )
    merge_rows(table, rows(1000, 2000, shift=20.0))

    result = build_indexes(table.location)

    assert result.metrics["unevenness_percent"] > 500
    assert result.metrics["empty_partitions_percent"] >= 0
    (warning,) = result.warnings
    assert "idx" in warning
    again = build_indexes(table.location)
    assert (again.metrics, again.warnings) == ({"indexes": 0}, ())
