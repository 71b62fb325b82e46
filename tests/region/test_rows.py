"""Stored form of rows."""

import pyarrow as pa

from memwal.format.paths import TOMBSTONE
from memwal.region.rows import key_column, stored_schema


def test_a_single_key_column_is_returned_as_it_is() -> None:
    column = pa.chunked_array([[1, 2], [], [3]], pa.int64())

    assert key_column(pa.table({"k": column}), ["k"]).to_pylist() == [1, 2, 3]


def test_stored_rows_need_their_key_and_their_tombstone() -> None:
    fields = [pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int8(), nullable=False)]
    stored = stored_schema(pa.schema(fields), ["k"])
    assert {field.name: field.nullable for field in stored} == {
        "k": False,
        "v": True,
        TOMBSTONE: False,
    }
