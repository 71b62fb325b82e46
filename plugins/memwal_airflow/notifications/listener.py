"""Tells of what went wrong as soon as a maintenance task failed, beside the regular look."""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl

from memwal_airflow import DAG_PREFIX

_TIMEOUT_SECONDS = 5.0

log = logging.getLogger(__name__)


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    """Look at the table whose task failed; in the process of the task, which ends right after."""
    dag_id = str(task_instance.dag_id)
    if not dag_id.startswith(DAG_PREFIX):
        return
    # Every process of Airflow loads its listeners; few of them ever come here.
    from memwal_airflow.notifications.events import notify_events

    # One try: the regular look tells what this one does not.
    told = notify_events(
        tables=[dag_id.removeprefix(DAG_PREFIX)], attempts=1, timeout=_TIMEOUT_SECONDS
    )
    if told:
        log.info("%d events of %s were told", told, dag_id)
