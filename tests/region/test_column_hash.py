"""``murmur3`` and ``murmur3_multi`` against mmh3 over bytes that Python put together."""

import datetime as dt
import math
import struct
from collections.abc import Callable
from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.region.hashing import murmur3_multi

EPOCH = dt.datetime(1970, 1, 1)


def murmur3(column: pa.Array) -> pa.Int32Array:
    return murmur3_multi([column])


def integer_bytes(value: int) -> bytes:
    return (value % 2**64).to_bytes(8, "little")


def float_bytes(value: float) -> bytes:
    if math.isnan(value):
        return (0x7FF8000000000000).to_bytes(8, "little")
    return struct.pack("<d", value or 0.0)


Encoder = Callable[[Any], bytes]
TYPES: dict[pa.DataType, tuple[st.SearchStrategy[Any], Encoder]] = {
    pa.bool_(): (st.booleans(), integer_bytes),
    pa.int8(): (st.integers(-128, 127), integer_bytes),
    pa.uint16(): (st.integers(0, 2**16 - 1), integer_bytes),
    pa.int32(): (st.integers(-(2**31), 2**31 - 1), integer_bytes),
    pa.int64(): (st.integers(-(2**63), 2**63 - 1), integer_bytes),
    pa.uint64(): (st.integers(0, 2**64 - 1), integer_bytes),
    pa.float32(): (st.floats(width=32), float_bytes),
    pa.float64(): (st.floats(), float_bytes),
    pa.string(): (st.text(max_size=12), str.encode),
    pa.large_string(): (st.text(max_size=12), str.encode),
    pa.binary(): (st.binary(max_size=12), bytes),
    pa.binary(3): (st.binary(min_size=3, max_size=3), bytes),
    pa.date32(): (
        st.dates(),
        lambda value: struct.pack("<i", (value - EPOCH.date()).days),
    ),
    pa.timestamp("us"): (
        st.datetimes(),
        lambda value: struct.pack("<q", (value - EPOCH) // dt.timedelta(microseconds=1)),
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> list[tuple[pa.DataType, list[Any]]]:
    """Draw some columns with nulls."""
    rows = draw(st.integers(0, 8))
    kinds = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=4))
    return [
        (kind, draw(st.lists(st.none() | TYPES[kind][0], min_size=rows, max_size=rows)))
        for kind in kinds
    ]


def expected(columns: list[tuple[pa.DataType, list[Any]]]) -> list[int | None]:
    rows = zip(*(values for _, values in columns), strict=True)
    encoders = [TYPES[kind][1] for kind, _ in columns]
    return [
        None
        if all(value is None for value in row)
        else mmh3.hash(
            b"".join(
                encode(value)
                for encode, value in zip(encoders, row, strict=True)
                if value is not None
            )
        )
        for row in rows
    ]


@given(tables())
def test_equals_mmh3(columns: list[tuple[pa.DataType, list[Any]]]) -> None:
    arrays = [pa.array(values, kind) for kind, values in columns]
    want = expected(columns)
    assert murmur3_multi(arrays).to_pylist() == want
    # A slice begins inside of its buffers, and one row takes another way.
    padded = [pa.concat_arrays([array, array]).slice(len(array)) for array in arrays]
    assert murmur3_multi(padded).to_pylist() == want
    for row in range(len(arrays[0])):
        one = [array.slice(row, 1) for array in arrays]
        assert murmur3_multi(one).to_pylist() == want[row : row + 1]


def test_special_floats() -> None:
    zeros = murmur3(pa.array([0.0, -0.0])).to_pylist()
    assert zeros[0] == zeros[1]
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64)
    assert len(set(murmur3(pa.array(bits.view(np.float64))).to_pylist())) == 1


def test_pinned() -> None:
    """What Iceberg's specification gives for the same bytes."""
    assert murmur3(pa.array([34], pa.int64())).to_pylist() == [2017239379]
    assert murmur3(pa.array(["iceberg"])).to_pylist() == [1210000089]
    assert murmur3(pa.array([b"\x00\x01\x02\x03"])).to_pylist() == [-188683207]


def test_a_dropped_column_adds_nothing() -> None:
    ids = pa.array([1, None, 3])
    assert murmur3_multi([pa.nulls(3), ids]) == murmur3(ids)
    assert murmur3_multi([pa.nulls(3)]).to_pylist() == [None] * 3


def test_more_rows_than_a_block() -> None:
    ids = pa.array(np.arange(70_000))
    text = ids.cast(pa.string())
    hashes = murmur3_multi([ids, text])
    for row in (0, 65_535, 65_536, 69_999):
        assert hashes[row].as_py() == mmh3.hash(struct.pack("<q", row) + str(row).encode())


@pytest.mark.parametrize(
    "kind", [pa.decimal128(5, 2), pa.list_(pa.int8()), pa.float16(), pa.duration("s")], ids=str
)
def test_types_that_are_not_hashed(kind: pa.DataType) -> None:
    column = pa.nulls(1, kind)
    with pytest.raises(InvalidInputError):
        murmur3(column)
