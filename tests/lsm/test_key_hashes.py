"""Hashes of keys: the same for the same key, different for different ones."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.format.keys import SLICE_ROWS
from memwal.lsm.key_hashes import hash_rows

TYPES = [pa.binary(), pa.large_binary()]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), unique=True), st.sampled_from(TYPES))
def test_distinct_bytes_hash_apart(values: list[bytes], kind: pa.DataType) -> None:
    hashes = hash_rows([pa.array(values, kind)])
    assert len(set(hashes.tolist())) == len(values)


@settings(deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1), st.data())
def test_a_hash_depends_on_the_value_alone(values: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(values) - 1))
    whole = pa.array(values)
    alone = hash_rows([pa.array(values[start:], pa.large_string())])
    assert hash_rows([whole])[start:].tolist() == alone.tolist()
    assert hash_rows([whole.slice(start)]).tolist() == alone.tolist()


@pytest.mark.parametrize(
    "columns",
    [
        [pa.array(range(2 * SLICE_ROWS + 5))],
        [pa.array([number << 40 for number in range(20_000)])],
        [pa.array([f"customer-{number:09d}" for number in range(2 * SLICE_ROWS + 5)])],
        [pa.array(np.arange(40_000) // 200), pa.array(np.arange(40_000) % 200)],
    ],
    ids=["small numbers", "high bits", "text", "two columns"],
)
def test_regular_keys_hash_apart(columns: list[pa.Array]) -> None:
    upper = hash_rows(columns) >> np.uint64(28)
    # Of 40,000 keys over 36 bits, a pair collides in 1 of 80 draws; patterns must not add any.
    assert len(np.unique(upper)) >= len(columns[0]) - 2


def test_the_order_of_columns_matters() -> None:
    one, two = pa.array([1]), pa.array([2])
    assert hash_rows([one, two]) != hash_rows([two, one])


def test_refuses_other_types() -> None:
    with pytest.raises(InvalidInputError, match="double"):
        hash_rows([pa.array([1.5])])
