"""Every transform against plain Python and against the expression the spec derives for it."""

from decimal import ROUND_DOWN, Context, Decimal
from typing import Any

import mmh3
import pyarrow as pa
import pytest
from datafusion import SessionContext
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.region.sql_transform import Expression
from memwal.region.transforms import (
    Bucket,
    CalendarPart,
    Identity,
    MultiBucket,
    Truncate,
    Unsharded,
)

INTEGERS = {
    pa.int8(): (-128, 127),
    pa.int16(): (-(2**15), 2**15 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.uint8(): (0, 255),
    pa.uint16(): (0, 2**16 - 1),
    pa.uint32(): (0, 2**32 - 1),
    pa.uint64(): (0, 2**64 - 1),
}


def derived(sql: str, column: pa.Array) -> list[Any]:
    """Evaluate the spec's expression with DataFusion."""
    frame = SessionContext().create_dataframe([[pa.record_batch({"col0": column})]])
    value = frame.select(frame.parse_sql_expr(sql).alias("value")).to_arrow_table()
    return value.column("value").to_pylist()


@given(data=st.data(), kind=st.sampled_from(list(INTEGERS)), width=st.integers(1, 2**63 - 1))
def test_truncated_integers(data: st.DataObject, kind: pa.DataType, width: int) -> None:
    low, high = INTEGERS[kind]
    numbers = st.none() | st.integers(low, high) | st.sampled_from([low, high])
    values = data.draw(st.lists(numbers, max_size=20))
    for each in (width, width % 100 + 1):
        want = [
            None if v is None else (abs(v) - abs(v) % each) * (-1 if v < 0 else 1) for v in values
        ]
        column = pa.array(values, kind)
        found = Truncate(each).apply([column])
        assert found.type == kind
        assert found.to_pylist() == want
        assert Truncate(each).apply([column.slice(1)]).to_pylist() == want[1:]


TIMES = [0, -1, 1_577_934_245, None]
EXPRESSED = [
    *(
        (CalendarPart(part), pa.array(TIMES, pa.timestamp(unit, zone)))
        for part in ("year", "month", "day", "hour")
        for unit, zone in (("s", None), ("us", None), ("ms", "UTC"), ("ns", "+02:00"))
    ),
    *(
        (CalendarPart(part), pa.array([0, -1, 18_000, None], pa.int32()).cast(pa.date32()))
        for part in ("year", "day")
    ),
    (CalendarPart("year"), pa.array(["2020-01-02", "1960-02-03T23:59:59.999", None])),
    *(
        (Truncate(width), pa.array([*limits, 0, 7, None], kind))
        for width in (1, 10, 2**63 - 1)
        for kind, limits in INTEGERS.items()
    ),
    (
        Truncate(10),
        pa.array(map(Decimal, ("-12.34", "99.99", "0.01")), pa.decimal128(10, 2)),
    ),
    *(
        (
            Truncate(width),
            pa.array(["", "abc", "日本語", "e\u0301x", "\U0001f1e9\U0001f1eay"], kind),
        )
        for width in (2, 2**63 - 1)
        for kind in (pa.string(), pa.large_string())
    ),
    *(
        (Truncate(width), pa.array([b"", b"abc", b"\xff\xfe\xfd", None], kind))
        for width in (2, 2**63 - 1)
        for kind in (pa.binary(), pa.large_binary())
    ),
]


@pytest.mark.few(12)
@pytest.mark.parametrize(
    ("transform", "column"), EXPRESSED, ids=[f"{t} {c.type}" for t, c in EXPRESSED]
)
def test_the_stored_expression_gives_the_same_regions(
    transform: CalendarPart | Truncate, column: pa.Array
) -> None:
    """DataFusion alone evaluates it, as another client would."""
    found = transform.apply([column])
    sql = transform.expression([column.type])
    assert sql is not None
    assert found.to_pylist() == derived(sql, column)


def test_the_stored_expression_of_several_columns() -> None:
    """With the hash of the specification, which is none of DataFusion's own functions."""
    columns = [pa.array([1, 2, None, None]), pa.array(["a", None, "b", None])]
    bucket = MultiBucket(7)
    sql = bucket.expression([column.type for column in columns])
    assert sql is not None
    assert Expression(sql, pa.int32(), 2).apply(columns).equals(bucket.apply(columns))


@given(st.lists(st.none() | st.text(max_size=12), max_size=20), st.integers(1, 6))
def test_truncated_text(values: list[str | None], width: int) -> None:
    for kind in (pa.string(), pa.large_string()):
        found = Truncate(width).apply([pa.array(values, kind)])
        assert found.type == kind
        assert found.to_pylist() == [None if v is None else v[:width] for v in values]


@given(st.lists(st.none() | st.binary(max_size=12), max_size=20), st.integers(1, 6))
def test_truncated_binary(values: list[bytes | None], width: int) -> None:
    for kind in (pa.binary(), pa.large_binary()):
        found = Truncate(width).apply([pa.array(values, kind)])
        assert found.type == kind
        assert found.to_pylist() == [None if v is None else v[:width] for v in values]


@given(
    st.lists(st.none() | st.integers(-(10**12) + 1, 10**12 - 1), max_size=20),
    st.sampled_from([0, 2, 5, 12]),
    st.sampled_from([1, 3, 10, 99_999, 10**12, 2**63 - 1]),
)
def test_truncated_decimals(unscaled: list[int | None], scale: int, width: int) -> None:
    exact = Context(prec=80)
    values = [None if v is None else Decimal(v).scaleb(-scale) for v in unscaled]
    want = [
        None
        if value is None
        else exact.multiply(
            exact.divide(value, Decimal(width)).quantize(Decimal(1), ROUND_DOWN, exact),
            Decimal(width),
        )
        for value in values
    ]
    for kind in (pa.decimal128(12, scale), pa.decimal256(12, scale)):
        found = Truncate(width).apply([pa.array(values, kind)])
        assert found.type == kind
        assert found.to_pylist() == want


@given(st.lists(st.none() | st.text(max_size=8), min_size=1), st.integers(1, 1024))
def test_multi_bucket(values: list[str | None], buckets: int) -> None:
    want = [None if v is None else abs(mmh3.hash(v.encode())) % buckets for v in values]
    found = MultiBucket(buckets).apply([pa.array(values, pa.string())])
    assert found.type == pa.int32()
    assert found.to_pylist() == want


def test_the_bucket_of_the_smallest_hash() -> None:
    """It has no absolute value in 32 bits."""
    value = (0xFC1B_7E07).to_bytes(4, "little")
    smallest = next(
        text for text in (b"\xbd\xd5\xfe\xfa", value, *_candidates()) if mmh3.hash(text) == -(2**31)
    )
    found = MultiBucket(7).apply([pa.array([smallest], pa.binary())])
    assert found.to_pylist() == [2**31 % 7]


def _candidates() -> list[bytes]:
    """Undo the hash of 4 bytes, step by step."""
    mask = 0xFFFFFFFF
    h = 2**31
    h ^= h >> 16
    h = h * pow(0xC2B2AE35, -1, 2**32) & mask
    h ^= (h >> 13) ^ (h >> 26)
    h = h * pow(0x85EBCA6B, -1, 2**32) & mask
    h ^= h >> 16
    h ^= 4
    h = (h - 0xE6546B64) * pow(5, -1, 2**32) & mask
    h = (h >> 13 | h << 19) & mask
    h = h * pow(0x1B873593, -1, 2**32) & mask
    h = (h >> 15 | h << 17) & mask
    return [(h * pow(0xCC9E2D51, -1, 2**32) & mask).to_bytes(4, "little")]


@pytest.mark.parametrize(
    "transform",
    [Identity(), CalendarPart("year"), MultiBucket(4), Truncate(3)],
    ids=lambda transform: transform.name,
)
def test_a_dropped_column_is_null(transform: Identity) -> None:
    assert transform.value_type([pa.null()]) is not None
    assert transform.apply([pa.nulls(3)]).null_count == 3


def test_a_dropped_column_is_in_bucket_zero() -> None:
    """As every null is for Lance."""
    assert Bucket(4).apply([pa.nulls(2)]).to_pylist() == [0, 0]


@pytest.mark.parametrize(
    ("transform", "kinds"),
    [
        (Truncate(3), [pa.float64(), pa.bool_(), pa.date32(), pa.binary(4), pa.decimal128(5, -1)]),
        (MultiBucket(3), [pa.decimal128(5, 2), pa.list_(pa.int8())]),
        (CalendarPart("day"), [pa.int64(), pa.time32("s"), pa.timestamp("us", "Asia/Tokyo")]),
        (Identity(), [pa.float32(), pa.list_(pa.int8())]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_types_that_do_not_fit(transform: Truncate, kinds: list[pa.DataType]) -> None:
    for kind in kinds:
        assert transform.value_type([kind]) is None


def test_rows_that_are_not_divided_have_no_value() -> None:
    unsharded = Unsharded()
    with pytest.raises(InvalidInputError):
        unsharded.apply([])
