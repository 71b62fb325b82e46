"""Finding rows of the base table by key."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.tables import MakeTable, numbered

import memwal
from memwal.base_table.snapshot import BaseTable
from memwal.reader import base_rows as base_rows_module
from memwal.reader.base_rows import key_predicate, rows_of_keys


def base_table(path: Path, *, indexed: bool, **options: Any) -> BaseTable:
    """Keys 0 to 29,999 in three files, the last of which no index covers, some of them deleted."""
    uri = str(path / "table")
    dataset = lance.write_dataset(numbered(0, 20_000), uri, max_rows_per_file=10_000, **options)
    if indexed:
        dataset.create_scalar_index("id", "BTREE")
    lance.write_dataset(numbered(20_000, 10_000), uri, mode="append")
    table = memwal.enable(uri, region_spec="unsharded", primary_key=["id"])
    lance.dataset(uri).delete("id % 1000 = 7")
    return table.base()


def keys_at(base: BaseTable, rows: np.ndarray[Any, Any]) -> list[int]:
    stored = base.dataset.to_table(columns=["id"], with_row_id=True)
    place = dict(
        zip(stored.column("_rowid").to_pylist(), stored.column("id").to_pylist(), strict=True)
    )
    return [place[row] for row in rows.tolist()]


@pytest.mark.few(4)
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("options", [{}, {"enable_stable_row_ids": True}], ids=["plain", "stable"])
@pytest.mark.parametrize("count", [1, 30, 7_000, 30_000])
def test_finds_the_row_of_each_key_that_is_there(
    tmp_path: Path, indexed: bool, options: dict[str, Any], count: int
) -> None:
    base = base_table(tmp_path, indexed=indexed, **options)
    asked = np.random.default_rng(1).choice(31_000, count, replace=False)
    rows, positions = rows_of_keys(base, pa.array(asked))
    there = {int(key) for key in asked if key < 30_000 and key % 1000 != 7}
    assert sorted(asked[positions].tolist()) == sorted(there)
    assert keys_at(base, rows) == asked[positions].tolist()


def test_of_nothing_are_none(tmp_path: Path, table: memwal.Table) -> None:
    base = base_table(tmp_path, indexed=True)
    for found in (
        rows_of_keys(base, pa.array([], pa.int64())),
        rows_of_keys(table.base(), pa.array([1, 2])),
    ):
        assert [len(part) for part in found] == [0, 0]


class TestWay:
    @pytest.fixture
    def predicates(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """How many keys each predicate has."""
        made: list[int] = []

        def predicate(keys: pa.Table) -> str:
            made.append(keys.num_rows)
            return key_predicate(keys)

        monkeypatch.setattr(base_rows_module, "key_predicate", predicate)
        return made

    def test_is_the_index_for_few_keys(self, tmp_path: Path, predicates: list[int]) -> None:
        base = base_table(tmp_path, indexed=True)
        rows_of_keys(base, pa.array(range(0, 20_000, 200)))
        assert predicates == [100]

    def test_is_the_index_in_parts_for_more(
        self, tmp_path: Path, predicates: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(base_rows_module, "_KEYS_AT_ONCE", 40)
        base = base_table(tmp_path, indexed=True)
        asked = np.random.default_rng(2).permutation(np.arange(0, 30_000, 300))
        rows, positions = rows_of_keys(base, pa.array(asked))
        assert predicates == [40, 40, 20]
        assert keys_at(base, rows) == asked[positions].tolist()
        assert len(rows) == 100

    @pytest.mark.parametrize(("indexed", "step"), [(True, 20), (False, 3_000)])
    def test_is_a_pass_for_many_or_without_an_index(
        self, tmp_path: Path, predicates: list[int], indexed: bool, step: int
    ) -> None:
        base = base_table(tmp_path, indexed=indexed)
        asked = pa.array(range(0, 30_000, step))
        assert len(rows_of_keys(base, asked)[0]) == len(asked)
        assert predicates == []


def test_composite_keys_are_compared(make_table: MakeTable) -> None:
    schema = pa.schema(
        [pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string(), nullable=False)]
    )
    table = make_table(schema, primary_key=("a", "b"))
    data = pa.table({"a": [1, 1, 2, 2], "b": ["x", "y", "x", "y"]}, schema=schema)
    table.upsert(data)
    table.merge()
    base = table.base()
    asked = base_rows_module.key_column(data.slice(1, 2), ["a", "b"])
    rows, positions = rows_of_keys(base, asked)
    assert (
        base.dataset._take_rows(rows.tolist())
        .take(pa.array(np.argsort(positions)))
        .equals(data.slice(1, 2).cast(base.schema))
    )
