"""Joining small batches without changing what they hold."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.lsm.memtable.rows import LARGE_BYTES, LARGE_ROWS, RowBuffer, RowView

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("kind", pa.dictionary(pa.int32(), pa.string())),
        ("nested", pa.struct([("deep", pa.int32()), ("vec", pa.list_(pa.float32(), 2))])),
    ]
)


def batch(start: int, count: int) -> pa.RecordBatch:
    rows = [
        {
            "id": number,
            "text": None if number % 7 == 0 else f"text {number}",
            "kind": f"kind {number % 3}",
            "nested": None if number % 5 == 0 else {"deep": number, "vec": [number, -number]},
        }
        for number in range(start, start + count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def filled(sizes: list[int]) -> tuple[RowBuffer, pa.Table]:
    runs, batches, start = RowBuffer(SCHEMA), [], 0
    for size in sizes:
        batches.append(batch(start, size))
        runs.append(batches[-1])
        start += size
    return runs, pa.Table.from_batches(batches, schema=SCHEMA)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([0, 1, 2, 15, 16, 100, 300]), max_size=60))
def test_holds_the_rows_in_the_order_they_came(sizes: list[int]) -> None:
    runs, expected = filled(sizes)
    view = runs.view()
    assert view.rows == runs.rows == expected.num_rows
    assert view.to_table().to_pylist() == expected.to_pylist()
    assert len(view.batches) <= 48


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([1, 3, 20, 270]), min_size=1, max_size=40), st.data())
def test_takes_rows_and_columns_by_number(sizes: list[int], data: st.DataObject) -> None:
    runs, expected = filled(sizes)
    view = runs.view()
    number = st.integers(0, view.rows - 1)
    rows = np.array(data.draw(st.lists(number, max_size=20)), np.int64)
    start = data.draw(number)
    assert view.take(rows).to_pylist() == expected.take(pa.array(rows)).to_pylist()
    assert view.take(rows, columns=["text"]).column_names == ["text"]
    deep = [None if row is None else row["deep"] for row in expected["nested"].to_pylist()]
    assert view.take_column("nested.deep", rows).to_pylist() == [deep[row] for row in rows]
    assert view.column("nested.deep", start=start).to_pylist() == deep[start:]
    assert view.column("id", start=start).to_pylist() == list(range(start, view.rows))


def test_large_batches_are_not_copied() -> None:
    large = batch(3, LARGE_ROWS)
    blob = pa.record_batch([pa.array([b"x" * LARGE_BYTES])], names=["blob"])
    runs, blobs = RowBuffer(SCHEMA), RowBuffer(blob.schema)
    for part in (batch(0, 3), large, batch(3 + LARGE_ROWS, 1)):
        runs.append(part)
    for _ in range(20):
        blobs.append(blob)
    assert any(part is large for part in runs.view().batches)
    assert all(part is blob for part in blobs.view().batches)


def test_a_view_does_not_change() -> None:
    runs, expected = filled([1] * 15)
    view = runs.view()
    for start in range(15, 600):
        runs.append(batch(start, 1))
    assert view.to_table().to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("path", ["other", "nested.other", "id.deep", "text.x.y"])
def test_refuses_columns_that_are_not_there(path: str) -> None:
    with pytest.raises(InvalidInputError, match=path):
        RowView.of(SCHEMA, [batch(0, 1)]).column(path)
