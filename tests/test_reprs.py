"""What a shell or a notebook shows of an object fits on a line, and costs nothing."""

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from support.data.tables import MakeTable, rows

import memwal
from memwal.boundary.text import html_table
from memwal.jobs.job import JobResult
from memwal.reader.merged_scan import MergedScan

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


def test_a_notebook_shows_the_columns_of_a_table_and_no_secret(make_table: MakeTable) -> None:
    options = {"aws_secret_access_key": "hunter2"}
    table = memwal.open(make_table().uri, storage_options=options)
    for shown in (table, table.scan()):
        html = shown._repr_html_()
        assert [name for name in table.schema.names if name not in html] == []
        assert "hunter2" not in html


@pytest.mark.parametrize("limit", [None, 3])
def test_a_notebook_shows_the_first_rows_of_a_scan(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    """No further row is asked for."""
    table = make_table(buckets=2)
    table.upsert(rows({number: number for number in range(30)}))
    asked: list[int | None] = []
    batches = MergedScan.batches
    monkeypatch.setattr(
        MergedScan, "batches", lambda self, rows: (asked.append(rows), batches(self, rows))[1]
    )

    document = ElementTree.fromstring(f"<div>{table.scan(limit=limit)._repr_html_()}</div>")

    shown = limit or 10
    lines = document.findall("table/tbody/tr")
    assert len(lines) == shown
    assert {len(line.findall("td")) for line in lines} == {3}
    assert [count for count in asked if count is None or count > shown + 1] == []
    assert table.scan(limit=limit).to_table().num_rows == (limit or 30)


def test_a_notebook_shows_text_of_a_table_as_text() -> None:
    warning = "<script>alert('&')</script>"
    result = JobResult(job="merge", table="t", version=1, warnings=(warning,) * 2)
    document = ElementTree.fromstring(f"<div>{result._repr_html_()}</div>")
    assert [note.text for note in document.findall("p")[1:]] == [warning, warning]


def test_a_notebook_shows_the_first_rows_of_a_long_table() -> None:
    document = html_table("t", ["a"], [[number] for number in range(70)])
    assert document.count("<tr>") == 51
    assert "20 more" in document
