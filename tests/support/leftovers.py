"""What a module of tests must not leave behind: environment variables, threads, processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil

_OF_PYTEST = "PYTEST_CURRENT_TEST"
# Spark sets these for the process that it runs in, and its gateway lives as long as the process.
_OF_SPARK = frozenset({"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "JAVA_HOME", "SPARK_HOME"})
_LIVES_ON = ("java", "pyspark.daemon", "multiprocessing", "spark-submit")
# The standard library joins these at the end of the process; memwal keeps pools for it.
_POOL_THREAD = "ThreadPoolExecutor"


@dataclass(frozen=True)
class Belongings:
    """Environment, threads and child processes of this process at one time."""

    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    threads: frozenset[int | None] = field(
        default_factory=lambda: frozenset(thread.ident for thread in threading.enumerate())
    )
    processes: frozenset[int] = field(
        default_factory=lambda: frozenset(child.pid for child in psutil.Process().children())
    )


def leftovers(before: Belongings) -> list[str]:
    """Describe what has been added since, or changed, and should not have been."""
    return [*_variables(before), *_threads(before), *_processes(before)]


def _variables(before: Belongings) -> Iterator[str]:
    now = dict(os.environ)
    for name in sorted(before.environment.keys() | now.keys()):
        changed = before.environment.get(name) != now.get(name)
        if changed and name != _OF_PYTEST and name not in _OF_SPARK:
            yield f"environment variable {name}"


def _threads(before: Belongings) -> Iterator[str]:
    for thread in threading.enumerate():
        pooled = thread.name.startswith(_POOL_THREAD)
        if thread.ident not in before.threads and not thread.daemon and not pooled:
            yield f"thread {thread.name}"


def _processes(before: Belongings) -> Iterator[str]:
    for child in psutil.Process().children():
        if child.pid in before.processes:
            continue
        try:
            command = " ".join(child.cmdline())
            gone = child.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            continue
        if not gone and not any(name in command for name in _LIVES_ON):
            yield f"process {child.pid}: {command[:200]}"
