"""What one plain Lance table answers, and whether another answer is as good.

What a filter, a text query or a nearest-neighbour search has to find is asked of Lance, so that no
code of ours decides what is right.
"""

from collections.abc import Sequence
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from support.data.searched import lance_scores

from memwal.search.text.query import TextQuery

Row = dict[str, Any]
Rows = dict[int, Row]


class Merged:
    """One plain table with rows by their ``id``, which Lance answers from.

    Parameters
    ----------
    rows : mapping of int to dict
        With a vector ``v`` and a text ``t``, among others.
    schema : pyarrow.Schema
    """

    def __init__(self, rows: Rows, schema: pa.Schema) -> None:
        self.rows = dict(rows)
        data = pa.Table.from_pylist([rows[number] for number in sorted(rows)], schema=schema)
        self._dataset = lance.write_dataset(data, "memory://", schema=schema)
        self._dataset.create_scalar_index("t", "INVERTED", with_position=True)

    def in_order(self) -> list[Row]:
        return [self.rows[number] for number in sorted(self.rows)]

    def passing(self, filter: str | None) -> set[int]:
        return set(self._dataset.to_table(columns=["id"], filter=filter)["id"].to_pylist())

    def distances(self, vector: np.ndarray, filter: str | None) -> dict[int, float]:
        passing = sorted(n for n in self.passing(filter) if self.rows[n]["v"] is not None)
        vectors = np.array([self.rows[n]["v"] for n in passing], np.float32).reshape(
            -1, len(vector)
        )
        found = ((vectors - vector) ** 2).sum(axis=1)
        return dict(zip(passing, found.tolist(), strict=True))

    def scores(self, query: TextQuery, filter: str | None) -> dict[int, float]:
        return lance_scores(self._dataset, query, filter=filter)


def numbers_of(found: pa.Table) -> dict[int, int | None]:
    """Key to number of a result, in which no key may stand twice."""
    ids = found["id"].to_pylist()
    assert len(set(ids)) == len(ids), f"keys shown twice: {sorted(ids)}"
    return dict(zip(ids, found["n"].to_pylist(), strict=True))


def bag(rows: Sequence[Row]) -> list[str]:
    """Rows in an order of their own, to compare them in none."""
    return sorted(repr(sorted(row.items(), key=lambda item: item[0])) for row in rows)


def check_hits(found: pa.Table, name: str, wanted: dict[int, float], merged: Merged) -> None:
    """Each row once, with its own value and its own columns."""
    numbers = numbers_of(found)
    assert numbers == {number: merged.rows[number]["n"] for number in numbers}
    expected = [wanted[number] for number in numbers]
    np.testing.assert_allclose(found[name].to_numpy(), expected, rtol=1e-4, atol=1e-3)


def check_fused(
    found: pa.Table,
    distances: dict[int, float],
    scores: dict[int, float],
    *,
    weight: float,
    k: int,
) -> None:
    """Reciprocal rank fusion, where rows that equal may stand in any order."""
    numbers = found["id"].to_pylist()
    assert len(set(numbers)) == len(numbers)
    relevance = found["_relevance_score"].to_pylist()
    assert relevance == sorted(relevance, reverse=True)
    assert len(numbers) == min(k, len(distances.keys() | scores.keys()))
    near = _ranks({number: -distance for number, distance in distances.items()})
    best = _ranks(scores)
    for number, value in zip(numbers, relevance, strict=True):
        low, high = (
            sum(
                2 * share / (60 + ranks[number][end])
                for ranks, share in ((near, weight), (best, 1 - weight))
                if number in ranks
            )
            for end in (1, 0)
        )
        assert low - 1e-6 <= value <= high + 1e-6, number


def _ranks(values: dict[int, float]) -> dict[int, tuple[int, int]]:
    """First and last rank, from 1, that a row can have among those that nearly equal it."""
    numbers, sizes = list(values), np.array(list(values.values()))
    return {
        number: (
            1 + int((sizes > value + 1e-4 * (1 + abs(value))).sum()),
            int((sizes >= value - 1e-4 * (1 + abs(value))).sum()),
        )
        for number, value in zip(numbers, sizes, strict=True)
    }
