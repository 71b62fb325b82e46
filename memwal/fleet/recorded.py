"""What is done to a managed table beside the jobs of its policy: leased and recorded like those."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

from memwal.errors import ConflictError
from memwal.fleet.order import Skipped, Why
from memwal.maintenance.guard import Guard
from memwal.maintenance.results import JobResult

if TYPE_CHECKING:
    from memwal.catalog import Catalog


def run_recorded(
    catalog: Catalog,
    table_name: str,
    name: str,
    perform: Callable[[Guard], JobResult],
    *,
    instead_of: Sequence[str] = (),
    wait: timedelta | None = None,
    ttl: timedelta | None = None,
    external_id: str | None = None,
    guard: Guard | None = None,
) -> JobResult | Skipped:
    """Do something to a managed table under leases, and record it.

    Parameters
    ----------
    catalog : Catalog
    table_name : str
        Name of the managed table.
    name : str
        What it is called in the record, and what is leased, such as ``checkpoint``.
    perform : callable
        Does it, calling the guard it is given before each commit, or while it waits.
    instead_of : sequence of str
        Jobs that are not to run meanwhile, since this does their work: their leases are taken
        too, in this order.
    wait : timedelta, optional
        How long to wait for all of the leases. None does not wait.
    ttl : timedelta, optional
        Time to live of the leases, 60 s by default.
    external_id : str, optional
        Id of the run where it was started.
    guard : callable, optional
        A further look, for a caller that may want it to stop.

    Returns
    -------
    JobResult or Skipped
        What it did, or that somebody else is at work.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    ConflictError
        A lease was lost.
    """
    from memwal.catalog.leases import DEFAULT_TTL, job_resource

    catalog.get(table_name)
    ends_at = None if wait is None else time.monotonic() + wait.total_seconds()
    with ExitStack() as stack:
        leases = []
        for job in (name, *instead_of):
            left = None if ends_at is None else max(ends_at - time.monotonic(), 0.0)
            try:
                lease = catalog.leases.acquire(
                    job_resource(table_name, job),
                    ttl=ttl or DEFAULT_TTL,
                    wait=None if left is None else timedelta(seconds=left),
                )
            except ConflictError as error:
                return Skipped(job=name, table=table_name, why=Why.AT_WORK, reason=str(error))
            leases.append(stack.enter_context(lease))

        def look() -> None:
            for lease in leases:
                lease.check()
            if guard is not None:
                guard()

        run = stack.enter_context(
            catalog.record_run(table_name, name, external_id=external_id, lease=leases[0])
        )
        look()
        result = perform(look)
        run.finish(result)
    return result
