"""Generations that are read together from memory show what generations read one by one show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.copied import copied_table
from support.data.tables import SCHEMA, keys, numbered, state
from support.oracles.read_sources import forget_caches

import memwal
from memwal.reader.sources import narrow_columns
from memwal.reader.sources.narrow_columns import FragmentLayout, row_numbers

OPTIONS: list[dict[str, Any]] = [
    {},
    {"columns": ["n"]},
    {"columns": []},
    {"filter": "n >= 2 and id % 3 = 0"},
    {"columns": ["text"], "filter": "n = 1"},
    {"with_generation": True},
    {"columns": ["id"], "with_row_address": True, "with_generation": True, "filter": "id < 60"},
    {"filter": "id = -5"},
]


@pytest.fixture
def backlog(tmp_path: Path) -> memwal.Table:
    """Return a table with merged rows, and four generations of each of two regions."""

    def make(uri: str) -> None:
        table = memwal.create(uri, SCHEMA, primary_key=["id"], region_spec="bucket:id:2")
        with table.writer() as writer:
            writer.upsert(numbered(0, 100))
            writer.flush()
            table.merge()
            for number in range(1, 5):
                writer.upsert(numbered(20 * number, 50, number))
                writer.delete(keys(7 * number, 20 * number + 1))
                writer.flush()

    return copied_table("narrow columns", tmp_path / "table", make)


def shown(table: memwal.Table, options: dict[str, Any]) -> list[dict[str, Any]]:
    rows = table.scan(**options).to_pylist()
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


@pytest.mark.few(5)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rows_together", [1, 60, 1 << 20])
def test_shows_the_same(
    backlog: memwal.Table,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    rows_together: int,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(narrow_columns, "is_narrow", lambda _type: False)
        one_by_one = shown(backlog, options)
        count = backlog.scan(**options).count_rows()
    monkeypatch.setattr(narrow_columns, "_GROUP_ROWS", rows_together)
    forget_caches()
    for _ in range(2):
        assert shown(backlog, options) == one_by_one
        assert backlog.scan(**options).count_rows() == count == len(one_by_one)


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the generations that are read from now on."""
    found: list[str] = []

    def count(read: Callable[..., Any]) -> Callable[..., Any]:
        def counted(self: Any, *args: Any, **options: Any) -> Any:
            found.extend([self.uri] * ("_gen_" in self.uri))
            return read(self, *args, **options)

        return counted

    for name in ("scanner", "take"):
        monkeypatch.setattr(lance.LanceDataset, name, count(getattr(lance.LanceDataset, name)))
    return found


def test_columns_are_decoded_once(backlog: memwal.Table, scanned: list[str]) -> None:
    first = state(backlog)
    late = sum(n is not None and n > 2 for n in first.values())
    assert backlog.count_rows(filter="n > 2") == late
    scanned.clear()
    assert state(backlog) == first
    assert backlog.count_rows(filter="n > 2") == late
    assert scanned == []


@pytest.mark.parametrize("options", [{}, {"filter": "n >= 2"}, {"columns": ["text"]}], ids=str)
def test_a_first_scan_reads_each_generation_in_one_pass(
    backlog: memwal.Table, scanned: list[str], options: dict[str, Any]
) -> None:
    backlog.scan(**options).to_table()
    assert len(scanned) == len(set(scanned)) == 8


@pytest.mark.parametrize("most", [1, 300, 600])
def test_columns_too_large_to_be_kept_change_nothing(
    backlog: memwal.Table, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    options = {"filter": "n >= 2"}
    expected, count = shown(backlog, options), backlog.scan(**options).count_rows()
    forget_caches()
    monkeypatch.setattr(narrow_columns, "_MAX_COLUMN_BYTES", most)
    for _ in range(2):
        assert shown(backlog, options) == expected
        assert backlog.scan(**options).count_rows() == count


def test_wide_columns_are_streamed(tmp_path: Any) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.list_(pa.float32(), 16))]
    )
    table = memwal.create(tmp_path / "table", schema, primary_key="id")
    with table.writer() as writer:
        for start in (0, 5):
            vectors = np.full((10, 16), start, np.float32)
            writer.upsert({"id": range(start, start + 10), "v": list(vectors)})
            writer.flush()
    found = {row["id"]: row["v"][0] for row in table.scan().to_pylist()}
    assert found == {**dict.fromkeys(range(5), 0.0), **dict.fromkeys(range(5, 15), 5.0)}


def test_rows_of_several_fragments_are_marked_by_their_addresses() -> None:
    layout = FragmentLayout(((0, 3), (4, 2)), rows=5, has_deletions=False, file_bytes=1)
    addresses = layout.addresses()
    assert addresses.tolist() == [0, 1, 2, 4 << 32, (4 << 32) + 1]
    assert layout.mask(addresses[[1, 4]]).tolist() == [False, True, False, False, True]
    assert layout.mask(addresses).tolist() == [True] * 5
    some = np.array([4, 0, 3, 2])
    assert layout.addresses_at(some).tolist() == addresses[some].tolist()
    assert layout.positions(addresses[some]).tolist() == some.tolist()


def test_generations_share_the_numbers_of_their_rows() -> None:
    """Nobody may change them; those of large generations are not kept."""
    one, other = (FragmentLayout(((0, rows),), rows, False, 1).addresses() for rows in (5, 7))
    assert (one.tolist(), other.tolist()) == ([*range(5)], [*range(7)])
    assert np.shares_memory(one, other)
    with pytest.raises(ValueError, match="read-only"):
        one[0] = 1
    large = [row_numbers((1 << 18) + 1) for _ in range(2)]
    assert large[0][-1] == 1 << 18
    assert not np.shares_memory(*large)


def test_generations_with_large_files_are_streamed(
    backlog: memwal.Table, scanned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = state(backlog)
    forget_caches()
    monkeypatch.setattr(narrow_columns, "_MAX_FILE_BYTES", 1)
    for _ in range(2):
        scanned.clear()
        assert state(backlog) == expected
        assert scanned


def test_a_column_with_an_index_gets_one_in_memory(backlog: memwal.Table) -> None:
    backlog.base().dataset.create_scalar_index("n", "BTREE", name="n_idx")
    first = state(backlog)
    for column, indexed in (("n", 1), ("text", 0)):
        forget_caches()
        for _ in range(12):
            expected = sum(n is not None and n >= 3 for n in first.values())
            filter = "n >= 3" if column == "n" else "text = '1=1' or text <> '1=1'"
            found = backlog.scan(filter=filter).to_pylist()
            assert len(found) == (expected if column == "n" else len(first))
        (kept,) = narrow_columns._filtered.values()
        assert len(kept.dataset.describe_indices()) == indexed
