import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.bloom import build_bloom_filter

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.bloom import (
    FILTER_BYTES,
    SIZED_FILTER_KEYS,
    BloomFilter,
    FilterBuilder,
    hash_keys,
    which_might_contain,
)

MASK = 2**64 - 1
SALTS = (
    *(0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D),
    *(0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31),
)
CASES = [
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
    *("string", "large_string", "binary", "large_binary"),
    *("int64+string", "string+int32+binary", "all"),
]


def columns_of(case: dict[str, Any]) -> list[pa.Array]:
    """Return the key columns that a golden case was made of."""
    columns = []
    for number, name in enumerate(case["types"]):
        values = [row[number] for row in case["rows"]]
        if name.endswith("binary"):
            values = [bytes.fromhex(value) for value in values]
        columns.append(pa.array(values, getattr(pa, f"{name}_" if name == "bool" else name)()))
    return columns


@pytest.mark.parametrize("case", CASES)
def test_filters_of_lance_are_written_byte_for_byte(
    golden: Path, told: dict[str, Any], case: str
) -> None:
    expected = gzip.decompress((golden / "keys" / f"{case}.bloom.gz").read_bytes())
    columns = columns_of(told["keys"][case])
    assert build_bloom_filter(columns) == expected
    assert BloomFilter.from_bytes(expected).might_contain(columns).all()


def test_every_golden_filter_is_compared(golden: Path) -> None:
    assert sorted(path.name for path in (golden / "keys").glob("*.bloom.gz")) == sorted(
        f"{case}.bloom.gz" for case in CASES
    )


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.text(max_size=40),
            st.none() | st.binary(max_size=40),
            st.none() | st.integers(-(2**31), 2**31 - 1),
            st.none() | st.booleans(),
        ),
        max_size=30,
    ),
    cut=st.integers(0, 30),
)
def test_same_as_a_filter_built_row_by_row(rows: list[tuple[Any, ...]], cut: int) -> None:
    types = [pa.int64(), pa.string(), pa.binary(), pa.int32(), pa.bool_()]
    columns = [
        pa.array([row[number] for row in rows], data_type) for number, data_type in enumerate(types)
    ]
    expected = filter_row_by_row(rows)
    assert build_bloom_filter(columns) == expected
    chunked = [pa.chunked_array([column[:cut], column[cut:]]) for column in columns]
    chunked[0] = pa.chunked_array([columns[0]])
    assert build_bloom_filter(chunked) == expected
    sliced = [pa.concat_arrays([column, column])[len(rows) :] for column in columns]
    assert build_bloom_filter(sliced) == expected
    many = [pa.concat_arrays([column] * 65) for column in columns]
    assert build_bloom_filter(many) == expected


@pytest.mark.parametrize("copies", [1, 20])
def test_long_keys_among_short_ones(copies: int) -> None:
    lengths = [0, 1, 126, 127, 128, 129, 244, 245, 246, 255, 256, 100_003] * copies
    texts = ["k" * length for length in lengths]
    expected = [siphash(b"\0" + text.encode() + b"\xff") for text in texts[:12]] * copies
    assert hash_keys([pa.array(texts)]).tolist() == expected


def filter_row_by_row(rows: list[tuple[Any, ...]]) -> bytes:
    words = [0] * (FILTER_BYTES // 4)
    for number, text, binary, small, flag in rows:
        message = part(number, lambda value: struct.pack("<q", value))
        message += part(text, lambda value: value.encode() + b"\xff")
        message += part(binary, lambda value: struct.pack("<Q", len(value)) + value)
        message += part(small, lambda value: struct.pack("<i", value))
        message += part(flag, lambda value: b"")
        hashed = siphash(message)
        block = ((hashed >> 32) * 1024) >> 32
        for word, salt in enumerate(SALTS):
            bit = (((hashed & 0xFFFFFFFF) * salt) & 0xFFFFFFFF) >> 27
            words[block * 8 + word] |= 1 << bit
    return struct.pack(f"<{len(words)}I", *words)


def part(value: Any, write: Any) -> bytes:
    return b"\1" if value is None else b"\0" + write(value)


def siphash(message: bytes) -> int:
    def rotate(value: int, count: int) -> int:
        return (value << count | value >> (64 - count)) & MASK

    def mix(state: list[int]) -> None:
        for a, b, c, first, second in ((0, 1, 0, 13, 32), (2, 3, 2, 16, 0)):
            state[a] = (state[a] + state[b]) & MASK
            state[b] = rotate(state[b], first) ^ state[a]
            state[c] = rotate(state[c], second)
        for a, b, c, first, second in ((0, 3, 0, 21, 0), (2, 1, 2, 17, 32)):
            state[a] = (state[a] + state[b]) & MASK
            state[b] = rotate(state[b], first) ^ state[a]
            state[c] = rotate(state[c], second)

    state = [0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573]
    padded = message + b"\0" * (7 - len(message) % 8) + bytes([len(message) & 0xFF])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        state[3] ^= word
        mix(state)
        state[0] ^= word
    state[2] ^= 0xFF
    for _ in range(3):
        mix(state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def test_few_absent_keys_pass() -> None:
    present = pa.array(np.arange(8192))
    bloom = BloomFilter.from_bytes(build_bloom_filter([present]))
    assert bloom.might_contain([present]).all()
    absent = pa.array(np.arange(8192, 300_000))
    passed = bloom.might_contain([absent])
    assert passed.shape == (len(absent),)
    assert passed.mean() < 0.001


def test_keys_of_many_slices_and_lengths() -> None:
    texts = pa.array([f"{number}" * (number % 50) for number in range(40_000)])
    bloom = BloomFilter.from_bytes(build_bloom_filter([texts]))
    assert bloom.might_contain([texts]).all()
    parts = [build_bloom_filter([texts[start : start + 7000]]) for start in range(0, 40_000, 7000)]
    joined = np.bitwise_or.reduce([np.frombuffer(each, np.uint8) for each in parts])
    assert joined.tobytes() == build_bloom_filter([texts])


def test_no_keys() -> None:
    for empty in (pa.array([], pa.int64()), pa.chunked_array([], pa.string())):
        assert build_bloom_filter([empty]) == b"\0" * FILTER_BYTES
        bloom = BloomFilter.from_bytes(b"\xff" * FILTER_BYTES)
        assert bloom.might_contain([empty]).shape == (0,)


def test_columns_must_fit_together() -> None:
    with pytest.raises(InvalidInputError):
        build_bloom_filter([pa.array([1]), pa.array([1, 2])])


@pytest.mark.parametrize("size", [0, FILTER_BYTES - 1, FILTER_BYTES + 32])
def test_a_filter_has_one_size(size: int) -> None:
    with pytest.raises(CorruptDataError):
        BloomFilter.from_bytes(b"\0" * size)


@pytest.mark.parametrize("page", range(8))
def test_a_page_that_was_never_written_is_damage(page: int) -> None:
    content = bytearray(build_bloom_filter([pa.array(np.arange(300))]))
    assert BloomFilter.from_bytes(bytes(content)).bits_set
    content[page * 4096 : (page + 1) * 4096] = bytes(4096)
    with pytest.raises(CorruptDataError):
        BloomFilter.from_bytes(bytes(content))


def test_a_filter_of_zeros_is_damage() -> None:
    with pytest.raises(CorruptDataError):
        BloomFilter.from_bytes(bytes(FILTER_BYTES))


@settings(deadline=None, max_examples=20)
@given(
    stored=st.lists(st.sets(st.integers(0, 60), max_size=20), max_size=6),
    asked=st.lists(st.integers(0, 80), max_size=5),
)
def test_filters_are_tested_together_as_one_by_one(
    stored: list[set[int]], asked: list[int]
) -> None:
    filters: list[BloomFilter | None] = [
        BloomFilter.from_bytes(build_bloom_filter([pa.array(sorted(keys), pa.int64())]))
        if keys
        else None
        for keys in stored
    ]
    hashes = hash_keys([pa.array(asked, pa.int64())]) if asked else np.empty(0, np.uint64)
    expected = [
        bool(asked) and (one is None or bool(one.might_contain_hashes(hashes).any()))
        for one in filters
    ]
    assert which_might_contain(filters, hashes).tolist() == expected


def sized(present: pa.Array) -> bytes:
    builder = FilterBuilder(len(present))
    for start in range(0, len(present), 30_000):
        builder.add([present[start : start + 30_000]])
    content = builder.sized_filter()
    assert content is not None
    return content


@pytest.mark.parametrize("count", [SIZED_FILTER_KEYS + 1, 100_000])
def test_a_sized_filter_has_few_false_positives_at_any_size(count: int) -> None:
    present = pa.array(np.arange(count))
    bloom = BloomFilter.from_sized(sized(present))
    assert bloom.might_contain([present]).all()
    assert bloom.might_contain([pa.array(np.arange(count, count + 200_000))]).mean() < 0.002


def test_the_other_filter_is_the_same_beside_it() -> None:
    present = pa.array(np.arange(SIZED_FILTER_KEYS + 1))
    builder = FilterBuilder(len(present))
    builder.add([present])
    assert builder.bloom_filter() == build_bloom_filter([present])


def test_few_keys_have_no_sized_filter() -> None:
    assert FilterBuilder(SIZED_FILTER_KEYS).sized_filter() is None


@pytest.mark.parametrize("spoil", ["cut", "flipped", "empty", "other"])
def test_a_damaged_sized_filter_is_refused(spoil: str) -> None:
    content = bytearray(sized(pa.array(np.arange(SIZED_FILTER_KEYS + 1))))
    match spoil:
        case "cut":
            del content[-100:]
        case "flipped":
            content[5_000] ^= 1
        case "empty":
            content.clear()
        case _:
            content[0] ^= 1
    with pytest.raises(CorruptDataError):
        BloomFilter.from_sized(bytes(content))


def test_filters_of_several_sizes_are_tested_together() -> None:
    many, few = pa.array(np.arange(0, 60_000, 2)), pa.array([1, 3])
    filters = [
        BloomFilter.from_sized(sized(many)),
        None,
        BloomFilter.from_bytes(build_bloom_filter([few])),
        BloomFilter.from_sized(sized(pa.array(np.arange(200_000, 400_000)))),
    ]
    for key, expected in ((4, [0]), (3, [2]), (250_000, [3]), (99_999, [])):
        might = which_might_contain(filters, hash_keys([pa.array([key])]))
        assert np.flatnonzero(might).tolist() == sorted([1, *expected])
