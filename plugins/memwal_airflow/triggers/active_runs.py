"""Ask Airflow which tables have a DAG run that has not ended."""

from __future__ import annotations

from collections.abc import Iterable

from memwal_airflow import DAG_PREFIX


def active_runs(tables: Iterable[str]) -> set[str]:
    """Return those of ``tables`` of which a run of their DAG is queued or running.

    A request for each table, for a task or a thread of a trigger. Of a table whose asset was
    updated, and whose run the scheduler has not created yet, Airflow tells none.
    """
    # The process that runs tasks or triggers has imported it; those that parse DAGs need not.
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = ["queued", "running"]
    return {
        table
        for table in tables
        if RuntimeTaskInstance.get_dr_count(f"{DAG_PREFIX}{table}", states=states)
    }
