"""How the retry of a killed task finds the application that it left, and takes its place.

What is needed is kept in Airflow's own store for task state, which outlives a try. Users who may
change task instances can write there: it only names one of the folders of this machine, and what is
in that folder tells which process may be waited for and ended. Of a driver in a cluster it only
says that there may be one; the name of its pod follows from the task.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from memwal.errors import ConflictError
from memwal_airflow.spark.application import RunningJob, SparkJob, state_folder
from memwal_airflow.spark.processes import ProcessId

if TYPE_CHECKING:
    from airflow.sdk import Context

    from memwal.catalog import Catalog

FoundDriver = tuple[RunningJob, tuple[UUID, ...] | None]
"""A driver that was found in a cluster, and the regions that it merges."""

STATE_KEY = "memwal_spark_job"
OUTLIVE_SECONDS = 60.0
"""How long a retry waits for the end of a try that Airflow gave up."""

_POLL_SECONDS = 0.2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTry:
    """What a try of a task that was killed left behind.

    Attributes
    ----------
    job : RunningJob
        Its application, which still runs or has left its result.
    host : str
        Where the task ran.
    task : ProcessId or None
        The process of the task, where it ran on this machine.
    regions : tuple of UUID or None
        The regions that it merges; None for all, or another job.
    """

    job: RunningJob
    host: str
    task: ProcessId | None
    regions: tuple[UUID, ...] | None

    def give_leases_back(self, catalog: Catalog, table: str) -> None:
        """End the leases on a table that the process of the task held, if it is dead.

        Of a process on another machine nobody here knows; its leases run out.
        """
        from memwal.catalog.leases import job_resource

        if self.task is None:
            return
        if self.task.running:
            log.info("The earlier try still runs as process %d.", self.task.pid)
            return
        if self.task.replaced:
            # Another process has its number, and may have leases by the same name.
            return
        holder = f"{self.host}:{self.task.pid}"
        for lease in catalog.leases.list():
            if lease.holder == holder and lease.resource.startswith(job_resource(table, "")):
                # It may have run out meanwhile, and somebody else may have it.
                with contextlib.suppress(ConflictError):
                    catalog.leases.release(lease.resource, token=lease.token)


def remember(context: Context, job: RunningJob, *, regions: Sequence[UUID] | None) -> None:
    """Keep what a retry needs to find an application."""
    store = context.get("task_state_store")
    if store is None:
        log.warning("Airflow gives this task no state: a retry will not find its application.")
        return
    state: dict[str, Any] = {
        "host": socket.gethostname(),
        **job.known,
        "task": ProcessId.of(os.getpid()).to_dict(),
        "regions": None if regions is None else [str(region) for region in regions],
    }
    store.set(STATE_KEY, state)


def forget(context: Context) -> None:
    """Keep nothing any more: the application has ended, and its result is taken."""
    store = context.get("task_state_store")
    if store is not None:
        store.delete(STATE_KEY)


def find_earlier(
    context: Context, in_cluster: Callable[[], FoundDriver | None]
) -> EarlierTry | None:
    """The application that an earlier try left, if it runs or has a result.

    It ran on this machine, or its driver is in a cluster. What is left of one that died without a
    result is removed.

    Parameters
    ----------
    context : Context
    in_cluster : callable
        Looks for a driver in a cluster, where jobs of the task run in one.
    """
    store = context.get("task_state_store")
    state: Any = None if store is None else store.get(STATE_KEY)
    if not state:
        # Of what a later try was never told it can still find the driver.
        later = getattr(context["ti"], "try_number", 1) > 1
        return _driver_of(in_cluster(), host="", task=None) if later else None
    try:
        host, regions = state["host"], state["regions"]
        task = ProcessId.from_dict(state["task"])
        merged = None if regions is None else tuple(UUID(region) for region in regions)
        name = None if "pod" in state else state["folder"]
    except (KeyError, TypeError, ValueError, AttributeError):
        log.warning("The state of an earlier try cannot be read; it is not waited for.")
        forget(context)
        return None
    if "pod" in state:
        here = task if host == socket.gethostname() else None
        if here is not None:
            _outlive(here)
        found = _driver_of(in_cluster(), host=host, task=here)
        if found is None:
            forget(context)
        return found
    if host != socket.gethostname():
        log.info(
            "An earlier try started an application on %s, which cannot be watched from here; if "
            "its lease is in force, it is waited for.",
            host,
        )
        return None
    _outlive(task)
    # Compared with what is there: a name cannot lead elsewhere.
    folder = next((one for one in state_folder().iterdir() if one.name == name), None)
    job = None if folder is None else SparkJob.of(folder)
    if job is None or job.host != host:
        forget(context)
        return None
    if not job.running and job.result() is None:
        log.info("The application of an earlier try ended without a result.")
        job.end()
        job.clean_up()
        forget(context)
        return None
    return EarlierTry(job=job, host=host, task=task, regions=merged)


def _driver_of(
    found: FoundDriver | None, *, host: str, task: ProcessId | None
) -> EarlierTry | None:
    if found is None:
        return None
    job, regions = found
    return EarlierTry(job=job, host=host, task=task, regions=regions)


def _outlive(task: ProcessId) -> None:
    """Wait for the end of an earlier try that Airflow gave up while it ran.

    A scheduler that was taken for dead, or killed, leaves such tries. They learn of it with their
    next heartbeat, and end with their application; what is left of that is certain only then.
    """
    if task.pid == os.getpid() or not task.running:
        return
    log.info("The earlier try still runs as process %d; Airflow ends it soon.", task.pid)
    ends_at = time.monotonic() + OUTLIVE_SECONDS
    while task.running and time.monotonic() < ends_at:
        time.sleep(_POLL_SECONDS)
