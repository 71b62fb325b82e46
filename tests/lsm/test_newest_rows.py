"""The newest row of each key."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.lsm.key_matches import newest_row_positions
from memwal.region.rows import key_column

KEYS = st.lists(st.integers(-3, 3), max_size=40)


@given(KEYS)
def test_keeps_the_last_row_of_each_key_in_order(values: list[int]) -> None:
    last = {value: position for position, value in enumerate(values)}

    assert newest_row_positions(pa.array(values, pa.int64())).tolist() == sorted(last.values())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, False, True], pa.bool_()),
        ([1, 2, 1], pa.int8()),
        ([2**64 - 1, 0, 2**64 - 1], pa.uint64()),
        (["a", "b", "a"], pa.string()),
        (["a", "b", "a"], pa.large_string()),
        ([b"\0", b"", b"\0"], pa.binary()),
        ([b"\0", b"", b"\0"], pa.large_binary()),
    ],
)
def test_takes_every_type_that_can_be_a_key(values: list[object], kind: pa.DataType) -> None:
    assert newest_row_positions(pa.array(values, kind)).tolist() == [1, 2]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["", "a", "\0"])), max_size=30))
def test_composite_keys_are_one_key(pairs: list[tuple[int, str]]) -> None:
    table = pa.table(
        {
            "a": pa.array([a for a, _ in pairs], pa.int32()),
            "b": pa.array([b for _, b in pairs], pa.string()),
        }
    )
    last = {pair: position for position, pair in enumerate(pairs)}

    assert newest_row_positions(key_column(table, ["a", "b"])).tolist() == sorted(last.values())


def test_no_rows_have_no_newest() -> None:
    empty = pa.table({"k": pa.array([], pa.string())})

    assert newest_row_positions(key_column(empty, ["k"])).tolist() == []


def test_slices_are_read_from_their_start() -> None:
    batch = pa.record_batch({"k": [9, 1, 2, 1]}).slice(1)

    assert newest_row_positions(key_column(batch, ["k"])).tolist() == [1, 2]
