"""The examples in docstrings run, each with a table of three rows."""

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from support.data.tables import MakeTable

import memwal
from memwal.queries import Queries
from memwal.reader.result import Result
from memwal.reader.scan import Scan
from memwal.reading_writer import Writer
from memwal.writer.table_writer import TableWriter

CLASSES = (memwal.Table, Writer, TableWriter, Queries, Result, Scan)
ROWS = {"id": [1, 2, 3], "n": [5, 6, 7], "text": ["a", "b", None]}


def examples() -> Iterator[tuple[str, str]]:
    named = [("open", memwal.open)] + [
        (f"{cls.__name__}.{name}", member)
        for cls in CLASSES
        for name, member in [("", cls), *vars(cls).items()]
    ]
    for name, member in named:
        text = inspect.getdoc(member) or ""
        if ">>>" in text:
            yield name, text


EXAMPLES = dict(examples())


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_says(make_table: MakeTable, name: str, tmp_path: Path) -> None:
    table = make_table(buckets=2)
    table.upsert(ROWS)
    columns = pa.schema({"at": pa.int64(), "what": pa.string()})
    events = memwal.create(tmp_path / "events.lance", columns, primary_key=None)
    names = {"table": table, "events": events, "memwal": memwal}
    parsed = doctest.DocTestParser().get_doctest(EXAMPLES[name], names, name, None, None)
    output: list[str] = []
    doctest.DocTestRunner().run(parsed, out=output.append)
    assert output == []


def test_there_are_some() -> None:
    assert len(EXAMPLES) > 10
