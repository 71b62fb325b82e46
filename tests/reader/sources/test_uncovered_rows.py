"""Filters on rows that a lagging index does not cover show what Lance's own scan shows."""

import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data.copied import copied_table
from support.data.tables import SCHEMA, MakeTable, keys, numbered, rows

import memwal
from memwal.reader.base_indexes import uncovered_fragments
from memwal.reader.sources import narrow_columns as uncovered_rows

FILTERS = ["n = 7", "n >= 40", "n = 7 or n = 41", "n is null", "n > 3 and id < 150", "text = '5=7'"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"columns": ["text"]},
    {"columns": []},
    {"columns": ["id"], "with_row_address": True},
]


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def lagging(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> memwal.Table:
    """Return a table whose index on ``n`` covers the first of several fragments with holes."""
    monkeypatch.setattr(uncovered_rows, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(uncovered_rows, "_FEW_OF", 1)
    name = f"lagging-{request.param}"
    return copied_table(name, tmp_path / name, lambda uri: make_lagging(uri, request.param))


def make_lagging(uri: str, stable: bool, shift: int = 0) -> memwal.Table:
    lance.write_dataset(
        SCHEMA.empty_table(), uri, enable_stable_row_ids=stable, data_storage_version="2.1"
    )
    table = memwal.enable(uri, primary_key=["id"], region_spec="bucket:id:2")
    write(table, {number: number % 50 for number in range(200)})
    table.base().dataset.create_scalar_index("n", "BTREE", name="n_idx")
    fresh = {number: number % 60 + shift for number in range(150, 300)}
    write(table, fresh | {5: 7, 6: None})
    write(table, dict.fromkeys(range(300, 310)), 7, 57, 160, 250)
    return table


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the fragments of which columns are read to be kept, from now on."""
    found: list[int] = []
    plain = lance.LanceDataset.scanner

    def scanner(self: Any, *args: Any, **options: Any) -> Any:
        if options.get("include_deleted_rows"):
            found.extend(part.fragment_id for part in options["fragments"])
        return plain(self, *args, **options)

    monkeypatch.setattr(lance.LanceDataset, "scanner", scanner)
    return found


def count(table: memwal.Table, filter: str) -> int:
    return table.scan(filter=filter).count_rows()


def as_by_lance(table: memwal.Table, filter: str) -> list[dict[str, Any]]:
    rows = lance.dataset(table.uri).to_table(filter=filter).to_pylist()
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


def write(table: memwal.Table, values: dict[int, int | None], *deleted: int) -> None:
    with table.writer() as writer:
        writer.upsert(rows(values))
        if deleted:
            writer.delete(keys(*deleted))
    table.merge()


def shown(table: memwal.Table, filter: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    found = table.scan(filter=filter, **options).to_pylist()
    return sorted(found, key=lambda row: [str(value) for value in row.values()])


@pytest.mark.few(1)
@pytest.mark.parametrize("backlog", [False, True])
def test_shows_the_same(
    lagging: memwal.Table, backlog: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backlog:
        with lagging.writer() as writer:
            writer.upsert(rows({7: 7, 8: 1, 170: 41, 400: 7}))
            writer.delete(keys(157, 41))
    for filter in FILTERS:
        for options in OPTIONS:
            with monkeypatch.context() as patch:
                patch.setattr(uncovered_rows, "_FEWEST_ROWS", 1 << 30)
                expected = shown(lagging, filter, options)
            count = len(expected)
            for _ in range(3):
                assert shown(lagging, filter, options) == expected
                assert lagging.scan(filter=filter, **options).count_rows() == count
                some = lagging.scan(filter=filter, limit=2, **options).to_pylist()
                assert len(some) == min(2, count)


@pytest.mark.few(1)
def test_the_columns_are_kept_from_the_second_filter_on(
    lagging: memwal.Table, read: list[int]
) -> None:
    counts = [count(lagging, "n = 7") and len(read) for _ in range(4)]
    assert counts[0] < counts[1] == counts[2] == counts[3]


def test_after_a_merge_only_its_fragments_are_read(lagging: memwal.Table, read: list[int]) -> None:
    before = [count(lagging, "n = 7") for _ in range(2)]
    fragments = set(read)
    read.clear()
    # Rows of kept fragments are replaced and deleted, and one is there again with another value.
    write(lagging, {1_000: 7, 187: 8}, 207)
    assert shown(lagging, "n = 7", {}) == as_by_lance(lagging, "n = 7")
    assert count(lagging, "n = 7") == before[0]
    assert read
    # With stable row ids, a fragment of which rows were deleted is read again.
    assert lagging.base().dataset.has_stable_row_ids or fragments.isdisjoint(read)


@pytest.mark.few(1)
def test_rows_that_another_client_deletes_are_not_shown(lagging: memwal.Table) -> None:
    before = [count(lagging, "n = 7") for _ in range(2)]
    lance.dataset(lagging.uri).delete("id = 187")
    assert count(lagging, "n = 7") == before[0] - 1
    assert shown(lagging, "n = 7", {}) == as_by_lance(lagging, "n = 7")


def test_rows_of_a_restored_version_are_shown_again(lagging: memwal.Table) -> None:
    version = lance.dataset(lagging.uri).version
    expected = shown(lagging, "n = 7", {})
    lance.dataset(lagging.uri).delete("id = 187")
    for _ in range(3):
        assert count(lagging, "n = 7") == len(expected) - 1
    lance.dataset(lagging.uri, version=version).restore()
    for _ in range(3):
        assert shown(lagging, "n = 7", {}) == expected
        assert count(lagging, "n = 7") == len(expected)


@pytest.mark.few(1)
def test_values_that_another_client_writes_in_place_are_shown(lagging: memwal.Table) -> None:
    for _ in range(3):
        assert count(lagging, "n = 7") != count(lagging, "n = 999")
    lance.dataset(lagging.uri).update({"n": "999"}, where="id = 187")
    assert [row["id"] for row in shown(lagging, "n = 999", {})] == [187]
    assert 187 not in [row["id"] for row in shown(lagging, "n = 7", {})]


@pytest.mark.few(1)
def test_a_column_that_takes_the_name_of_another_is_read(lagging: memwal.Table) -> None:
    dataset = lance.dataset(lagging.uri)
    dataset.add_columns(pa.field("m", pa.int64()))
    lance.dataset(lagging.uri).create_scalar_index("m", "BTREE", name="m_idx")
    lagging.upsert(rows({1_000: 7}).append_column("m", pa.nulls(1, pa.int64())))
    lagging.merge()
    for _ in range(3):
        assert 1_000 in [row["id"] for row in shown(lagging, "n = 7", {})]
    dataset = lance.dataset(lagging.uri)
    dataset.alter_columns({"path": "n", "name": "old"})
    dataset.alter_columns({"path": "m", "name": "n"})
    for _ in range(3):
        assert count(lagging, "n = 7") == 0


@pytest.mark.few(1)
def test_a_table_in_the_place_of_another_is_read(lagging: memwal.Table) -> None:
    for _ in range(3):
        assert count(lagging, "n = 7")
    stable = lagging.base().dataset.has_stable_row_ids
    shutil.rmtree(lagging.uri)
    other = make_lagging(lagging.uri, stable, shift=1)
    for _ in range(3):
        assert shown(other, "n = 7", {}) == as_by_lance(other, "n = 7")


@pytest.mark.few(2)
@pytest.mark.parametrize("limit", [("_FEWEST_ROWS", 1 << 30), ("_MOST_ROWS", 0)])
def test_few_and_very_many_rows_are_left_to_lance(
    lagging: memwal.Table,
    monkeypatch: pytest.MonkeyPatch,
    limit: tuple[str, int],
    read: list[int],
) -> None:
    monkeypatch.setattr(uncovered_rows, *limit)
    for _ in range(4):
        assert [row["n"] for row in shown(lagging, "n = 57", {})] == [57, 57, 57]
    assert not read


def test_a_table_without_an_index_is_scanned(make_table: MakeTable) -> None:
    table = make_table()
    table.upsert(numbered(0, 100, 3))
    table.merge()
    assert uncovered_fragments(table.base(), ["n"]) == ()
    assert table.scan(filter="n = 3").count_rows() == 100
