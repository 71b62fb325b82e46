"""How the retry of a killed task finds the application that it left, and takes its place.

What is needed is kept in Airflow's own store for task state, which outlives a try. Users who may
change task instances can write there: it only names one of the folders of this machine, and what is
in that folder tells which process may be waited for and ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from memwal.errors import ConflictError
from memwal_airflow.jobs import SparkJob, state_folder
from memwal_airflow.processes import ProcessId

if TYPE_CHECKING:
    from airflow.sdk import Context

    from memwal.catalog import Catalog

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
    job : SparkJob
        Its application, which still runs or has left its result.
    task : ProcessId
        The process of the task.
    regions : tuple of UUID or None
        The regions that it merges; None for all, or another job.
    """

    job: SparkJob
    task: ProcessId
    regions: tuple[UUID, ...] | None

    def give_leases_back(self, catalog: Catalog, table: str) -> None:
        """End the leases on a table that the process of the task held, if it is dead."""
        from memwal.catalog.leases import job_resource

        if self.task.running:
            log.info("The earlier try still runs as process %d.", self.task.pid)
            return
        if self.task.replaced:
            # Another process has its number, and may have leases by the same name.
            return
        holder = f"{self.job.host}:{self.task.pid}"
        for lease in catalog.leases.list():
            if lease.holder == holder and lease.resource.startswith(job_resource(table, "")):
                # It may have run out meanwhile, and somebody else may have it.
                with contextlib.suppress(ConflictError):
                    catalog.leases.release(lease.resource, token=lease.token)


def remember(context: Context, job: SparkJob, *, regions: Sequence[UUID] | None) -> None:
    """Keep what a retry needs to find an application."""
    store = context.get("task_state_store")
    if store is None:
        log.warning("Airflow gives this task no state: a retry will not find its application.")
        return
    state: dict[str, Any] = {
        "host": job.host,
        "folder": job.folder.name,
        "task": ProcessId.of(os.getpid()).to_dict(),
        "regions": None if regions is None else [str(region) for region in regions],
    }
    store.set(STATE_KEY, state)


def forget(context: Context) -> None:
    """Keep nothing any more: the application has ended, and its result is taken."""
    store = context.get("task_state_store")
    if store is not None:
        store.delete(STATE_KEY)


def find_earlier(context: Context) -> EarlierTry | None:
    """The application that an earlier try left on this machine, if it runs or has a result.

    What is left of one that died without a result is removed.
    """
    store = context.get("task_state_store")
    state: Any = None if store is None else store.get(STATE_KEY)
    if not state:
        return None
    try:
        host, name, regions = state["host"], state["folder"], state["regions"]
        task = ProcessId.from_dict(state["task"])
        merged = None if regions is None else tuple(UUID(region) for region in regions)
    except (KeyError, TypeError, ValueError, AttributeError):
        log.warning("The state of an earlier try cannot be read; it is not waited for.")
        forget(context)
        return None
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
    return EarlierTry(job=job, task=task, regions=merged)


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
