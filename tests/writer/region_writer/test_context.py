"""What the region writers of a table share."""

import math
import time
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data.tables import MakeTable, keys, rows

import memwal
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.writer.region_writer import context
from memwal.writer.region_writer.context import NewestBase


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[BaseTable]:
    """Return a list of the versions that are asked for from now on."""
    found: list[BaseTable] = []

    def spied(*arguments: Any, **options: Any) -> BaseTable:
        found.append(open_base(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(context, "open_base", spied)
    return found


def test_a_version_serves_flushes_whose_rows_were_complete_before(
    table: memwal.Table, opened: list[BaseTable]
) -> None:
    newest = NewestBase(table.location)
    began = time.monotonic()
    first = newest.open(since=-math.inf)
    assert newest.open(since=began - 1) is first
    assert len(opened) == 1
    # Asked for again, and the same version.
    assert newest.open(since=time.monotonic()) is first
    assert len(opened) == 2
    lance.dataset(table.uri).add_columns(pa.schema([pa.field("more", pa.int64())]))
    assert "more" not in newest.open(since=began).schema.names
    assert "more" in newest.open(since=time.monotonic()).schema.names


def test_a_flush_that_failed_opens_the_version_anew(
    table: memwal.Table, opened: list[BaseTable]
) -> None:
    newest = NewestBase(table.location)
    newest.open(since=-math.inf)
    newest.forget()
    newest.open(since=-math.inf)
    assert len(opened) == 2


def test_rows_with_a_new_column_are_flushed_with_it(make_table: MakeTable) -> None:
    table = make_table(buckets=4)
    with table.writer() as writer:
        writer.upsert(rows(dict.fromkeys(range(20), 0)))
        writer.flush()
        for number in range(3):
            name = f"more_{number}"
            lance.dataset(table.uri).add_columns(pa.schema([pa.field(name, pa.int64())]))
            new = rows(dict.fromkeys(range(20), number))
            for more in range(number + 1):
                new = new.append_column(f"more_{more}", [[7 + more] * 20])
            writer.upsert(new)
            writer.flush()
            found = memwal.open(table.uri).scan(columns=["id", name]).to_table()
            assert found[name].to_pylist() == [7 + number] * 20
        writer.delete(keys(3))
    assert table.count_rows() == 19
