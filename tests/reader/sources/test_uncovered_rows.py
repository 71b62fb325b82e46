"""Filters on rows that a lagging index does not cover show what Lance's own scan shows."""

from __future__ import annotations

from typing import Any

import lance
import pytest
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
    request: pytest.FixtureRequest, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> memwal.Table:
    """Return a table whose index on ``n`` covers the first of several fragments with holes."""
    monkeypatch.setattr(uncovered_rows, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(uncovered_rows, "_FEW_OF", 1)
    empty = make_table()
    uri = f"{empty.uri}-{request.param}"
    lance.write_dataset(
        SCHEMA.empty_table(), uri, enable_stable_row_ids=request.param, data_storage_version="2.1"
    )
    table = memwal.enable(uri, primary_key=["id"], region_spec="bucket:id:2")
    write(table, {number: number % 50 for number in range(200)})
    table.base().dataset.create_scalar_index("n", "BTREE", name="n_idx")
    write(table, {number: number % 60 for number in range(150, 300)} | {5: 7, 6: None})
    write(table, dict.fromkeys(range(300, 310)), 7, 57, 160, 250)
    return table


def kept() -> int:
    """Return how many columns of base tables this process keeps."""
    return len(uncovered_rows._kept.values())


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
def test_the_columns_are_kept_from_the_third_filter_on(lagging: memwal.Table) -> None:
    counts = [shown(lagging, "n = 7", {}) and kept() for _ in range(4)]
    assert counts[0] == counts[1] < counts[2] == counts[3]
    write(lagging, {1_000: 7})
    # A read of the new version forgets those of the version before.
    assert 1_000 in [row["id"] for row in shown(lagging, "n = 7", {})]
    assert kept() == counts[0]


@pytest.mark.few(2)
@pytest.mark.parametrize("limit", [("_FEWEST_ROWS", 1 << 30), ("_MOST_ROWS", 0)])
def test_few_and_very_many_rows_are_left_to_lance(
    lagging: memwal.Table, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]
) -> None:
    monkeypatch.setattr(uncovered_rows, *limit)
    before = kept()
    for _ in range(4):
        assert [row["n"] for row in shown(lagging, "n = 57", {})] == [57, 57, 57]
    assert kept() == before


def test_a_table_without_an_index_is_scanned(make_table: MakeTable) -> None:
    table = make_table()
    table.upsert(numbered(0, 100, 3))
    table.merge()
    assert uncovered_fragments(table.base(), ["n"]) == ()
    assert table.scan(filter="n = 3").count_rows() == 100
