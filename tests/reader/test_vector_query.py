"""Queries that fit no column are refused rather than bent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from support.tables import MakeTable

from memwal.errors import InvalidInputError
from memwal.reader.vector_query import query_vector

IDS = pa.field("id", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("number", "value", "match"),
    [
        (pa.uint8(), 256, "no bytes"),
        (pa.uint8(), -1, "no bytes"),
        (pa.uint8(), 1.5, "no bytes"),
        (pa.uint8(), float("nan"), "no bytes"),
        (pa.float16(), 1e6, "not finite"),
        (pa.float32(), 1e300, "not finite"),
        (pa.float64(), float("nan"), "not finite"),
        (pa.float32(), "x", "not a vector"),
    ],
)
def test_numbers_that_the_column_does_not_hold(
    make_table: MakeTable, number: pa.DataType, value: Any, match: str
) -> None:
    table = make_table(pa.schema([IDS, pa.field("v", pa.list_(number, 2))]))
    with pytest.raises(InvalidInputError, match=match):
        query_vector(table.base(), "v", [1, value])
    assert query_vector(table.base(), "v", [1, 2.0]).tolist() == [1, 2]
