"""Airflow listener that sends a table's events as soon as one of its maintenance tasks fails.

The task ``notify`` of the fleet DAG sends all events regularly.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl

from memwal_airflow import DAG_PREFIX

_TIMEOUT_SECONDS = 5.0

log = logging.getLogger(__name__)


@hookimpl
def on_task_instance_failed(previous_state: object, task_instance: Any, error: object) -> None:
    """Send the events of the table, in the process of the failed task, which ends right after."""
    dag_id = str(task_instance.dag_id)
    if not dag_id.startswith(DAG_PREFIX):
        return
    # Imported late: every process of Airflow loads its listeners, and few of them call this.
    from memwal_airflow.notifications.events import notify_events

    # One attempt: the task ``notify`` sends what this call does not.
    sent = notify_events(
        tables=[dag_id.removeprefix(DAG_PREFIX)], attempts=1, timeout=_TIMEOUT_SECONDS
    )
    if sent:
        log.info("%d events of %s were sent", sent, dag_id)
