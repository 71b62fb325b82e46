"""Airflow listener that records failures of a table's tasks and DAG, and sends its events.

It also has Airflow's components import early the modules that tasks need, see
:mod:`memwal_airflow.preload`.

A failure is recorded in the catalog once no retry follows, and cleared by the next success: a job
by its recorded run, the reading of the status by the recorded status, the rest here. The task
``notify`` of the fleet DAG sends all events regularly.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl

from memwal_airflow import DAG_PREFIX
from memwal_airflow.version_compat import conf

_TIMEOUT_SECONDS = 5.0
_PACKAGE = __name__.partition(".")[0]
_FACTORY = "dag_factory.py"

# The end of a sensor's window, which is no failure to read the table.
_WINDOW_OVER = "AirflowSensorTimeout"
# A trigger records its own; the regions that a merge skips are recorded with its run.
_NO_NEWS = ("TaskDeferralError", "RegionsSkipped")

logger = logging.getLogger(__name__)

# Imports are late: every process of Airflow loads its listeners, and few of them call these.


@hookimpl
def on_starting(component: object) -> None:
    """Import modules for the children of the scheduler, the DAG processor or the triggerer."""
    # Tasks call this as well, with a component of another type.
    if type(component).__name__ == "Job" and "LocalExecutor" in conf.get("core", "executor"):
        from memwal_airflow.preload import preload

        preload()


@hookimpl
def on_task_instance_failed(previous_state: object, task_instance: Any, error: object) -> None:
    """Record the failure, and send the events of the table, in the process of the failed task."""
    subject = _subject(task_instance)
    dag_id = str(task_instance.dag_id)
    if subject is not None:
        table = subject[0]
    elif dag_id.startswith(DAG_PREFIX):
        table = dag_id.removeprefix(DAG_PREFIX)
    else:
        return
    from memwal.catalog.records import SENSOR_JOB
    from memwal_airflow.notifications.events import notify_events
    from memwal_airflow.notifications.failures import failure_reason, record_failure

    kind = type(error).__name__
    if subject is None or task_instance.state == "up_for_retry":
        pass
    elif kind == _WINDOW_OVER:
        text = f"the task {task_instance.task_id} of {dag_id} waited in vain"
        record_failure(table, SENSOR_JOB, text)
    elif kind not in _NO_NEWS:
        known = error if isinstance(error, BaseException | str) else None
        reason = f"{failure_reason(known)} (task {task_instance.task_id} of {dag_id})"
        record_failure(table, subject[1], reason)
    # One attempt: the task ``notify`` sends the events that this call does not.
    sent = notify_events(tables=[table], attempts=1, timeout=_TIMEOUT_SECONDS)
    if sent:
        logger.info("%d events of %s were sent", sent, table)


@hookimpl
def on_task_instance_success(previous_state: object, task_instance: Any) -> None:
    """Clear the failures that the success ends: of the DAG, of the status, and of sensors."""
    subject = _subject(task_instance)
    if subject is None:
        return
    from memwal.catalog.records import DAG_JOB, SENSOR_JOB, STATUS_JOB
    from memwal_airflow.notifications.failures import clear_failures

    table, job = subject
    sensor = (STATUS_JOB, SENSOR_JOB) if job == STATUS_JOB else ()
    clear_failures(table, (DAG_JOB, *sensor))


@hookimpl
def on_new_dag_import_error(filename: str, stacktrace: str) -> None:
    """Record that the DAGs of the tables cannot be built, in the DAG processor."""
    _record_import_error(stacktrace)


@hookimpl
def on_existing_dag_import_error(filename: str, stacktrace: str) -> None:
    """Record that the DAGs of the tables still cannot be built."""
    _record_import_error(stacktrace)


def _record_import_error(stacktrace: str) -> None:
    if _FACTORY not in stacktrace:
        return
    from memwal_airflow.notifications.failures import record_dag_failure, traceback_reason

    record_dag_failure(traceback_reason(stacktrace))


def _subject(task_instance: Any) -> tuple[str, str] | None:
    """Return table and job of a task of this package on a managed table, else None."""
    task = getattr(task_instance, "task", None)
    if not any(kind.__module__.partition(".")[0] == _PACKAGE for kind in type(task).__mro__):
        return None
    table, job = getattr(task, "table", None), getattr(task, "job", None)
    return (table, job) if isinstance(table, str) and isinstance(job, str) else None
