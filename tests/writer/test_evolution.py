"""What an open writer takes when columns come, go and change their names.

What becomes of rows from before each change is in tests/interop/test_schema_evolution.py.
"""

from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data.tables import MakeTable
from support.stores.faulty_store import REGION_MANIFEST, FaultyStores

import memwal
from memwal.errors import InvalidInputError


def dataset(table: memwal.Table) -> lance.LanceDataset:
    """The base table, to be changed by somebody else."""
    return lance.dataset(table.uri)


def some(**columns: list[Any]) -> pa.Table:
    """Rows of the columns that are named."""
    types = {"id": pa.int64(), "n": pa.int64()}
    return pa.table(
        {name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()}
    )


def content(found: Any) -> list[dict[str, Any]]:
    """All rows, by key."""
    return sorted(found.scan().to_table().to_pylist(), key=lambda row: row["id"])


OLD = some(id=[1], n=[1], text=["one"])


@pytest.fixture
def writer(table: memwal.Table) -> Any:
    """An open writer with a row in its MemTable."""
    writer = table.writer()
    writer.upsert(OLD)
    yield writer
    writer.abort()


def check(table: memwal.Table, writer: Any, expected: list[dict[str, Any]]) -> None:
    """Unflushed, flushed, replayed by another writer, and merged, the rows are the same."""
    assert content(writer) == expected
    other = table.writer()
    other.claim()
    assert content(other) == expected
    other.flush()
    assert content(table) == expected
    other.close()
    table.merge()
    assert content(table) == expected
    assert (
        sorted(table.base().dataset.to_table().to_pylist(), key=lambda row: row["id"]) == expected
    )


class TestColumnAdded:
    def test_afterwards_it_must_be_given_or_asked_to_keep(
        self, table: memwal.Table, writer: Any
    ) -> None:
        dataset(table).add_columns(pa.field("extra", pa.string()))
        writer.upsert(some(id=[2], n=[2], text=["two"], extra=["x"]))
        with pytest.raises(InvalidInputError, match="extra"):
            writer.upsert(some(id=[2], n=[3], text=["three"]))
        writer.upsert(some(id=[2], n=[3], text=["three"]), partial=True)
        writer.upsert(some(id=[1], extra=["y"]), partial=True)
        check(
            table,
            writer,
            [
                {"id": 1, "n": 1, "text": "one", "extra": "y"},
                {"id": 2, "n": 3, "text": "three", "extra": "x"},
            ],
        )

    def test_twice(self, table: memwal.Table, writer: Any) -> None:
        dataset(table).add_columns(pa.field("extra", pa.string()))
        writer.upsert(some(id=[2], n=[2], text=["two"], extra=["x"]))
        dataset(table).add_columns(pa.field("more", pa.string()))
        writer.upsert(some(id=[3], n=[3], text=["three"], extra=["x"], more=["y"]))
        check(
            table,
            writer,
            [
                {"id": 1, "n": 1, "text": "one", "extra": None, "more": None},
                {"id": 2, "n": 2, "text": "two", "extra": "x", "more": None},
                {"id": 3, "n": 3, "text": "three", "extra": "x", "more": "y"},
            ],
        )

    @pytest.mark.parametrize("max_memtable_bytes", [None, 1])
    @pytest.mark.parametrize("had_the_region", [False, True])
    def test_a_claim_keeps_what_a_newer_writer_wrote(
        self, table: memwal.Table, had_the_region: bool, max_memtable_bytes: int | None
    ) -> None:
        options = memwal.WriterOptions(
            reopen=True, epoch_check_interval=0, max_memtable_bytes=max_memtable_bytes
        )
        older = table.writer(options=options)
        if had_the_region:
            older.upsert(OLD)
        dataset(table).add_columns(pa.field("extra", pa.string()))
        newer = table.writer()
        newer.upsert(some(id=[1, 2], n=[1, 2], text=["one", "two"], extra=["x", "y"]))
        newer.abort()
        older.upsert(some(id=[3], n=[3], text=["three"]))
        check(
            table,
            older,
            [
                {"id": 1, "n": 1, "text": "one", "extra": "x"},
                {"id": 2, "n": 2, "text": "two", "extra": "y"},
                {"id": 3, "n": 3, "text": "three", "extra": None},
            ],
        )
        older.abort()

    @pytest.mark.parametrize("claimed", [False, True])
    def test_a_writer_that_pauses_in_its_claim_keeps_it(
        self, table: memwal.Table, writer: Any, faults: FaultyStores, claimed: bool
    ) -> None:
        """Before or after its claim is stored, while another client adds the column and writes."""
        older = table.writer(options=memwal.WriterOptions(reopen=True))
        pause = faults.of(table.location).pause("create", REGION_MANIFEST, after=claimed)
        with pause.holding(older.claim):
            dataset(table).add_columns(pa.field("extra", pa.string()))
            newer = table.writer()
            newer.upsert(some(id=[2], n=[2], text=["two"], extra=["x"]))
            newer.abort()
        older.upsert(some(id=[3], n=[3], text=["three"]))
        check(
            table,
            older,
            [
                {"id": 1, "n": 1, "text": "one", "extra": None},
                {"id": 2, "n": 2, "text": "two", "extra": "x"},
                {"id": 3, "n": 3, "text": "three", "extra": None},
            ],
        )
        older.abort()

    @pytest.mark.parametrize("flushed", [False, True])
    @pytest.mark.parametrize("condition", [None, some(id=[1], n=[1])])
    def test_a_partial_upsert_of_an_older_writer_keeps_it(
        self, table: memwal.Table, flushed: bool, condition: pa.Table | None
    ) -> None:
        older = table.writer()
        dataset(table).add_columns(pa.field("extra", pa.string()))
        dataset(table).alter_columns({"path": "n", "name": "m"})
        newer = table.writer()
        newer.upsert(
            pa.table({"id": [1, 2], "m": [1, 2], "text": ["one", "two"], "extra": ["x", "y"]})
        )
        if flushed:
            newer.flush()
        newer.abort()
        older.upsert(some(id=[1], n=[10]), partial=True, only_if_unchanged=condition)
        older.upsert(some(id=[3], n=[3], text=["three"]))
        older.upsert(some(id=[1], text=["ten"]), partial=True)
        check(
            table,
            older,
            [
                {"id": 1, "m": 10, "text": "ten", "extra": "x"},
                {"id": 2, "m": 2, "text": "two", "extra": "y"},
                {"id": 3, "m": 3, "text": "three", "extra": None},
            ],
        )
        older.abort()


class TestColumnDropped:
    def test_its_values_in_memory_do_not_stop_a_partial_upsert(
        self, table: memwal.Table, writer: Any
    ) -> None:
        dataset(table).drop_columns(["n"])
        writer.upsert(some(id=[2], text=["two"]))
        writer.upsert(some(id=[1], text=["ten"]), partial=True)
        check(table, writer, [{"id": 1, "text": "ten"}, {"id": 2, "text": "two"}])

    def test_an_indexed_text_may_come_back_as_a_number(self, make_table: MakeTable) -> None:
        table = make_table(maintained_indexes=["text_idx"])
        dataset(table).create_scalar_index("text", "INVERTED", name="text_idx")
        older = table.writer()
        dataset(table).drop_columns(["text"])
        dataset(table).add_columns(pa.field("text", pa.int64()))
        newer = table.writer()
        newer.upsert(pa.table({"id": [1, 2], "n": [1, 2], "text": [10, 20]}))
        newer.abort()
        older.upsert(some(id=[1], n=[3]), partial=True)
        expected = [{"id": 1, "n": 3, "text": 10}, {"id": 2, "n": 2, "text": 20}]
        assert content(older) == expected
        older.flush()
        assert content(table) == expected
        older.abort()

    def test_rows_without_it_are_taken_and_then_it_is_unknown(
        self, table: memwal.Table, writer: Any
    ) -> None:
        dataset(table).drop_columns(["n"])
        writer.upsert(some(id=[2], text=["two"]))
        with pytest.raises(InvalidInputError, match=r"\bn\b"):
            writer.upsert(some(id=[3], n=[3], text=["three"]))
        check(table, writer, [{"id": 1, "text": "one"}, {"id": 2, "text": "two"}])


class TestColumnRenamed:
    def test_values_go_by_the_column_not_by_its_name(
        self, table: memwal.Table, writer: Any
    ) -> None:
        dataset(table).alter_columns({"path": "text", "name": "label"})
        writer.upsert(some(id=[2], n=[2], text=["two"]))
        writer.upsert(some(id=[3], n=[3], label=["three"]))
        check(
            table,
            writer,
            [
                {"id": 1, "n": 1, "label": "one"},
                {"id": 2, "n": 2, "label": "two"},
                {"id": 3, "n": 3, "label": "three"},
            ],
        )


def test_what_does_not_fit_either_form_is_refused(table: memwal.Table, writer: Any) -> None:
    dataset(table).add_columns(pa.field("extra", pa.string()))
    with pytest.raises(InvalidInputError, match="other"):
        writer.upsert(some(id=[2], n=[2], text=["two"], other=["x"]))
    check(table, writer, [{"id": 1, "n": 1, "text": "one", "extra": None}])
