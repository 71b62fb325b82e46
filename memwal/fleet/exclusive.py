"""Exclusive access for a compaction that keeps losing commit races.

A compaction conflicts with merges and index builds that touch the same fragments, and the second
committer loses its work. A rewrite takes longer than a merge: where a merge comes every few seconds
and touches every fragment, a compaction would never commit, and each of its attempts would leave
index files behind.

A compaction whose rewrites were all lost to other commits therefore acquires the table's exclusive
lease. While that lease is held, no merge and no index build of the table starts. The compaction
waits up to 2 minutes for the merges and index builds that are running, acquires their leases, and
makes one commit, whose size the policy bounds. If a holder dies, others wait until its leases
expire.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta

from memwal.catalog.leases import DEFAULT_TTL, Leases, job_resource
from memwal.errors import ConflictError
from memwal.jobs.job import Guard, JobResult
from memwal.util.clock import Duration, duration

# Jobs that do not start while the exclusive lease is held; its holder acquires their leases.
BLOCKED_JOBS = ("merge", "index")

# Longer than these jobs usually run; after a timeout the next compaction tries again.
_WAIT = timedelta(minutes=2)
_POLL_SECONDS = 0.5


@contextmanager
def exclusive_lease(
    leases: Leases, table_name: str, *, indexes: Iterable[str], ttl: Duration | None = None
) -> Iterator[Guard]:
    """Block the merges and index builds of a table, once the running ones have ended.

    ``indexes`` are the maintained ones, each of which can be built under a lease of its own. Yields
    a function to be called before each commit, which raises ``ConflictError`` when one of the
    leases is lost. Raises the same if a running job did not end in time, or another process holds
    the exclusive lease.
    """
    resources = [_exclusive_resource(table_name)]
    resources += [job_resource(table_name, job) for job in BLOCKED_JOBS]
    resources += [job_resource(table_name, "index", part=name) for name in indexes]
    deadline = time.monotonic() + _WAIT.total_seconds()
    with ExitStack() as stack:
        acquired = []
        for resource in resources:
            remaining = timedelta(seconds=max(deadline - time.monotonic(), 0.0))
            lease = leases.acquire(resource, ttl=ttl or DEFAULT_TTL, wait=remaining)
            acquired.append(stack.enter_context(lease))

        def check_leases() -> None:
            for lease in acquired:
                lease.check()

        yield check_leases


def wait_for_exclusive(
    leases: Leases, table_name: str, *, wait: Duration | None
) -> timedelta | None:
    """Wait until no job holds the exclusive lease of a table; return the rest of ``wait``.

    None does not wait. Raises ``ConflictError`` if the lease was not released in time.
    """
    started = time.monotonic()
    while True:
        record = leases.find(_exclusive_resource(table_name))
        elapsed = timedelta(seconds=time.monotonic() - started)
        remaining = None if wait is None else max(duration(wait, "wait") - elapsed, timedelta(0))
        if record is None or not record.held:
            return remaining
        if not remaining:
            raise ConflictError(
                f"a compaction holds the exclusive lease of {table_name} ({record.holder}); merges "
                "and index builds wait for its commit, try again later"
            )
        time.sleep(min(_POLL_SECONDS, remaining.total_seconds()))


def lost_all_rewrites(result: JobResult) -> bool:
    """Return whether a compaction lost rewrites to other commits and made no commit itself."""
    return bool(result.metrics.get("rewrites_lost")) and not result.commits


def combined_result(first: JobResult, second: JobResult) -> JobResult:
    """Add up the results of a job before and under the exclusive lease."""
    names = first.metrics | second.metrics
    return replace(
        second,
        tasks=first.tasks + second.tasks,
        seconds=first.seconds + second.seconds,
        metrics={name: first.metrics.get(name, 0) + second.metrics.get(name, 0) for name in names},
    )


def _exclusive_resource(table_name: str) -> str:
    return job_resource(table_name, "exclusive")
