"""What a module of tests must not leave behind: environment variables, threads, processes."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil

_OF_PYTEST = "PYTEST_CURRENT_TEST"
# Libraries set these for as long as the process lives.
_OF_LIBRARIES = ("SPARK_", "PYSPARK_", "JAVA_HOME", "GX_ANALYTICS_ENABLED", "_RJEM_MALLOC_CONF")
# Servers that a whole session shares: Spark's gateway, PostgreSQL, the S3 emulator, Ceph, and
# the zygote of plays.
_SHARED = (
    "java",
    "pyspark.daemon",
    "multiprocessing",
    "spark-submit",
    "postgres",
    "ministack",
    "ceph-",
    "radosgw",
    "histories.child",
)
# A thread that was told to end, as those of an event loop that closes, may need a moment.
_SECONDS_TO_END = 5.0
# The standard library joins the threads of its pools at the end of the process.
_OF_POOLS = "concurrent.futures.thread"


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
        if changed and name != _OF_PYTEST and not name.startswith(_OF_LIBRARIES):
            yield f"environment variable {name}"


def _threads(before: Belongings) -> Iterator[str]:
    for thread in threading.enumerate():
        pooled = getattr(getattr(thread, "_target", None), "__module__", "") == _OF_POOLS
        if thread.ident in before.threads or thread.daemon or pooled:
            continue
        thread.join(_SECONDS_TO_END)
        if thread.is_alive():
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
        if not gone and not any(name in command for name in _SHARED):
            yield f"process {child.pid}: {command[:200]}"
