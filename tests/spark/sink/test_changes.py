"""Rows of a batch as changes: the newest of each key, in the types of the table."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from support.data.changes import batch, change
from support.data.tables import SCHEMA, state

from memwal.errors import InvalidInputError
from memwal.spark.sink.changes import ChangeColumns, as_table_types


class TestNewest:
    changes = ChangeColumns(op_column="op", delete_ops=("d",), sequence_by="at")

    def newest(
        self, rows: pa.Table, changes: ChangeColumns = changes
    ) -> tuple[dict[int, Any], list[int]]:
        upserts, deletes = changes.newest(rows, SCHEMA, ["id"])
        return state(upserts), deletes["id"].to_pylist()

    def test_the_highest_sequence_counts_in_whatever_order(self) -> None:
        rows = batch(change(1, 5, at=9), change(2, 1), change(1, 4, at=8), change(1, 3, at=2))
        assert self.newest(rows) == ({1: 5, 2: 1}, [])

    def test_deletes_are_told_apart_and_count_among_equals(self) -> None:
        rows = batch(
            *(change(1, 1, at=1), change(1, 1, at=2, op="d")),
            *(change(2, 1, at=2, op="d"), change(2, 2, at=3)),
            *(change(3, 1, at=3, op="d"), change(3, 2, at=3)),
        )
        assert self.newest(rows) == ({2: 2}, [1, 3])

    def test_a_key_twice_needs_a_sequence(self) -> None:
        changes = ChangeColumns(op_column=None, delete_ops=(), sequence_by=None)
        assert self.newest(batch(change(1, 1), change(2, 2)), changes) == ({1: 1, 2: 2}, [])
        with pytest.raises(InvalidInputError, match="sequence_by"):
            self.newest(batch(change(1, 1), change(1, 2)), changes)

    @pytest.mark.parametrize("column", ["op", "at", "id"])
    def test_nulls_where_something_must_be_told(self, column: str) -> None:
        rows = batch(change(1, 1), change(2, 2))
        place = rows.schema.get_field_index(column)
        nulls = pa.nulls(2, rows.schema.field(column).type)
        with pytest.raises(InvalidInputError, match=f"'{column}'"):
            self.newest(rows.set_column(place, column, nulls))


WORDS = pa.dictionary(pa.int8(), pa.string())
ZONED = pa.timestamp("us", "Europe/Berlin")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY = date(2026, 1, 1)


class TestTypes:
    @pytest.mark.parametrize(
        ("given", "target", "expected"),
        [
            (pa.array([255], pa.int16()), pa.uint8(), 255),
            (pa.array([Decimal(2**63)], pa.decimal128(20)), pa.uint64(), 2**63),
            (pa.array([Decimal("1.50")], pa.decimal128(4, 2)), pa.decimal128(4, 1), Decimal("1.5")),
            (pa.array([[0.5, 2.0]]), pa.list_(pa.float32(), 2), [0.5, 2.0]),
            (pa.array(["a"]), pa.large_string(), "a"),
            (pa.array(["a"]), WORDS, "a"),
            (pa.array([b"0123456789abcdef"]), pa.uuid(), UUID(bytes=b"0123456789abcdef")),
            (pa.array([NOON], ZONED), pa.timestamp("s", "UTC"), NOON),
            (pa.array([NOON], ZONED), pa.timestamp("ms"), NOON.replace(tzinfo=None)),
            (
                pa.array([[{"at": NOON}]], pa.list_(pa.struct([("at", ZONED)]))),
                pa.large_list(pa.struct([("at", pa.timestamp("ms"))])),
                [{"at": NOON.replace(tzinfo=None)}],
            ),
            (
                pa.array([[(DAY, NOON)]], pa.map_(pa.date32(), ZONED)),
                pa.map_(pa.date32(), pa.timestamp("ms")),
                [(DAY, NOON.replace(tzinfo=None))],
            ),
            (pa.array([3600]), pa.time32("s"), time(1)),
            (pa.array([3600], pa.int32()), pa.time64("us"), time(0, 0, 0, 3600)),
            (pa.nulls(1), pa.int64(), None),
        ],
    )
    def test_become_those_of_the_table(
        self, given: pa.Array, target: pa.DataType, expected: Any
    ) -> None:
        schema = pa.schema([("x", target)])
        rows = pa.table({"x": pa.chunked_array([given, given])})
        converted = as_table_types(rows, schema)
        assert converted.schema.types == schema.types
        assert converted["x"].to_pylist() == [expected] * 2

    @pytest.mark.parametrize(
        ("given", "target"),
        [
            (pa.array([1, 256], pa.int16()), pa.uint8()),
            (pa.array([1.0, 1.7]), pa.decimal128(10, 0)),
            (pa.array([1.0, 1e300]), pa.float32()),
            (pa.array([NOON.replace(hour=0), NOON], ZONED), pa.date32()),
            (pa.array([0, 7]), pa.bool_()),
            (pa.array([0, 86_400]), pa.time32("s")),
            (pa.array([0, -1]), pa.time64("us")),
            (
                pa.array([None, {"street": "s", "zip": "z"}]),
                pa.struct([("street", pa.string())]),
            ),
        ],
    )
    def test_that_would_change_a_value_are_refused(
        self, given: pa.Array, target: pa.DataType
    ) -> None:
        rows = pa.table({"price": given})
        with pytest.raises(InvalidInputError, match="price"):
            as_table_types(rows, pa.schema([("price", target)]))

    def test_of_a_column_that_is_missing(self) -> None:
        with pytest.raises(InvalidInputError, match="'v'"):
            as_table_types(pa.table({"n": [1]}), pa.schema([("v", pa.int64())]))
