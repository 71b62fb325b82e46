"""Exclusive access for a compaction that keeps losing commit races.

A compaction conflicts with merges and index builds that touch the same fragments, and the second
committer loses its work. A rewrite takes longer than a merge: where a merge comes every few seconds
and touches every fragment, a compaction would never commit, and each of its attempts would leave
index files behind.

A compaction that met too many other commits therefore acquires the table's exclusive lease. While
that lease is held, no merge and no index build of the table starts. The compaction waits up to 2
minutes for those that are running, acquires their leases, and makes one commit, whose size the
policy bounds. If a holder dies, others wait until its leases expire.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from memwal.catalog.leases import DEFAULT_TTL, Leases, job_resource
from memwal.errors import ConflictError

if TYPE_CHECKING:
    from memwal.jobs.job import Guard, JobResult

HELD_BACK = ("merge", "index")
"""Jobs that wait while another one has its turn, and that it waits for."""

# Longer than a run of these usually takes; the next compaction asks again.
_WAIT = timedelta(minutes=2)
_POLL_SECONDS = 0.5


@contextmanager
def turn(
    leases: Leases, table_name: str, *, indexes: Iterable[str], ttl: timedelta | None = None
) -> Iterator[Guard]:
    """Hold back the merges and index builds of a table, once those at work have ended.

    Parameters
    ----------
    leases : Leases
    table_name : str
        Name of the managed table.
    indexes : iterable of str
        Its maintained indexes, each of which can be built under a lease of its own.
    ttl : timedelta, optional
        Time to live of the leases, 60 s by default.

    Yields
    ------
    callable
        Raises ``ConflictError`` when the turn is lost; to be called before each commit.

    Raises
    ------
    ConflictError
        Somebody is at work for too long, or has a turn.
    """
    resources = [_turn(table_name)]
    resources += [job_resource(table_name, job) for job in HELD_BACK]
    resources += [job_resource(table_name, "index", part=name) for name in indexes]
    ends_at = time.monotonic() + _WAIT.total_seconds()
    with ExitStack() as stack:
        held = []
        for resource in resources:
            left = timedelta(seconds=max(ends_at - time.monotonic(), 0.0))
            lease = leases.acquire(resource, ttl=ttl or DEFAULT_TTL, wait=left)
            held.append(stack.enter_context(lease))

        def look() -> None:
            for lease in held:
                lease.check()

        yield look


def stand_back(leases: Leases, table_name: str, *, wait: timedelta | None) -> timedelta | None:
    """Let another job of a table have its turn.

    Parameters
    ----------
    leases : Leases
    table_name : str
        Name of the managed table.
    wait : timedelta, optional
        How long to wait for the end of the turn. None does not wait.

    Returns
    -------
    timedelta or None
        What is left of ``wait``.

    Raises
    ------
    ConflictError
        The turn was not over in time.
    """
    started = time.monotonic()
    while True:
        record = leases.find(_turn(table_name))
        passed = timedelta(seconds=time.monotonic() - started)
        left = None if wait is None else max(wait - passed, timedelta(0))
        if record is None or not record.held:
            return left
        if not left:
            raise ConflictError(
                f"a compaction of {table_name} has its turn ({record.holder}); merges and index "
                "builds wait for its commit, try again later"
            )
        time.sleep(min(_POLL_SECONDS, left.total_seconds()))


def was_kept_out(result: JobResult) -> bool:
    """Whether other commits kept a job from making any."""
    return bool(result.figures.get("rewrites_lost")) and not result.commits


def joined(first: JobResult, second: JobResult) -> JobResult:
    """What a job did before its turn, and in it."""
    names = first.figures | second.figures
    return replace(
        second,
        tasks=first.tasks + second.tasks,
        seconds=first.seconds + second.seconds,
        figures={name: first.figures.get(name, 0) + second.figures.get(name, 0) for name in names},
    )


def _turn(table_name: str) -> str:
    return job_resource(table_name, "turn")
