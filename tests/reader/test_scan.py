"""The merging scan: columns, filters, limits, and what it is asked in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.tables import SCHEMA, MakeTable, folder, keys, listing, numbered, rows, state

import memwal
from memwal.errors import InvalidInputError

Reads = Any


@pytest.fixture(params=["base", "generation", "memtable", "all"])
def reads(request: pytest.FixtureRequest, table: memwal.Table) -> Iterator[Reads]:
    """Rows 1 to 6, of which 2 was changed and 5 deleted, in different places."""
    where = request.param
    writer = table.writer()
    _fill(table, writer, where)
    yield writer if where in ("memtable", "all") else table
    writer.abort()


def _fill(table: memwal.Table, writer: Any, where: str) -> None:
    first = {key: key * 10 for key in range(1, 7)}
    writer.upsert(rows(first))
    if where == "all":
        writer.flush()
        table.merge()
    writer.upsert(rows({2: 22}))
    if where == "all":
        writer.flush()
    writer.delete(keys(5))
    if where in ("base", "generation"):
        writer.flush()
    if where == "base":
        table.merge()


EXPECTED = {1: 10, 2: 22, 3: 30, 4: 40, 6: 60}


def ids(found: pa.Table) -> list[int]:
    return sorted(found.column("id").to_pylist())


class TestColumns:
    def test_are_all_by_default_in_the_order_of_the_table(self, reads: Reads) -> None:
        found = reads.scan().to_table()
        assert found.schema.equals(
            reads.location and memwal.open(reads.location.uri).schema, check_metadata=False
        )
        assert state(found) == EXPECTED

    @pytest.mark.parametrize("columns", [["text"], ["n", "id"], ["id"], ["text", "n", "id"]])
    def test_come_in_the_order_asked_for(self, reads: Reads, columns: list[str]) -> None:
        found = reads.scan(columns=columns).to_table()
        assert found.column_names == columns
        whole = {key: {"id": key, "n": n, "text": f"{key}={n}"} for key, n in EXPECTED.items()}
        assert sorted(map(str, found.to_pylist())) == sorted(
            str({name: row[name] for name in columns}) for row in whole.values()
        )

    def test_may_be_none_at_all(self, reads: Reads) -> None:
        found = reads.scan(columns=[]).to_reader()
        assert found.schema.names == []
        assert sum(batch.num_rows for batch in found) == 5

    @pytest.mark.parametrize("columns", [["nope"], ["id", "_tombstone"], ["_rowid"]])
    def test_that_do_not_exist_are_refused(self, reads: Reads, columns: list[str]) -> None:
        with pytest.raises(InvalidInputError, match="unknown columns"):
            reads.scan(columns=columns).to_table()


class TestFilter:
    @pytest.mark.parametrize(
        ("predicate", "expected"),
        [
            ("n > 25", [3, 4, 6]),
            ("n = 20", []),
            ("n = 22", [2]),
            ("id in (2, 5)", [2]),
            ("id = 5", []),
            ("text = '2=22' or id = 1", [1, 2]),
            ("n is null", []),
            ("n > 25 or id = 5", [3, 4, 6]),
            ("true", [1, 2, 3, 4, 6]),
            ("false", []),
        ],
    )
    def test_is_for_the_newest_row_of_each_key(
        self, reads: Reads, predicate: str, expected: list[int]
    ) -> None:
        assert ids(reads.scan(filter=predicate).to_table()) == expected
        assert reads.scan(filter=predicate).count_rows() == len(expected)

    def test_may_name_columns_that_are_not_returned(self, reads: Reads) -> None:
        found = reads.scan(columns=["text"], filter="n >= 40 and id < 6").to_table()
        assert found.to_pylist() == [{"text": "4=40"}]

    @pytest.mark.parametrize("predicate", ["nope > 1", "n >", "n = 'x' + ", "unknown_function(n)"])
    def test_that_means_nothing_is_the_callers_mistake(self, reads: Reads, predicate: str) -> None:
        with pytest.raises(InvalidInputError):
            reads.scan(filter=predicate).to_table()


class TestLimit:
    @pytest.mark.parametrize("limit", [0, 1, 3, 5, 6, 1000])
    def test_bounds_the_rows(self, reads: Reads, limit: int) -> None:
        found = reads.scan(limit=limit).to_table()
        assert found.num_rows == min(limit, 5)
        assert state(found).items() <= EXPECTED.items()
        assert reads.scan(limit=limit).count_rows() == min(limit, 5)

    @pytest.mark.parametrize("limit", [0, 1, 2, 3])
    def test_counts_after_the_filter(self, reads: Reads, limit: int) -> None:
        found = reads.scan(filter="n >= 30", limit=limit).to_table()
        assert found.num_rows == limit
        assert all(n >= 30 for n in found.column("n").to_pylist())

    def test_below_zero_is_refused(self, reads: Reads) -> None:
        with pytest.raises(InvalidInputError, match="negative"):
            reads.scan(limit=-1)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda scan: scan.to_table(), id="table"),
        pytest.param(lambda scan: scan.to_reader().read_all(), id="reader"),
        pytest.param(lambda scan: pa.Table.from_batches(scan.to_batches(), SCHEMA), id="batches"),
        pytest.param(lambda scan: pa.Table.from_pandas(scan.to_pandas(), SCHEMA), id="pandas"),
    ],
)
def test_every_form_of_the_result_has_the_same_rows(
    reads: Reads, make: Callable[[Any], pa.Table]
) -> None:
    assert state(make(reads.scan())) == EXPECTED


class TestEmptyTable:
    def test_has_columns_and_no_rows(self, table: memwal.Table) -> None:
        found = table.scan().to_table()
        assert found.schema.names == SCHEMA.names
        assert found.num_rows == 0
        assert table.scan(columns=["n"], filter="n > 1", limit=3).to_table().num_rows == 0
        assert table.scan().count_rows() == 0
        assert table.scan(columns=[]).to_table().num_rows == 0

    def test_that_was_emptied_again(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            writer.flush()
            writer.delete(keys(1, 2, 3))
        assert state(table) == {}
        table.merge()
        assert state(table) == {}
        assert table.scan().count_rows() == 0
        with table.writer() as writer:
            writer.upsert(rows({1: 11}))
        assert state(table) == {1: 11}

    def test_reading_writes_nothing(self, table: memwal.Table) -> None:
        before = listing(folder(table))
        table.scan().to_table()
        table.lookup(keys(1))
        table.status()
        assert listing(folder(table)) == before


def test_many_rows_in_many_places(make_table: MakeTable) -> None:
    """More than a batch of the scan and more than one file of the base table."""
    table = make_table(buckets=2)
    with table.writer() as writer:
        writer.upsert(numbered(0, 70_000))
        writer.flush()
        table.merge()
        writer.upsert(numbered(35_000, 70_000, n=1))
        writer.flush()
        writer.delete(keys(*range(0, 105_000, 5)))
    expected = {key: 1 if key >= 35_000 else 0 for key in range(105_000) if key % 5}

    assert table.scan().count_rows() == len(expected)
    assert state(table) == expected
    assert state(table.scan(filter="n = 0").to_table()) == {
        key: n for key, n in expected.items() if n == 0
    }
    assert state(table.lookup(keys(*range(0, 105_000, 7)))) == {
        key: expected[key] for key in range(0, 105_000, 7) if key in expected
    }
    table.merge()
    assert state(table) == expected


def test_rows_that_were_written_straight_into_the_base_table_are_shown(
    table: memwal.Table,
) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
    lance.write_dataset(rows({2: 2, 3: 3}), table.uri, mode="append")
    with table.writer() as writer:
        writer.upsert(rows({3: 33}))

    assert state(table) == {1: 1, 2: 2, 3: 33}
