"""What a shell or a notebook shows of an object fits on a line, and costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from support.data.tables import MakeTable, rows

import memwal
from memwal.boundary.text import html_table
from memwal.jobs.job import JobResult

SHOWN: dict[str, Callable[[memwal.Table], Any]] = {
    "table": lambda table: table,
    "scan": lambda table: table.scan(columns=["id"] * 50, filter="n > 1 AND " * 20 + "n < 3"),
    "fresh view": memwal.Table.fresh,
    "version": lambda table: table.at(1),
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
    table.upsert(rows({number: number for number in range(8)}))

    text = repr(SHOWN[name](table))

    assert "\n" not in text
    assert len(text) <= 240
    assert " at 0x" not in text


def test_of_a_writer_that_is_closed(make_table: MakeTable) -> None:
    writer = make_table().writer()
    opened = repr(writer)
    writer.close()

    assert repr(writer) != opened


@pytest.mark.parametrize("name", ["status", "merge", "collection", "checkpoint", "verify"])
def test_a_notebook_shows_a_table(make_table: MakeTable, name: str) -> None:
    table = make_table(buckets=2)
    table.upsert(rows({number: number for number in range(8)}))

    document = ElementTree.fromstring(f"<div>{SHOWN[name](table)._repr_html_()}</div>")

    assert table.uri in (document.findtext("p") or "")
    width = len(document.findall("table/thead/tr/th"))
    assert width
    lines = document.findall("table/tbody/tr")
    assert {len(line.findall("td")) for line in lines} <= {width}
    assert name == "verify" or lines


def test_a_notebook_shows_text_of_a_table_as_text() -> None:
    warning = "<script>alert('&')</script>"
    result = JobResult(job="merge", table="t", version=1, warnings=(warning,) * 2)
    document = ElementTree.fromstring(f"<div>{result._repr_html_()}</div>")
    assert [note.text for note in document.findall("p")[1:]] == [warning, warning]


def test_a_notebook_shows_the_first_rows_of_a_long_table() -> None:
    document = html_table("t", ["a"], [[number] for number in range(70)])
    assert document.count("<tr>") == 51
    assert "20 more" in document
