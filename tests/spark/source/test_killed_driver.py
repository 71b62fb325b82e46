"""A stream from a table to its copy, whose driver is killed again and again."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.data.tables import MakeTable, flush, state
from support.oracles.native import collect_all, dataset
from support.waiting import until

import memwal
from memwal.spark.version_compat import BATCH_LIMITS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not BATCH_LIMITS.here, reason="this Spark has no limits of batches"),
]

APPLICATION = """
import sys
import memwal.spark
from memwal.spark.session import spark_session
table, copy, checkpoint, *once = sys.argv[1:]
spark = spark_session("copy", master="local[2]")
memwal.spark.register(spark)
(
    spark.readStream.format("memwal")
    .options(changes_after="start", maxRowsPerTrigger="30")
    .load(table)
    .writeStream.format("memwal")
    .options(op_column="_change", drop_extra_columns="true", checkpointLocation=checkpoint)
    .trigger(**({"availableNow": True} if once else {"processingTime": "0 seconds"}))
    .start(copy)
    .awaitTermination()
)
"""


class Stream:
    """The application, in a process group of its own."""

    def __init__(self, table: memwal.Table, copy: memwal.Table, checkpoint: Path) -> None:
        self.copy, self.checkpoint = copy, checkpoint
        self.command = [sys.executable, "-c", APPLICATION, table.uri, copy.uri, str(checkpoint)]

    def numbers(self, kind: str) -> set[int]:
        return {int(path.name) for path in (self.checkpoint / kind).glob("[0-9]*")}

    def written(self) -> int:
        """Newest batch that some region of the copy has."""
        query = json.loads((self.checkpoint / "metadata").read_text())["id"]
        return max(self.copy.applied(f"spark-query-{query}").values(), default=-1)

    def run_and_kill(self, *, written: bool) -> bool:
        """Kill it as soon as a new batch is noted, or when the first region of the copy has it.

        Returns whether the batch was still to be noted as done.
        """
        begun = self.numbers("offsets")
        process = subprocess.Popen([*self.command], start_new_session=True)

        def wait(reached: Callable[[], bool]) -> None:
            until(lambda: process.poll() is not None or reached(), seconds=600)
            assert process.poll() is None

        try:
            wait(lambda: bool(self.numbers("offsets") - begun))
            number = max(self.numbers("offsets"))
            if written:
                wait(lambda: self.written() >= number)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return bool(self.numbers("offsets") - self.numbers("commits"))

    def finish(self) -> None:
        subprocess.run([*self.command, "once"], check=True, timeout=900)


def test_the_copy_has_the_rows_of_the_table(make_table: MakeTable, tmp_path: Path) -> None:
    """What was written while no driver ran is no part of the batch that comes again."""
    table, copy = make_table(buckets=3), make_table(buckets=4)
    stream = Stream(table, copy, tmp_path / "checkpoint")
    dice = random.Random(7)
    flush(table, *(dict.fromkeys(range(part, 300, 3), part) for part in range(3)))
    repeated = 0
    for kill in range(2):
        written = kill == 0
        repeated += stream.run_and_kill(written=written) and written
        for number in range(3):
            changed = dice.sample(range(300), 20)
            flush(table, dict.fromkeys(changed[:12], kill * 10 + number), changed[12:])
            table.merge()
            table.compact(min_fragments=2)
            collect_all(table)
        dataset(table).delete(f"id = {dice.randrange(300)}")
    stream.finish()
    assert state(copy) == state(table)
    assert stream.numbers("commits") == stream.numbers("offsets")
    assert repeated, "no kill came between the copy and the checkpoint"
