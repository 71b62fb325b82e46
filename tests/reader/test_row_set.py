"""Sets of rows as Lance's scanner takes them."""

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.reader.row_set import contains, encode_row_set

ROWS = 150_000


@pytest.fixture(scope="module")
def dataset() -> lance.LanceDataset:
    """Return a table whose fragments need more than one container of a bitmap each."""
    rows = pa.table({"n": np.arange(ROWS)})
    return lance.write_dataset(rows, "memory://", max_rows_per_file=ROWS - 9)


@pytest.mark.parametrize(
    "places",
    [
        [0],
        [0, 65_535, 65_536, ROWS - 1],
        list(range(0, ROWS, 7)),
        list(range(60_000, 140_000)),
        [5, 4, 5, ROWS - 1, 3],
    ],
    ids=["one", "edges", "spread", "dense", "unordered"],
)
def test_a_scan_keeps_or_leaves_exactly_these(
    dataset: lance.LanceDataset, places: list[int]
) -> None:
    ids = dataset.scanner(columns=[], with_row_id=True).to_table()["_rowid"].to_numpy()
    chosen = encode_row_set(ids[places])
    kept = dataset.scanner(columns=["n"], row_addr_allowlist=chosen).to_table()["n"].to_pylist()
    assert kept == sorted(set(places))
    left = dataset.scanner(columns=["n"], row_addr_blocklist=chosen).to_table()["n"].to_numpy()
    assert np.array_equal(left, np.setdiff1d(np.arange(ROWS), places))


def test_no_row_at_all(dataset: lance.LanceDataset) -> None:
    nothing = encode_row_set(np.empty(0, np.uint64))
    assert dataset.scanner(columns=["n"], row_addr_allowlist=nothing).to_table().num_rows == 0


@given(st.sets(st.integers(0, 2**64 - 1)), st.lists(st.integers(0, 2**64 - 1)))
def test_contains(inside: set[int], asked: list[int]) -> None:
    ordered = np.array(sorted(inside), np.uint64)
    questions = [*asked, *list(inside)[:3]]
    found = contains(ordered, np.array(questions, np.uint64))
    assert found.tolist() == [value in inside for value in questions]
