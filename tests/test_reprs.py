"""What a shell or a notebook shows of an object fits on a line, and costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.data.tables import MakeTable, rows

import memwal

SHOWN: dict[str, Callable[[memwal.Table], Any]] = {
    "table": lambda table: table,
    "scan": lambda table: table.scan(columns=["id"] * 50, filter="n > 1 AND " * 20 + "n < 3"),
    "lookup": lambda table: table.lookup([1]),
    "status": memwal.Table.status,
    "merge": memwal.Table.merge,
    "collection": memwal.Table.collect_garbage,
    "checkpoint": memwal.Table.checkpoint,
    "verify": memwal.Table.verify,
    "writer": memwal.Table.writer,
}


@pytest.mark.parametrize("name", SHOWN)
def test_fits_on_a_line(make_table: MakeTable, name: str) -> None:
    table = make_table(buckets=2)
    with table.writer() as writer:
        writer.upsert(rows({number: number for number in range(8)}))

    text = repr(SHOWN[name](table))

    assert "\n" not in text
    assert len(text) <= 240
    assert " at 0x" not in text


def test_of_a_writer_that_is_closed(make_table: MakeTable) -> None:
    writer = make_table().writer()
    opened = repr(writer)
    writer.close()

    assert repr(writer) != opened
