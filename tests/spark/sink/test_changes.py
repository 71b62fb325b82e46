"""Rows of a batch as changes: the newest of each key, in the types of the table."""

from typing import Any

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

    def test_types_become_those_of_the_table_or_are_refused(self) -> None:
        schema = pa.schema([("v", pa.list_(pa.float32(), 2)), ("u", pa.uint8()), ("n", pa.int16())])
        rows = pa.table({"n": [1], "u": pa.array([255], pa.int16()), "v": [[0.5, 2.0]]})
        assert as_table_types(rows, schema).schema.types == schema.types
        with pytest.raises(InvalidInputError, match="'u'"):
            as_table_types(rows.set_column(1, "u", pa.array([256], pa.int16())), schema)
        with pytest.raises(InvalidInputError, match="'v'"):
            as_table_types(rows.drop_columns("v"), schema)
