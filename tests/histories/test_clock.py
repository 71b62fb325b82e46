"""A process can be given another time of day, and so can Lance in it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from histories.clock import SOURCE, Clock
from support.faults.preloaded import preload

DAY = 86_400.0

TELL = """
import datetime, sys, time
import lance
import pyarrow as pa
for line in sys.stdin:
    commit = lance.write_dataset(pa.table({"id": [1]}), line.strip()).versions()[0]["timestamp"]
    now = datetime.datetime.now().timestamp()
    print(time.time(), now, commit.timestamp(), time.monotonic(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [400 * DAY, -400 * DAY, 0.5, -0.5])
def test_the_time_of_day_jumps_and_time_goes_on(ahead: float, tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    with subprocess.Popen(
        [sys.executable, "-c", TELL],
        env={**os.environ, **preload([SOURCE]), **clock.environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, offset in enumerate([0.0, ahead, 0.0]):
            clock.jump(offset)
            before, begin = time.time(), time.monotonic()
            process.stdin.write(f"{tmp_path / str(number)}\n")
            process.stdin.flush()
            *times, passed = map(float, process.stdout.readline().split())
            for told in times:
                assert before - 0.01 <= told - offset <= time.time() + 0.01
            assert begin <= passed <= time.monotonic()
        process.stdin.close()
