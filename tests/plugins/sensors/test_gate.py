from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.bases.skipmixin import XCOM_SKIPMIXIN_KEY
from memwal_airflow.sensors.gate import TableGateSensor
from memwal_airflow.skips import TaskSkipReason
from memwal_airflow.triggers.gate import start_arguments
from support.airflow.skips import skips

from memwal.catalog import Catalog, Policy
from memwal.catalog.records import SENSOR_JOB

TASKS = {"merge": "merge", "compact": "compact"}
ARGUMENTS = start_arguments("flights", TASKS, wait=0)


@pytest.fixture
def flights(backlog: Any, catalog: Catalog) -> Any:
    policy = Policy(merge_at_generations=4, merge_at_age_seconds=1e9)
    catalog.register("flights", uri=backlog.uri, policy=policy)
    return backlog


def sensor(**options: Any) -> TableGateSensor:
    return TableGateSensor(
        task_id="gate", table="flights", tasks=TASKS, start_trigger_args=ARGUMENTS, **options
    )


def test_a_worker_evaluates_the_gate_if_no_triggerer_does(
    flights: Any, catalog: Catalog, context: dict[str, Any]
) -> None:
    """Airflow resumes the task so after the timeout of the trigger, and after its failure."""
    failed = {"error": "Trigger timeout"}
    value: Any = sensor().resume_execution("__fail__", failed, context)  # type: ignore[arg-type]
    assert set(value["jobs"]) == {"merge"}
    assert context["ti"].pushed[XCOM_SKIPMIXIN_KEY] == {"followed": ["merge", "compact"]}
    assert [failed.job for failed in catalog.backoffs.failed_jobs()] == [SENSOR_JOB]
    # The next gate that is answered ends it.
    sensor().execute(context)  # type: ignore[arg-type]
    assert catalog.backoffs.failed_jobs() == []


def test_nothing_due_skips_all_tasks(flights: Any, context: dict[str, Any]) -> None:
    context["params"] = {"jobs": ["compact"]}
    with skips(TaskSkipReason.NOT_DUE):
        sensor().execute(context)  # type: ignore[arg-type]
    assert context["ti"].pushed[XCOM_SKIPMIXIN_KEY] == {"followed": []}


def test_quiet_hours_are_told(flights: Any, catalog: Catalog, context: dict[str, Any]) -> None:
    policy = Policy(
        merge_at_generations=4, merge_at_age_seconds=1e9, quiet_hours=("00:00-23:59 UTC",)
    )
    catalog.update("flights", policy=policy)
    with skips(TaskSkipReason.QUIET):
        sensor().execute(context)  # type: ignore[arg-type]


def test_of_a_table_that_cannot_be_read_all_tasks_may_begin(context: dict[str, Any]) -> None:
    sensor().execute(context)  # type: ignore[arg-type]
    assert context["ti"].pushed[XCOM_SKIPMIXIN_KEY] == {"followed": ["merge", "compact"]}


def test_a_sensor_of_a_share_is_due_for_its_own_regions(
    flights: Any, context: dict[str, Any]
) -> None:
    hot = sorted([flights.hot, flights.cold]).index(flights.hot)
    assert sensor(shares=2, share=hot).execute(context)["regions"].keys() == {flights.hot}  # type: ignore[arg-type]
    with skips(TaskSkipReason.NOT_DUE):
        sensor(shares=2, share=1 - hot).execute(context)  # type: ignore[arg-type]
    assert XCOM_SKIPMIXIN_KEY not in context["ti"].pushed
