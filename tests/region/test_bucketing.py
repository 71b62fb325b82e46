"""Buckets must equal those of Lance's own evaluator, bit for bit."""

import tracemalloc
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.mem_wal import ShardingField, ShardingSpec, evaluate_sharding_spec
from lance.schema import LanceSchema

from memwal.errors import InvalidInputError
from memwal.region.hashing import bucket, is_bucketable

FIXED_WIDTH_TYPES = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.date32(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.timestamp("s"),
    pa.timestamp("ms"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns", "Europe/Berlin"),
]
TEXT_TYPES = [pa.string(), pa.large_string()]
REFUSED_TYPES = [
    pa.binary(),
    pa.large_binary(),
    pa.binary(4),
    pa.float16(),
    pa.date64(),
    pa.decimal128(5, 2),
    pa.duration("s"),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.list_(pa.int32()),
    pa.null(),
]

# Bits that are a limit, a zero, an infinity or a NaN in some type of this width or a narrower one.
EDGE_BITS = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    0x7F80_0000,
    0xFF80_0000,
    0x7F80_0001,
    0xFFC0_0001,
    0x7FC0_0000,
    0x7FFF_FFFF_FFFF_FFFF,
    0x8000_0000_0000_0000,
    0xFFFF_FFFF_FFFF_FFFF,
    0x7FF0_0000_0000_0000,
    0x7FF0_0000_0000_0001,
    0xFFF8_0000_0000_0001,
]
EDGE_TEXTS = [
    "",
    "a",
    "ab",
    "abc",
    "abcd",
    "abcde",
    "\x00",
    "\x00\x00\x00\x00",
    "\x7f",
    "é",
    "aé",
    "日本語",
    "😀",
    "x" * 33,
    None,
]


def lance_buckets(column: pa.Array, num_buckets: int) -> np.ndarray:
    schema = pa.schema([pa.field("c", column.type)])
    field = ShardingField("f", [0], "bucket", None, "int32", {"num_buckets": str(num_buckets)})
    result = evaluate_sharding_spec(
        pa.record_batch([column], schema=schema),
        ShardingSpec(1, [field]),
        LanceSchema.from_pyarrow(schema),
    )
    return result.column(0).to_numpy()


def check(column: pa.Array, num_buckets: int = 1024) -> None:
    np.testing.assert_array_equal(
        bucket(column, num_buckets), lance_buckets(column, num_buckets), strict=True
    )


def from_bits(
    data_type: pa.DataType, bits: np.ndarray, nulls: np.ndarray | None = None
) -> pa.Array:
    words = bits.astype(f"<u{data_type.byte_width}")
    column = pa.Array.from_buffers(data_type, len(bits), [None, pa.py_buffer(words.tobytes())])
    if nulls is None:
        return column
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes())
    return pa.Array.from_buffers(data_type, len(bits), [valid, column.buffers()[1]])


@pytest.mark.parametrize("data_type", FIXED_WIDTH_TYPES, ids=str)
def test_fixed_width_types(data_type: pa.DataType) -> None:
    rng = np.random.default_rng(7)
    edges = np.array(EDGE_BITS, dtype=np.uint64)
    bits = np.concatenate([edges, rng.integers(0, 2**64, 70_000, dtype=np.uint64)])
    plain = from_bits(data_type, bits)
    holey = from_bits(data_type, bits, rng.random(len(bits)) < 0.2)
    for column in (plain, holey):
        check(column)
        check(column[3:-5], num_buckets=7)
        check(column[-1:], num_buckets=3)


@settings(deadline=None)
@given(
    data_type=st.sampled_from(FIXED_WIDTH_TYPES),
    bits=st.lists(st.integers(0, 2**64 - 1) | st.sampled_from(EDGE_BITS), min_size=1, max_size=20),
    num_buckets=st.integers(1, 1024),
)
def test_any_bits(data_type: pa.DataType, bits: list[int], num_buckets: int) -> None:
    check(from_bits(data_type, np.array(bits, dtype=np.uint64)), num_buckets)


@settings(deadline=None)
@given(
    data_type=st.sampled_from(TEXT_TYPES),
    texts=st.lists(st.none() | st.text(max_size=40), min_size=1, max_size=20),
    num_buckets=st.integers(1, 1024),
    skip=st.integers(0, 5),
)
def test_any_texts(
    data_type: pa.DataType, texts: list[str | None], num_buckets: int, skip: int
) -> None:
    check(pa.array(texts, data_type)[skip:], num_buckets)


@pytest.mark.parametrize("data_type", TEXT_TYPES, ids=str)
@pytest.mark.parametrize("text", EDGE_TEXTS)
def test_single_texts(data_type: pa.DataType, text: str | None) -> None:
    check(pa.array([text], data_type))


@pytest.mark.parametrize("data_type", TEXT_TYPES, ids=str)
def test_texts_of_mixed_lengths(data_type: pa.DataType) -> None:
    rng = np.random.default_rng(7)
    texts = [EDGE_TEXTS[i] for i in rng.integers(0, len(EDGE_TEXTS), 70_000)]
    texts += ["é" * int(n) for n in rng.integers(0, 300, 2_000)]
    check(pa.array(texts, data_type))
    check(pa.array(texts, data_type)[69_999:])


def test_booleans() -> None:
    column = pa.array([True, False, None, True, True, False, None, False, True, False])
    check(column)
    check(column[3:9], num_buckets=5)


def test_chunks_are_one_column() -> None:
    texts = pa.array(EDGE_TEXTS * 10)
    chunked = pa.chunked_array([texts[:7], texts[7:7], texts[7:120], texts[120:]])
    np.testing.assert_array_equal(bucket(chunked, 16), bucket(texts, 16))


@pytest.mark.parametrize("data_type", [*FIXED_WIDTH_TYPES, *TEXT_TYPES, pa.bool_()], ids=str)
def test_no_rows_and_only_nulls(data_type: pa.DataType) -> None:
    assert bucket(pa.array([], data_type), 4).tolist() == []
    assert bucket(pa.chunked_array([], data_type), 4).dtype == np.int32
    assert bucket(pa.nulls(3, data_type), 4).tolist() == [0, 0, 0]


def test_a_long_text_costs_no_memory() -> None:
    texts = pa.array(["short", "x" * 20_000] + [f"user-{i}" for i in range(10_000)])
    tracemalloc.start()
    try:
        got = bucket(texts, 16)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Padding every text to the longest would take 200 megabytes.
    assert peak < 32 << 20
    np.testing.assert_array_equal(got, lance_buckets(texts, 16))


@pytest.mark.parametrize("data_type", REFUSED_TYPES, ids=str)
def test_types_that_lance_refuses(data_type: pa.DataType) -> None:
    column = pa.array([None], data_type)
    if data_type == pa.decimal128(5, 2):
        column = pa.array([Decimal("1.25")], data_type)
    assert not is_bucketable(data_type)
    with pytest.raises(InvalidInputError):
        bucket(column, 4)


@pytest.mark.parametrize("num_buckets", [0, -1, 2**31])
def test_number_of_buckets_out_of_range(num_buckets: int) -> None:
    column = pa.array([1])
    with pytest.raises(InvalidInputError):
        bucket(column, num_buckets)


def test_largest_number_of_buckets() -> None:
    check(pa.array(range(1000), pa.int64()), num_buckets=2**31 - 1)
