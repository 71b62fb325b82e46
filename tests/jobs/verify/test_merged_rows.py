"""Comparing rows of any type."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from memwal.jobs.verify.merged_rows import differing_rows

NAN = math.nan
COLUMNS = {
    "ints": (pa.int64(), [1, None, 3, 4], [1, None, 3, 5]),
    "floats": (pa.float32(), [1.0, NAN, None, 4.0], [1.0, NAN, None, NAN]),
    "halves": (pa.float16(), [1.0, NAN, None, 4.0], [1.0, NAN, None, NAN]),
    "texts": (pa.string(), ["a", "", None, "b"], ["a", "", None, None]),
    "vectors": (
        pa.list_(pa.float32(), 2),
        [[1, 2], None, [NAN, 1], [3, 4]],
        [[1, 2], None, [NAN, 1], [3, 5]],
    ),
    "lists": (
        pa.list_(pa.float64()),
        [[NAN], None, [], [1.0, 2.0]],
        [[NAN], None, [], [1.0]],
    ),
    "large lists": (
        pa.large_list(pa.list_(pa.float64())),
        [[[NAN]], None, [None], [[1.0]]],
        [[[NAN]], None, [None], [[]]],
    ),
    "structs": (
        pa.struct([("x", pa.float64()), ("y", pa.string())]),
        [{"x": NAN, "y": None}, None, {"x": 1.0, "y": "a"}, {"x": 1.0, "y": "a"}],
        [{"x": NAN, "y": None}, None, {"x": 1.0, "y": "a"}, {"x": NAN, "y": "a"}],
    ),
}


@pytest.mark.parametrize(("kind", "left", "right"), COLUMNS.values(), ids=list(COLUMNS))
@pytest.mark.parametrize("times", [1, 50])
def test_the_last_of_four_differs(kind, left, right, times):
    base = pa.table({"c": pa.array(left * times, kind)})
    other = pa.table({"c": pa.array(right * times, kind)})
    assert differing_rows(base, base).tolist() == []
    assert differing_rows(base, other).tolist() == list(range(3, 4 * times, 4))
    assert differing_rows(base.slice(2), other.slice(2)).tolist() == list(
        range(1, 4 * times - 2, 4)
    )
    parts = pa.concat_tables([other.slice(0, 1), other.slice(1)])
    assert differing_rows(base, parts).tolist() == list(range(3, 4 * times, 4))


def test_a_row_that_differs_in_two_columns_counts_once():
    base = pa.table({"a": [1, 2], "b": ["x", "y"]})
    other = pa.table({"a": [1, 3], "b": ["x", "z"]})
    assert differing_rows(base, other).tolist() == [1]
    assert differing_rows(base.slice(2), other.slice(2)).tolist() == []
