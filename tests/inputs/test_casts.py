"""Casts: the same value in another type, or a refusal that names where it stands."""

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.inputs.casts import cast_column, misfit, plan_cast, show

BERLIN = ZoneInfo("Europe/Berlin")
NOON = dt.datetime(2024, 7, 1, 12)
DAY = dt.date(2024, 7, 1)
TEXTS = pa.dictionary(pa.int8(), pa.string())
MAP = pa.map_(pa.string(), pa.int32())


def named(value: object) -> str:
    """Id of a case: an array is called by its type."""
    return str(getattr(value, "type", value))


def cast(array: pa.Array, target: pa.DataType, *, row: int = 0) -> pa.Array:
    planned = plan_cast(array.type, target)
    assert planned is not None
    converted = cast_column("x", planned, array, target, row)
    assert converted.type == target
    converted.validate(full=True)
    return converted


# Array, type of the column, values in it (None: the same as in the array).
SAME: list[tuple[pa.Array, pa.DataType, list[Any] | None]] = [
    (pa.array([1, None, 3]), pa.int8(), None),
    (pa.array([1, 2], pa.uint64()), pa.int16(), None),
    (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0), None),
    (pa.array([1, None]), pa.float32(), None),
    (pa.array([2**60]), pa.float64(), None),
    (pa.array([12, None]), pa.decimal128(5, 2), None),
    (pa.array([1000]), pa.float16(), None),
    (pa.array([1.0, None, -0.0, 2.0**53]), pa.int64(), None),
    (pa.array([1.0], pa.float16()), pa.int64(), None),
    (pa.array([0.1, float("inf"), None]), pa.float32(), [np.float32(0.1), float("inf"), None]),
    (pa.array([1.5], pa.float16()), pa.float64(), None),
    (pa.array([0.1, None]), pa.decimal128(5, 2), [Decimal("0.10"), None]),
    (pa.array([Decimal("0.10"), None]), pa.float64(), [0.1, None]),
    (pa.array([Decimal("7.00")]), pa.int32(), [7]),
    (pa.array([Decimal("1.5")]), pa.decimal128(10, 4), None),
    (pa.array(["a", None]), TEXTS, None),
    (pa.array(["a", "b"], pa.string_view()), TEXTS, None),
    (pa.array(["a", None, "a"], pa.dictionary(pa.uint32(), pa.large_string())), TEXTS, None),
    (
        pa.DictionaryArray.from_arrays(
            pa.array([0, None], pa.uint32()), pa.array(["a"], pa.string_view())
        ),
        pa.string(),
        ["a", None],
    ),
    (pa.array([1, 2, 1]), pa.dictionary(pa.int8(), pa.int32()), None),
    (pa.array([b"ab", None]), pa.binary(2), None),
    (pa.array([b"ab"], pa.binary(2)), pa.large_binary(), None),
    (pa.array([NOON, None]), pa.timestamp("ms"), None),
    (pa.array([NOON]), pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=dt.UTC)]),
    # A naive value is UTC, in a column of any zone.
    (
        pa.array([NOON]),
        pa.timestamp("us", "Europe/Berlin"),
        [NOON.replace(hour=14, tzinfo=BERLIN)],
    ),
    (pa.array([NOON.replace(tzinfo=BERLIN)]), pa.timestamp("s", "UTC"), None),
    (pa.array([dt.datetime(2024, 7, 1), None]), pa.date32(), [DAY, None]),
    (pa.array([DAY, None]), pa.timestamp("us"), [dt.datetime(2024, 7, 1), None]),
    (pa.array([DAY]), pa.date64(), None),
    (pa.array([dt.time(1, 2, 3)]), pa.time32("s"), None),
    (pa.array([dt.timedelta(seconds=3)]), pa.duration("ms"), None),
    (pa.array([[1.0, 2.0], None, [3.0, 4.0]]), pa.list_(pa.float32(), 2), None),
    (pa.array([[1, 2]]), pa.list_(pa.float32(), 2), None),
    (pa.array([[1.0, 2.0], None], pa.list_(pa.float64(), 2)), pa.list_(pa.float32(), 2), None),
    (pa.array([[1.0, 2.0], None], pa.list_(pa.float64(), 2)), pa.list_(pa.float32()), None),
    (pa.array([[1, 2], [], None, [3]], pa.list_view(pa.int64())), pa.large_list(pa.int8()), None),
    (pa.array([[], None]), pa.list_(pa.string()), None),
    (pa.array([[["a"], []], None]), pa.list_(pa.list_(TEXTS)), None),
    (
        pa.array([{"b": "x", "a": 1}, None, {"b": None, "a": 2}]),
        pa.struct([pa.field("a", pa.int8(), nullable=False), ("b", pa.large_string())]),
        None,
    ),
    (pa.array([[{"key": "a", "value": 1}], [], None]), MAP, [[("a", 1)], [], None]),
    (pa.array([[], None]), MAP, None),
    (pa.array([None, None]), MAP, None),
    (
        pa.array([[("b", 0)], [("a", 1), ("b", None)], [], None], MAP).slice(1),
        pa.map_(pa.dictionary(pa.int8(), pa.string()), pa.int64()),
        None,
    ),
    (pa.array(["{}", None]), pa.json_(), None),
    (pa.array([b"0" * 16]), pa.uuid(), [UUID("30" * 16)]),
]
# Array, type of the column, row that does not fit.
REFUSED: list[tuple[pa.Array, pa.DataType, int]] = [
    (pa.array([1, 2, 128, 4, 200]), pa.int8(), 2),
    (pa.array([1, -1]), pa.uint8(), 1),
    (pa.array([2**63], pa.uint64()), pa.int64(), 0),
    (pa.array([1, 2**53 + 1]), pa.float64(), 1),
    (pa.array([1, 2**24 + 1]), pa.float32(), 1),
    (pa.array([2**63 - 1]), pa.float64(), 0),
    (pa.array([1000, 2]), pa.decimal128(4, 2), 0),
    (pa.array([1.0, None, 1.5]), pa.int64(), 2),
    (pa.array([1.0, float("nan")]), pa.int64(), 1),
    # Two integers have this float.
    (pa.array([1.0, 2.0**53 + 2]), pa.int64(), 1),
    (pa.array([0.0, 1e39]), pa.float32(), 1),
    (pa.array([[0.0], [1.0, -1e39]]), pa.list_(pa.float32()), 1),
    (pa.array([1e6]), pa.float16(), 0),
    (pa.array([0.1, 0.125]), pa.decimal128(5, 2), 1),
    (pa.array([Decimal("1.25")]), pa.int64(), 0),
    (pa.array([Decimal("1.25")]), pa.decimal128(5, 1), 0),
    (pa.array([Decimal("0.12345678901234567890")]), pa.float64(), 0),
    (pa.array([b"ab", b"abc"]), pa.binary(2), 1),
    (pa.array([NOON, NOON.replace(microsecond=1)]), pa.timestamp("ms"), 1),
    (pa.array([0, 2**62], pa.timestamp("s")), pa.timestamp("ns"), 1),
    (pa.array([NOON]), pa.date32(), 0),
    (pa.array([NOON]), pa.date64(), 0),
    (pa.array([DAY, dt.date(3000, 1, 1)]), pa.timestamp("ns"), 1),
    (pa.array([dt.time(1, 2, 3, 4)]), pa.time32("ms"), 0),
    (pa.array([dt.timedelta(microseconds=1)]), pa.duration("ms"), 0),
    (pa.array([[1.0, 2.0], [1.0], [1.0, 2.0]]), pa.list_(pa.float32(), 2), 1),
    (pa.array([[1], [2], [1, 300]]), pa.list_(pa.int8()), 2),
    (pa.array([{"a": 1}, {"a": 1000}]), pa.struct([("a", pa.int8())]), 1),
    (pa.array([[{"key": "a", "value": 1}], [{"key": None, "value": 1}]]), MAP, 1),
]
IMPOSSIBLE = [
    (pa.bool_(), pa.int8()),
    (pa.int8(), pa.bool_()),
    (pa.string(), pa.binary()),
    (pa.binary(), pa.string()),
    (pa.int64(), pa.string()),
    (pa.string(), pa.int64()),
    (pa.string(), pa.timestamp("us")),
    (pa.int64(), pa.timestamp("us")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    (pa.timestamp("us", "UTC"), pa.date32()),
    (pa.duration("s"), pa.time32("s")),
    (pa.list_(pa.string()), pa.list_(pa.int32())),
    (pa.list_(pa.int8()), pa.int8()),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
    (pa.struct([("a", pa.int8()), ("b", pa.int8())]), pa.struct([("a", pa.int8())])),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8()), ("b", pa.int8())])),
    (pa.string(), pa.uuid()),
    (pa.list_(pa.int8()), MAP),
]


@pytest.mark.parametrize(("array", "target", "values"), SAME, ids=named)
def test_values_stay_the_same(array: pa.Array, target: pa.DataType, values: Any) -> None:
    expected = array.to_pylist() if values is None else values
    assert cast(array, target).to_pylist() == expected
    # Part of an array, which shares the buffers of the whole.
    longer = pa.concat_arrays([array, array])
    assert cast(longer.slice(len(array)), target).to_pylist() == expected
    assert cast(longer.slice(1, len(array)), target).to_pylist() == [*expected[1:], expected[0]]
    assert cast(array.slice(0, 0), target).to_pylist() == []


@pytest.mark.parametrize(("array", "target", "row"), REFUSED, ids=named)
def test_a_value_that_would_change_is_named(array: pa.Array, target: pa.DataType, row: int) -> None:
    with pytest.raises(InvalidInputError, match=f"column x, row {row + 40} ") as raised:
        cast(array, target, row=40)
    told = str(raised.value)
    for part in (show(array[row]), str(array.type), str(target)):
        assert part in told
    if row:
        cast(array.slice(0, row), target)


@pytest.mark.parametrize(("source", "target"), IMPOSSIBLE, ids=named)
def test_types_without_a_value_in_common(source: pa.DataType, target: pa.DataType) -> None:
    assert plan_cast(source, target) is None
    told = str(misfit("x", 3, pa.scalar(None, source), target))
    for part in ("column x", "row 3", str(source), str(target)):
        assert part in told


def test_the_reason_is_that_of_the_value() -> None:
    """Another value of the same part fails for another reason."""
    with pytest.raises(InvalidInputError, match="not in range") as raised:
        cast(pa.array([1, 300, 7000]), pa.int8())
    assert "7000" not in str(raised.value)


def test_hidden_values_of_null_lists_do_not_count() -> None:
    values = pa.array([1, 1000, 2])
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], values, mask=pa.array([False, True, False]))
    assert cast(lists, pa.list_(pa.int8())).to_pylist() == [[1], None, [2]]
    structs = pa.StructArray.from_arrays([values], ["a"], mask=pa.array([False, True, False]))
    wanted = [{"a": 1}, None, {"a": 2}]
    assert cast(structs, pa.struct([("a", pa.int8())])).to_pylist() == wanted


def test_a_dictionary_with_too_many_values_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        cast(pa.array([str(n) for n in range(200)]), TEXTS)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidInputError) as refused:
        cast(pa.array([[1.0] * 10_000]), pa.list_(pa.float32(), 2))
    assert len(str(refused.value)) < 400


NUMBERS = [pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64()]


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.floats(width=32) | st.none(), max_size=6),
    st.sampled_from(NUMBERS),
    st.sampled_from(NUMBERS),
)
def test_no_number_changes(values: list[Any], source: pa.DataType, target: pa.DataType) -> None:
    """Whatever is converted is equal to what was given; only floats are rounded."""
    try:
        array = pa.array(values, source)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return
    try:
        converted = cast(array, target)
    except InvalidInputError:
        return
    if pa.types.is_floating(source) and pa.types.is_floating(target):
        return
    for before, after in zip(array.to_pylist(), converted.to_pylist(), strict=True):
        assert before == after
