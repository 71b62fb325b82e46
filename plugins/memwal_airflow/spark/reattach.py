"""Reattach the retry of a killed task to the Spark application that the earlier try started.

The state is in Airflow's store for task state, which users who may change task instances can write.
So the state only names a folder of this machine, and the content of that folder says which process
may be waited for and ended. For a driver in a cluster the state only says that there may be one;
the name of its pod follows from the task.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from airflow.sdk import Context

from memwal.errors import ConflictError
from memwal.util.records import JsonObject
from memwal_airflow.spark.application import RunningJob, SparkJob, state_folder
from memwal_airflow.spark.processes import ProcessId

if TYPE_CHECKING:
    from memwal.catalog import Catalog

STATE_KEY = "memwal_spark_job"
EARLIER_TRY_SECONDS = 60.0
"""How long a retry waits for the end of an earlier try that Airflow gave up."""

_POLL_SECONDS = 0.2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTry:
    """The application that a killed try of a task left behind: it runs, or has left its result."""

    job: RunningJob
    # Regions that a merge was restricted to; None for a merge of all, or for another job.
    regions: tuple[UUID, ...] | None
    host: str = ""  # The machine that the task ran on, if it is known.
    task: ProcessId | None = None  # The process of the task, if it ran on this machine.

    def release_leases(self, catalog: Catalog, table: str) -> None:
        """Release the leases on a table that the process of the task held, if it is dead.

        The state of a process on another machine is unknown here; its leases expire.
        """
        from memwal.catalog.leases import job_resource

        if self.task is None:
            return
        if self.task.running:
            logger.info("The earlier try still runs as process %d.", self.task.pid)
            return
        if self.task.replaced:
            # Another process has its pid, and may hold leases by the same name.
            return
        holder = f"{self.host}:{self.task.pid}"
        for lease in catalog.leases.list():
            if lease.holder == holder and lease.resource.startswith(job_resource(table, "")):
                # The lease may have expired since then, and another process may hold it.
                with contextlib.suppress(ConflictError):
                    catalog.leases.release(lease.resource, token=lease.token)


def save_state(context: Context, job: RunningJob, *, regions: Sequence[UUID] | None) -> None:
    """Store the state by which a retry finds an application."""
    store = context.get("task_state_store")
    if store is None:
        logger.warning("Airflow gives this task no state: a retry will not find its application.")
        return
    state: JsonObject = {
        "host": socket.gethostname(),
        **job.reattach_state,
        "task": asdict(ProcessId.of(os.getpid())),
        "regions": None if regions is None else [str(region) for region in regions],
    }
    store.set(STATE_KEY, state)


def clear_state(context: Context) -> None:
    """Delete the state: the application has ended, and its result is taken."""
    store = context.get("task_state_store")
    if store is not None:
        store.delete(STATE_KEY)


def find_earlier_try(
    context: Context, find_in_cluster: Callable[[], EarlierTry | None]
) -> EarlierTry | None:
    """Return the application that an earlier try left, if it runs or has a result.

    Removes the files or the pod of one that died without a result. ``find_in_cluster`` returns
    None where the jobs of the task do not run in a cluster.
    """
    store = context.get("task_state_store")
    state: Any = None if store is None else store.get(STATE_KEY)
    if not state:
        # The driver of a try that stored no state can still be found by the name of its pod.
        later = getattr(context["ti"], "try_number", 1) > 1
        return find_in_cluster() if later else None
    try:
        host, regions = state["host"], state["regions"]
        task = ProcessId.from_dict(state["task"])
        merged = None if regions is None else tuple(UUID(region) for region in regions)
        name = None if "pod" in state else state["folder"]
    except (KeyError, TypeError, ValueError, AttributeError):
        logger.warning(
            "The state of an earlier try is invalid, so its application is not waited for."
        )
        clear_state(context)
        return None
    if "pod" in state:
        local_task = task if host == socket.gethostname() else None
        if local_task is not None:
            _wait_for_exit(local_task)
        earlier = find_in_cluster()
        if earlier is None:
            clear_state(context)
            return None
        return replace(earlier, host=host, task=local_task)
    if host != socket.gethostname():
        logger.info(
            "An earlier try started an application on %s, which cannot be watched from here; if "
            "its lease is in force, it is waited for.",
            host,
        )
        return None
    _wait_for_exit(task)
    # Compared with the existing folders, so that a name cannot lead elsewhere.
    folder = next((path for path in state_folder().iterdir() if path.name == name), None)
    job = None if folder is None else SparkJob.of(folder)
    if job is None or job.host != host:
        clear_state(context)
        return None
    if not job.running and job.result() is None:
        logger.info("The application of an earlier try ended without a result.")
        job.end()
        job.clean_up()
        clear_state(context)
        return None
    return EarlierTry(job=job, host=host, task=task, regions=merged)


def _wait_for_exit(task: ProcessId) -> None:
    """Wait for the end of an earlier try that Airflow gave up while it ran.

    A scheduler that was taken for dead, or killed, leaves such tries. They notice it with their
    next heartbeat and end with their application. Only then is the state that the try left certain.
    """
    if task.pid == os.getpid() or not task.running:
        return
    logger.info("The earlier try still runs as process %d; Airflow ends it soon.", task.pid)
    ends_at = time.monotonic() + EARLIER_TRY_SECONDS
    while task.running and time.monotonic() < ends_at:
        time.sleep(_POLL_SECONDS)
