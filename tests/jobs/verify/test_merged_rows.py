"""Comparing rows of any type."""

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


def test_dictionaries_are_compared_by_their_values():
    def coded(indices, values):
        return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array(values))

    base = pa.table({"d": coded([0, 1, None, 0], ["a", "b"])})
    other = pa.table({"d": coded([2, 1, 0, 1], [None, "b", "a"])})
    assert differing_rows(base, other).tolist() == [3]
    parts = pa.table(
        {"d": pa.chunked_array([coded([1], ["x", "a"]), coded([0, 1, 1], ["b", None])])}
    )
    assert differing_rows(base, parts).tolist() == [3]
    nested = pa.array([["a"], ["b", None]], pa.list_(pa.dictionary(pa.int8(), pa.string())))
    again = nested.take(pa.array([1, 0])).take(pa.array([1, 0]))
    assert differing_rows(pa.table({"d": nested}), pa.table({"d": again})).tolist() == []


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_a_merge_of_dictionaries_is_sound(make_table, version):
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("d", kind)])
    table = make_table(schema=schema, data_storage_version=version)
    values = [["a", None, "b", None], ["b", "c", None, "a"]]
    for texts in values:
        with table.writer() as writer:
            writer.upsert(pa.table({"id": range(4), "d": pa.array(texts, kind)}, schema=schema))
            writer.flush()
            found = table.lookup(pa.array([3, 1, 2])).to_table()
            assert found.column("d").to_pylist() == [texts[n] for n in (3, 1, 2)]
        table.merge()
        assert table.verify().findings == ()
    found = table.lookup(pa.array(range(4))).to_table().sort_by("id")
    assert found.column("d").to_pylist() == values[-1]
    assert table.scan().to_table().sort_by("id").column("d").to_pylist() == values[-1]
