"""The newest row of each key, against a dict."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.lsm.key_hashes import hash_rows
from memwal.lsm.memtable import key_index
from memwal.lsm.memtable.key_index import KeyIndex
from memwal.lsm.memtable.rows import RowBuffer, RowView

KINDS = {
    "int64": (pa.int64(), lambda number: number - 3),
    "uint64": (pa.uint64(), lambda number: 2**64 - 1 - number),
    "int8": (pa.int8(), lambda number: number - 3),
    "bool": (pa.bool_(), lambda number: number % 2 == 0),
    "text": (pa.string(), lambda number: "k" * number),
    "large text": (pa.large_string(), lambda number: f"key é {number}"),
    "binary": (pa.binary(), lambda number: b"\0" * number),
    "large binary": (pa.large_binary(), lambda number: bytes([number]) * 9),
}


@pytest.fixture(params=[64, 1], ids=["hashed", "colliding"])
def bits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    if request.param < 64:

        def colliding(columns: Sequence[pa.Array]) -> np.ndarray:
            return hash_rows(columns) & np.uint64(1 << 63)

        monkeypatch.setattr(key_index, "hash_rows", colliding)
    return int(request.param)


def batch_of(kinds: Sequence[str], numbers: Sequence[int]) -> pa.RecordBatch:
    columns = []
    for place, kind in enumerate(kinds):
        data_type, value = KINDS[kind]
        columns.append(pa.array([value((number >> place) % 8) for number in numbers], data_type))
    return pa.record_batch(columns, names=[f"k{place}" for place in range(len(kinds))])


def expected_of(view: RowView) -> dict[tuple[object, ...], int]:
    rows = [tuple(row.values()) for row in view.to_table().to_pylist()]
    return {key: number for number, key in enumerate(rows)}


KEYS = st.sampled_from(
    [*[[kind] for kind in KINDS], ["int64", "text"], ["binary", "bool"], ["text", "text", "int8"]]
)
STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, 15), max_size=12), st.booleans(), st.booleans()), max_size=25
)


@pytest.mark.few(1)
@settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(kinds=KEYS, steps=STEPS)
def test_answers_like_a_dict(
    bits: int, kinds: list[str], steps: list[tuple[list[int], bool, bool]]
) -> None:
    asked = batch_of(kinds, range(16))
    runs = RowBuffer(asked.schema)
    index = KeyIndex(asked.schema.names)
    views = [runs.view()]
    for numbers, catches_up, keeps in steps:
        runs.append(batch_of(kinds, numbers))
        if catches_up:
            index.catch_up(runs.view())
        if keeps:
            views.append(runs.view())
    views.append(runs.view())
    # The newest view first, so that the others are older than what is indexed.
    for view in reversed(views):
        newest = expected_of(view)
        expected = [newest.get(tuple(row.values()), -1) for row in asked.to_pylist()]
        assert index.lookup(asked.columns, view).tolist() == expected
    assert index.rows == runs.rows


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [1, 7, 1_000, 30_000])
def test_many_rows_in_batches_of_any_size(size: int) -> None:
    random = np.random.default_rng(size)
    count = 3_000 if size < 10 else 60_000
    keys = random.integers(0, count // 2, count)
    index, runs = KeyIndex(["k"]), RowBuffer(pa.schema([("k", pa.int64())]))
    for start in range(0, count, size):
        runs.append(pa.record_batch([pa.array(keys[start : start + size])], names=["k"]))
        index.catch_up(runs.view())
    newest = np.full(count, -1)
    newest[keys] = np.arange(count)
    view = runs.view()
    assert index.lookup([pa.array(np.arange(count))], view).tolist() == newest.tolist()
    assert index.nbytes <= 12 * count


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ([pa.array([1], pa.int32())], "int32"),
        ([pa.array([1, None])], "1"),
        ([pa.array([1]), pa.array([2])], "2"),
        ([], "0"),
    ],
)
def test_refuses_keys_of_another_shape(keys: list[pa.Array], named: str) -> None:
    view = RowView.of(
        pa.schema([("k", pa.int64())]), [pa.record_batch([pa.array([1])], names=["k"])]
    )
    with pytest.raises(InvalidInputError, match=rf"\b{named}\b"):
        KeyIndex(["k"]).lookup(keys, view)


def test_refuses_rows_without_a_key() -> None:
    index, runs = KeyIndex(["k"]), RowBuffer(pa.schema([("k", pa.int64())]))
    runs.append(pa.record_batch([pa.array([1, None])], names=["k"]))
    with pytest.raises(InvalidInputError, match=r"\bk\b"):
        index.catch_up(runs.view())
    assert index.rows == 0


def test_refuses_more_rows_than_an_entry_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_ROW_MASK", np.uint64(3))
    index, runs = KeyIndex(["k"]), RowBuffer(pa.schema([("k", pa.int64())]))
    runs.append(pa.record_batch([pa.array([1, 2, 3, 4])], names=["k"]))
    with pytest.raises(InvalidInputError, match=r"\b4\b.*\b3\b"):
        index.catch_up(runs.view())
