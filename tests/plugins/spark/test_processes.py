"""Processes that are found again by their number and start, and ended with their kin."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import psutil
import pytest
from memwal_airflow.spark.processes import ProcessId, end_session

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "
SLEEP = "time.sleep(600)"
PARENT = (
    "import subprocess, sys, time; "
    f"subprocess.Popen([sys.executable, '-c', {STUBBORN + SLEEP!r}]); "
)


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Return a function that runs code in a session of its own, until it has printed a line."""
    started = []

    def run(code: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_a_family_is_ended_even_where_it_ignores_the_signal(
    start: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    process = start(PARENT + SLEEP)
    (child,) = psutil.Process(process.pid).children()
    leader = ProcessId.of(process.pid)
    assert ProcessId.from_dict(asdict(leader)) == leader
    assert leader.running
    end_session(leader)
    assert not leader.running
    assert process.wait(120) == -signal.SIGTERM
    assert not is_alive(child)
    end_session(leader)


def test_what_a_dead_leader_left_is_ended_too(
    start: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    process = start(PARENT + SLEEP)
    leader = ProcessId.of(process.pid)
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    process.wait(120)
    assert child.is_running()
    assert not leader.running
    end_session(leader)
    assert not is_alive(child)


def test_another_process_with_the_same_number_is_left_alone(
    start: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    process = start("import time; print(1, flush=True); " + SLEEP)
    other = replace(ProcessId.of(process.pid), created=1.0)
    assert other.replaced
    assert not other.running
    end_session(other)
    assert process.poll() is None


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
