"""Queries that fit no column are refused rather than bent."""

from typing import Any

import pyarrow as pa
import pytest
from support.data.tables import MakeTable

from memwal.errors import InvalidInputError
from memwal.search.vector.query import parse_query_vector

IDS = pa.field("id", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("number", "values"),
    [
        (pa.uint8(), [256, -1, 1.5, float("nan")]),
        (pa.float16(), [1e6]),
        (pa.float32(), [1e300, "x"]),
        (pa.float64(), [float("nan")]),
    ],
    ids=str,
)
def test_numbers_that_the_column_does_not_hold(
    make_table: MakeTable, number: pa.DataType, values: list[Any]
) -> None:
    base = make_table(pa.schema([IDS, pa.field("v", pa.list_(number, 2))])).base()
    for value in values:
        with pytest.raises(InvalidInputError):
            parse_query_vector(base, "v", [1, value])
    assert parse_query_vector(base, "v", [1, 2.0]).tolist() == [1, 2]
