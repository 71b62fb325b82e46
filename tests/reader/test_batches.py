"""Batches of a scan."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.tables import numbered

from memwal.reader.row_set import group_batches, read_rows, without_rows


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"_rowid": pa.array(values, pa.uint64())})


class TestGathered:
    @pytest.mark.parametrize(
        ("rows", "max_bytes", "expected"),
        [
            (3, 1 << 20, [[2, 1], [4], [1]]),
            (100, 1 << 20, [[2, 1, 4, 1]]),
            (100, 8, [[2], [1], [4], [1]]),
        ],
    )
    def test_has_so_many_rows_or_bytes(
        self, rows: int, max_bytes: int, expected: list[list[int]]
    ) -> None:
        batches = [batch(1, 2), batch(), batch(3), batch(4, 5, 6, 7), batch(8)]
        found = list(group_batches(batches, rows=rows, max_bytes=max_bytes))
        assert [[part.num_rows for part in piece] for piece in found] == expected

    def test_reads_no_further_than_it_gives(self) -> None:
        made = iter([batch(1), batch(2), batch(3)])
        assert len(next(group_batches(made, rows=2, max_bytes=1 << 20))) == 2
        assert next(made).equals(batch(3))


@pytest.mark.parametrize(
    ("rows", "unwanted", "expected"),
    [
        ([5, 6, 7], [], [5, 6, 7]),
        ([5, 6, 7], [1, 2, 9], [5, 6, 7]),
        ([5, 6, 7], [1, 6, 7, 8], [5]),
        ([7, 5, 1 << 40, 6], [5, 1 << 40], [7, 6]),
        ([5, 6], [5, 6], []),
        ([], [5], []),
        ([(1 << 64) - 1, 3], [3], [(1 << 64) - 1]),
    ],
)
def test_rows_are_left_out(rows: list[int], unwanted: list[int], expected: list[int]) -> None:
    left = without_rows(batch(*rows), "_rowid", np.array(unwanted, np.uint64))
    assert left.column("_rowid").to_pylist() == expected


class TestReadRows:
    @pytest.fixture(params=[False, True], ids=["plain", "stable"])
    def dataset(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        dataset = lance.write_dataset(
            numbered(0, 10_000),
            str(tmp_path / "rows"),
            max_rows_per_file=3_000,
            enable_stable_row_ids=request.param,
        )
        dataset.delete("id = 17")
        return dataset

    @pytest.mark.parametrize("count", [0, 1, 200, 5_000, 9_999])
    @pytest.mark.parametrize("predicate", [None, "id % 3 = 1"])
    def test_gives_just_these(self, dataset: Any, count: int, predicate: str | None) -> None:
        stored = dataset.to_table(columns=["id"], with_row_id=True)
        chosen = stored.take(np.random.default_rng(1).choice(9_999, count, replace=False))
        found = list(
            read_rows(dataset, chosen.column("_rowid").to_numpy(), columns=["id"], filter=predicate)
        )
        ids = [key for part in found for key in part.column("id").to_pylist()]
        assert sorted(ids) == sorted(
            key for key in chosen.column("id").to_pylist() if predicate is None or key % 3 == 1
        )
        assert all("_rowaddr" not in part.schema.names for part in found)

    @pytest.mark.parametrize("count", [10, 5_000])
    def test_with_their_addresses(self, dataset: Any, count: int) -> None:
        stored = dataset.to_table(columns=["id"], with_row_id=True, with_row_address=True)
        chosen = stored.slice(2_900, count)
        found = pa.Table.from_batches(
            read_rows(
                dataset,
                chosen.column("_rowid").to_numpy(),
                columns=["id"],
                with_row_address=True,
            )
        )
        names = ["id", "_rowaddr"]
        assert found.select(names).sort_by("id").equals(chosen.select(names))
