"""One run of one job on a managed table: due, leased, recorded, and within the policy's limits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from memwal.errors import ConflictError, InvalidInputError, MemWalError
from memwal.fleet.order import Order, Skipped, Why
from memwal.maintenance.due import JOBS, Due, due
from memwal.maintenance.guard import Guard
from memwal.maintenance.results import JobResult, TaskRunner, run_in_process

if TYPE_CHECKING:
    from memwal.catalog import Catalog, ManagedTable
    from memwal.table import Table

logger = logging.getLogger(__name__)

Perform = Callable[[Order, Guard], JobResult]
"""Does an order, looking at the guard whenever it can."""


def run_job(
    catalog: Catalog,
    table_name: str,
    job: str,
    *,
    run: TaskRunner = run_in_process,
    perform: Perform | None = None,
    force: bool = False,
    dry_run: bool = False,
    regions: Collection[UUID] | None = None,
    wait: timedelta | None = None,
    max_tasks: int = 1,
    run_bytes: int | None = None,
    decided: Due | None = None,
    storage_options: Mapping[str, str] | None = None,
    external_id: str | None = None,
    ttl: timedelta | None = None,
    guard: Guard | None = None,
) -> JobResult | Skipped:
    """Run one job of a managed table under its lease, and record it.

    Parameters
    ----------
    catalog : Catalog
    table_name, job : str
        Name of the managed table; one of :data:`memwal.maintenance.due.JOBS`.
    run : callable
        Runs the tasks, here or elsewhere. Tasks that run elsewhere do not see the lease; what they
        commit is fenced by compare-and-swap alone.
    perform : callable, optional
        Does the whole job instead of this process: it is given the :class:`Order` (whose
        ``arguments()`` are those of the Spark application) and a guard that raises
        ``ConflictError`` when the lease is lost, to be called while it waits.
    force : bool, default False
        Do it now: due or not, in quiet hours, and also the regions that are held.
    dry_run : bool, default False
        Change nothing: a collection counts, other jobs are skipped with what they would do.
    regions : collection of UUID, optional
        Merge only these, as far as they are due.
    wait : timedelta, optional
        How long to wait when the job is being run already. None does not wait.
    max_tasks : int, default 1
        Into how many tasks it is divided at most.
    run_bytes : int, optional
        Most bytes that a merge takes in, beside the policy's ``merge_run_bytes``.
    decided : Due, optional
        What the caller found that is due; by default the table's status is held against its policy.
    storage_options : mapping, optional
        By default those that the catalog refers to. A reference to an Airflow connection can only
        be resolved by Airflow, which gives the options here.
    external_id : str, optional
        Id of the run where it was started.
    ttl : timedelta, optional
        Time to live of the lease, 60 s by default.
    guard : callable, optional
        A further look before each commit: for a caller that may want the job to stop.

    Returns
    -------
    JobResult or Skipped
        What it did, or why it did nothing.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    InvalidInputError
        There is no such job, or a region does not exist.
    ConflictError
        The lease was lost, or other commits kept getting in between. What was committed stays.
    MemWalError
        The job failed. It is recorded.
    """
    raise NotImplementedError
