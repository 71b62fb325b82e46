"""Region values keep their meaning in manifests, and their name whatever the width of a type."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.region.values import decode_values, encode_for_id, encode_values, parse_type, type_name

VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 0, 127],
    pa.int64(): [-(2**63), 2**63 - 1],
    pa.uint64(): [0, 2**64 - 1],
    pa.string(): ["", "a", "é\x00"],
    pa.large_string(): ["日本"],
    pa.binary(): [b"", b"\x00\xff"],
    pa.large_binary(): [b"x"],
    pa.binary(3): [b"abc"],
    pa.date32(): [dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
    pa.date64(): [dt.date(1969, 12, 31)],
    pa.time32("s"): [dt.time(1, 2, 3)],
    pa.time64("ns"): [dt.time(23, 59, 59)],
    pa.timestamp("ms"): [dt.datetime(1960, 1, 1, 1, 1, 1)],
    pa.timestamp("us", "UTC"): [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
    pa.timestamp("us", "Europe/Berlin"): [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
    pa.decimal128(10, 2): [Decimal("-1.50"), Decimal("0.00")],
    pa.decimal256(60, 2): [Decimal("123456789012345678901234567890.12")],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_values_and_types_are_read_back(kind: pa.DataType) -> None:
    name = type_name(kind)
    assert name is not None
    assert parse_type(name) == kind
    values = pa.array([None, *VALUES[kind], None], kind)
    for part in (values, values.slice(1), values.slice(1, 1)):
        stored = encode_values(part)
        assert [value is None for value in stored] == part.is_null().to_pylist()
        assert decode_values(stored, kind).equals(part)
        assert len(set(encode_for_id(part))) == len(set(part.to_pylist()))


def test_bytes_as_lance_stores_them() -> None:
    assert encode_values(pa.array([-2], pa.int16())) == [b"\xfe\xff"]
    assert encode_values(pa.array([True, False])) == [b"\x01", b"\x00"]
    assert encode_values(pa.array(["é"])) == [b"\xc3\xa9"]
    assert encode_values(pa.array([3], pa.int32())) == [b"\x03\x00\x00\x00"]


def test_names_of_one_meaning() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5)
    for values in (
        [pa.array(["a"], kind) for kind in (pa.string(), pa.large_string())],
        [pa.array([b"a"], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary(1))],
        [pa.array([moment], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")],
        [pa.array([moment.time()], kind) for kind in (pa.time32("s"), pa.time64("us"))],
        [pa.array([moment.date()], kind) for kind in (pa.date32(), pa.date64())],
        [
            pa.array([Decimal("1.5")], kind)
            for kind in (pa.decimal128(5, 1), pa.decimal128(9, 3), pa.decimal256(50, 2))
        ],
    ):
        assert len({encode_for_id(value)[0] for value in values}) == 1


def test_names_of_different_meanings() -> None:
    values = [
        pa.array([None, "0", ""], pa.string()),
        pa.array([None, b"0", b""], pa.binary()),
        pa.array([0, 1, -1], pa.int32()),
        pa.array([True, False]),
        pa.array([0, 1], pa.int32()).view(pa.date32()),
        pa.array([0, 1], pa.int64()).view(pa.timestamp("us")),
        pa.array([0, 1], pa.int64()).view(pa.time64("us")),
        pa.array([Decimal("0"), Decimal("1"), Decimal("10"), Decimal("-1")], pa.decimal128(5, 1)),
    ]
    names = [name for value in values for name in encode_for_id(value.drop_null())]
    assert len(set(names)) == len(names)
    assert set(encode_for_id(values[0].slice(0, 1))) == set(encode_for_id(values[1].slice(0, 1)))


def test_names_cannot_run_into_each_other() -> None:
    one = encode_for_id(pa.array(["a", "b"])), encode_for_id(pa.array(["ab", ""]))
    assert b"".join(one[0]) != b"".join(one[1])


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (b"\x01", pa.int32()),
        (b"", pa.bool_()),
        (b"\x01\x02", pa.bool_()),
        (b"\xff", pa.string()),
        (b"ab", pa.binary(3)),
    ],
    ids=str,
)
def test_bytes_that_are_no_value(stored: bytes, kind: pa.DataType) -> None:
    with pytest.raises(CorruptDataError):
        decode_values([None, stored], kind)


@pytest.mark.parametrize(
    "kind", [pa.float32(), pa.float16(), pa.list_(pa.int8()), pa.duration("s"), pa.null()], ids=str
)
def test_types_that_name_no_region(kind: pa.DataType) -> None:
    assert type_name(kind) is None


@pytest.mark.parametrize(
    "name",
    ["", "int", "float64", "timestamp(m)", "decimal128(99, 1)", "time32(us)", "timestamp()"],
)
def test_names_that_are_no_type(name: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_type(name)


def test_a_column_of_nulls() -> None:
    assert encode_values(pa.nulls(2)) == [None, None]
    assert encode_for_id(pa.nulls(2)) == encode_for_id(pa.nulls(2, pa.int32()))
