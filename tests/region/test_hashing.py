"""Both dialects of the hash, over many values and over one, against mmh3 and plain Python."""

import mmh3
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.region.hashing import hash_bytes, hash_text


def hashed(values: list[bytes]) -> list[int]:
    """Hash values that stand with a gap between them."""
    data = np.frombuffer(b"x".join([b"", *values]), dtype=np.uint8)
    lengths = np.array([len(value) for value in values], dtype=np.int64)
    ends = np.cumsum(lengths + 1)
    return hash_bytes(data, ends - lengths, lengths).tolist()


def spark_hash(value: bytes) -> int:
    """Spark's ``hashUnsafeBytes``: tail bytes are words of their own, sign-extended."""

    def mix(h: int, k: int) -> int:
        k = (k * 0xCC9E2D51) & 0xFFFFFFFF
        k = ((k << 15) | (k >> 17)) & 0xFFFFFFFF
        h ^= (k * 0x1B873593) & 0xFFFFFFFF
        h = ((h << 13) | (h >> 19)) & 0xFFFFFFFF
        return (h * 5 + 0xE6546B64) & 0xFFFFFFFF

    h = 0
    whole = len(value) - len(value) % 4
    for at in range(0, whole, 4):
        h = mix(h, int.from_bytes(value[at : at + 4], "little"))
    for byte in value[whole:]:
        h = mix(h, (byte - 256 if byte > 127 else byte) & 0xFFFFFFFF)
    h ^= len(value)
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ (h >> 16)


@given(st.lists(st.binary(max_size=40)))
def test_equals_mmh3(values: list[bytes]) -> None:
    want = [mmh3.hash(value, 0, signed=False) for value in values]
    assert hashed(values) == want


@given(st.lists(st.binary(max_size=40)))
def test_sparks_dialect(values: list[bytes]) -> None:
    want = [spark_hash(value) for value in values]
    assert [hash_text(value) for value in values] == want


@pytest.mark.parametrize("length", [124, 128, 129, 131, 1_000_003])
def test_long_values_among_short_ones(length: int) -> None:
    values = [b"a", bytes(range(256)) * (length // 256) + bytes(length % 256), b"", b"bcd"]
    assert hashed(values) == [mmh3.hash(value, 0, signed=False) for value in values]
