import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from memwal_airflow.sensors.gate import TableGateSensor
from memwal_airflow.skips import TaskSkipReason
from memwal_airflow.triggers.gate import TRIGGER_GRACE, start_arguments
from memwal_airflow.version_compat import (
    START_IN_TRIGGERER,
    XCOM_SKIPMIXIN_KEY,
    TaskDeferred,
)
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
    options = {"start_trigger_args": ARGUMENTS, **options}
    return TableGateSensor(task_id="gate", table="flights", tasks=TASKS, **options)


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


def test_where_airflow_starts_nothing_in_the_triggerer_it_waits_there_if_nothing_is_due(
    flights: Any, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = replace(START_IN_TRIGGERER, since="99.0")
    monkeypatch.setattr("memwal_airflow.sensors.gate.START_IN_TRIGGERER", newer)
    gate = sensor(start_trigger_args=start_arguments("flights", TASKS, wait=60))
    gate.run_params = json.dumps({"jobs": ["compact"]})
    context["params"] = {"jobs": ["compact"]}
    with pytest.raises(TaskDeferred) as deferred:
        gate.execute(context)  # type: ignore[arg-type]
    assert deferred.value.timeout == timedelta(seconds=60) + TRIGGER_GRACE
    _, arguments = deferred.value.trigger.serialize()
    assert arguments == {
        "table": "flights",
        "tasks": TASKS,
        "shares": 1,
        "run_params": gate.run_params,
    }
    # A gate without a window, and one that opens, do not wait.
    with skips(TaskSkipReason.NOT_DUE):
        sensor().execute(context)  # type: ignore[arg-type]
    context["params"] = {}
    assert set(gate.execute(context)["jobs"]) == {"merge"}  # type: ignore[arg-type]
