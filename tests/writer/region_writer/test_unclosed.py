"""Warning about a writer that was never closed."""

import logging
import re
from uuid import UUID

import pytest
from support.data.tables import MakeTable, log, state
from support.processes import run_python

from memwal.storage.location import TableLocation
from memwal.writer.region_writer.stats import WriterCounters, warn_if_unclosed

COUNTED = UUID(int=1)


class Forgotten:
    """Stands for a writer that was not closed."""


def test_warns_of_buffered_writes_when_the_writer_is_collected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counters = WriterCounters(TableLocation("/lake/flights"))
    counters.region(COUNTED).buffered_writes += 2
    writer = Forgotten()
    warn_if_unclosed(writer, counters)
    with caplog.at_level(logging.WARNING):
        del writer
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "/lake/flights" in warning
    assert "2" in warning.split("/lake/flights")[1]


def test_a_producer_that_never_closes_its_writers(make_table: MakeTable) -> None:
    """What was durable is there; what was buffered is lost, which its standard error says."""
    buffered, durable = make_table(), make_table()
    code = """
import sys
import pyarrow as pa, memwal
writers = []
for uri, durable in zip(sys.argv[1:], (False, True)):
    table = memwal.open(uri)
    options = memwal.WriterOptions(durable=durable, buffer_interval=3600.0)
    writers.append(table.writer(options=options))
    for n in range(3):
        data = {"id": [n], "n": [n], "text": [f"{n}={n}"]}
        writers[-1].upsert(pa.table(data, schema=table.schema))
"""
    done = run_python(code, buffered.uri, durable.uri)
    assert durable.uri not in done.stderr
    (told,) = done.stderr.splitlines()
    assert re.search(r"\b3\b", told.split(buffered.uri)[1])
    assert log(buffered) == {}
    with durable.writer() as writer:
        writer.claim()
        assert state(writer) == {0: 0, 1: 1, 2: 2}
