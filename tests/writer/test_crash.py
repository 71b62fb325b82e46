"""Producers that are killed with SIGKILL: what they were told is durable is there afterwards."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.data.tables import MakeTable, generations, state
from support.faults import crash_child

import memwal
from memwal.region.router import bucket_region_id

TESTS = Path(__file__).parents[1]
REPOSITORY = Path(memwal.__file__).parents[1]


@contextmanager
def child(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A child process, which is killed in the end."""
    process = subprocess.Popen(
        [sys.executable, crash_child.__file__, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(TESTS)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Auditor:
    """Knows every write that was acknowledged, and what each key may be.

    The last write of each thread may have happened without an answer.
    """

    def __init__(self) -> None:
        self.number = 0
        self._acknowledged: dict[int, int | None] = {}

    def take(self, line: str) -> None:
        """Take a line that a producer printed."""
        done, *touched = line.split()
        value = None if done == "-" else int(done)
        self.number = max(self.number, value or 0)
        for key in touched:
            self._acknowledged[int(key)] = value

    def check(self, found: dict[int, int | None]) -> None:
        """Compare with the table, after a crash; what is found is the truth from now on."""
        in_doubt = 0
        for key in range(crash_child.THREADS * crash_child.KEYS):
            expected = self._acknowledged.get(key)
            actual = found.get(key)
            if actual == expected:
                continue
            # Only a write without an answer may have changed it: a newer one, or a delete.
            assert actual is None or actual > (expected or 0), f"key {key} went back to {actual}"
            in_doubt += 1
        # One call of each thread, with four keys at most.
        assert in_doubt <= 4 * crash_child.THREADS, f"{in_doubt} keys differ"
        self.number = max([self.number, *(n for n in found.values() if n is not None)])
        self._acknowledged = dict(found)


def run_producer(table: memwal.Table, auditor: Auditor, *, seed: int, lines: int) -> None:
    """Run a producer, and kill it when it has printed so many lines."""
    with child("produce", table.uri, seed, auditor.number + 1000) as process:
        assert process.stdout is not None
        for _ in range(lines):
            line = process.stdout.readline()
            if not line:
                _, errors = process.communicate()
                raise AssertionError(f"the producer ended by itself:\n{errors}")
            auditor.take(line)
        process.kill()
        # What was acknowledged before the kill reached it.
        for line in process.stdout:
            if line.endswith("\n"):
                auditor.take(line)


def recovered(table: memwal.Table) -> dict[int, int | None]:
    """What a new writer brings back, seen through it and, once flushed, by everybody."""
    with table.writer() as writer:
        writer.claim()
        found = state(writer)
    assert state(table) == found
    return found


def test_nothing_that_was_acknowledged_is_lost(make_table: MakeTable) -> None:
    table, auditor = make_table(buckets=2), Auditor()
    dice = random.Random(7)
    for turn in range(2):
        run_producer(table, auditor, seed=turn, lines=dice.randint(30, 400))
        auditor.check(recovered(table))
    assert any(generations(table, bucket_region_id(n)) for n in range(2))
    table.merge()
    auditor.check(state(table))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_though_the_upkeep_is_killed_too(make_table: MakeTable) -> None:
    table, auditor = make_table(buckets=3, maintained_indexes=["id_idx"]), Auditor()
    dice = random.Random(11)
    for turn in range(5):
        stop = threading.Event()

        def keep_killing(stop: threading.Event = stop, seed: int = turn) -> None:
            mine = random.Random(seed)
            while not stop.is_set():
                with child("upkeep", table.uri) as process:
                    assert process.stdout is not None
                    process.stdout.readline()
                    stop.wait(mine.uniform(0.0, 1.5))

        killers = [threading.Thread(target=keep_killing) for _ in range(2)]
        for killer in killers:
            killer.start()
        try:
            run_producer(table, auditor, seed=turn, lines=dice.randint(300, 1500))
        finally:
            stop.set()
            for killer in killers:
                killer.join()
        auditor.check(recovered(table))
    table.merge()
    auditor.check(state(table))
    base = table.base().dataset
    assert base.count_rows() == len(state(table))
