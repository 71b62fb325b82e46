"""The newest row of each key."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.lsm import newest_rows
from memwal.lsm.newest_rows import newest_row_positions
from memwal.region.rows import key_column

KEYS = st.lists(st.integers(-3, 3), max_size=40)
COUNT = 20_000

MAKE: dict[str, Callable[[int], object]] = {
    "the same length": lambda number: f"{number:032x}",
    "differ in the middle": lambda number: f"customer/{number:08d}/default",
    "differ in the middle and at an end": lambda number: (
        f"{number % 3}ustomer/{number:08d}/default"
    ),
    "short": lambda number: f"{number:x}",
    "of many lengths": lambda number: "x" * (number % 40) + f"{number}",
}


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
@pytest.mark.parametrize("least", [0, 4])
def test_takes_every_type_that_can_be_a_key(
    values: list[object], kind: pa.DataType, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_rows, "_MIN_ROWS", least)
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


@pytest.mark.parametrize("distinct", [1, 100, COUNT, 1 << 40])
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint32(), *MAKE])
def test_of_many_rows(kind: pa.DataType | str, distinct: int) -> None:
    numbers = np.random.default_rng(4).integers(0, distinct, COUNT)
    if isinstance(kind, str):
        keys = pa.array([MAKE[kind](number) for number in numbers.tolist()])
    else:
        numbers %= 1 << 31
        keys = pa.array(numbers).cast(kind)
    last = {value: position for position, value in enumerate(numbers.tolist())}

    found = newest_row_positions(pa.concat_arrays([keys[:7], keys]).slice(7))

    assert found.tolist() == sorted(last.values())


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"", b"a", b"ab", b"abcdefgh" * 3, b"abcdefgh" * 4]), min_size=9))
def test_any_bytes_among_many_rows(values: list[bytes]) -> None:
    rows = [number.to_bytes(4, "big") for number in range(5_000)] + values
    last = {value: position for position, value in enumerate(rows)}

    assert newest_row_positions(pa.array(rows)).tolist() == sorted(last.values())


def test_keys_with_the_same_hash_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_rows, "hash_ends", lambda keys: np.zeros(len(keys), np.uint64))
    numbers = np.random.default_rng(6).integers(0, 3_000, 9_000).tolist()
    last = {value: position for position, value in enumerate(numbers)}

    found = newest_row_positions(pa.array([f"{number:x}" for number in numbers]))

    assert found.tolist() == sorted(last.values())
