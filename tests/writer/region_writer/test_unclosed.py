"""Warning about a writer that was never closed."""

from __future__ import annotations

import gc
import logging
import re
import subprocess
import sys
from uuid import UUID

import pytest
from support.data.tables import log, state

import memwal
from memwal.storage.location import TableLocation
from memwal.writer.region_writer.stats import WriterCounters, warn_if_unclosed

COUNTED = UUID(int=1)

# A process that never ends is a bug, and must not hang the run.
LONG = 60.0


class Forgotten:
    """Stands for a writer that was not closed."""


class TestWarnIfUnclosed:
    @pytest.fixture
    def counters(self) -> WriterCounters:
        return WriterCounters(TableLocation("/lake/flights"))

    def test_warns_of_buffered_writes_when_the_writer_is_collected(
        self, counters: WriterCounters, caplog: pytest.LogCaptureFixture
    ) -> None:
        region = counters.region(COUNTED)
        region.add_buffered(3, 300)
        region.remove_buffered(1, 100)
        writer = Forgotten()
        warn_if_unclosed(writer, counters)
        with caplog.at_level(logging.WARNING):
            del writer
            gc.collect()
        (warning,) = [record.getMessage() for record in caplog.records]
        assert "/lake/flights" in warning
        assert "2" in warning.split("/lake/flights")[1]

    @pytest.mark.parametrize("closed", [True, False])
    def test_is_silent_without_buffered_writes_and_after_a_close(
        self, counters: WriterCounters, caplog: pytest.LogCaptureFixture, closed: bool
    ) -> None:
        writer = Forgotten()
        watch = warn_if_unclosed(writer, counters)
        if closed:
            counters.region(COUNTED).add_buffered(1, 100)
            watch.detach()
        with caplog.at_level(logging.DEBUG):
            del writer
            gc.collect()
        assert caplog.text == ""

    def test_warns_at_the_end_of_the_process(self) -> None:
        code = (
            "import uuid\n"
            "from memwal.storage.location import TableLocation\n"
            "from memwal.writer.region_writer.stats import WriterCounters, warn_if_unclosed\n"
            "class Writer: pass\n"
            "writer, counters = Writer(), WriterCounters(TableLocation('/lake/flights'))\n"
            "counters.region(uuid.uuid4()).add_buffered(5, 500)\n"
            "warn_if_unclosed(writer, counters)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], timeout=LONG, capture_output=True, text=True
        )
        assert done.returncode == 0
        assert re.search(r"\b5\b", done.stderr)


def run_forgetful(table: memwal.Table, durable: bool) -> str:
    """What a producer leaves on standard error that writes and never closes its writer."""
    code = f"""
import sys
import pyarrow as pa, memwal
table = memwal.open(sys.argv[1])
options = memwal.WriterOptions(durable={durable}, buffer_interval=3600.0)
writer = table.writer(options=options)
for n in range(3):
    data = {{"id": [n], "n": [n], "text": [f"{{n}}={{n}}"]}}
    writer.upsert(pa.table(data, schema=table.schema))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, table.uri], timeout=LONG, capture_output=True, text=True
    )
    assert done.returncode == 0
    return done.stderr


class TestForgottenWriter:
    def test_loses_what_was_buffered_and_says_so(self, table: memwal.Table) -> None:
        assert re.search(r"\b3\b", run_forgetful(table, durable=False))
        assert log(table) == {}

    def test_loses_nothing_that_was_durable_and_says_nothing(self, table: memwal.Table) -> None:
        assert run_forgetful(table, durable=True) == ""
        with table.writer() as writer:
            writer.claim()
            assert state(writer) == {0: 0, 1: 1, 2: 2}
