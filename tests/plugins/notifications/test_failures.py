"""What fails in Airflow is the last error of the table, until the same succeeds."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import TaskDeferralError
from memwal_airflow.notifications import listener
from memwal_airflow.notifications.failures import failure_reason, traceback_reason
from memwal_airflow.operators.maintenance import MemWalMergeOperator
from memwal_airflow.sensors.table import TableBacklogSensor
from memwal_airflow.skips import RegionsSkipped
from memwal_airflow.spark.application import SparkApplicationError
from memwal_airflow.triggers import table as table_triggers
from memwal_airflow.triggers.readings import SharedReadings
from memwal_airflow.version_compat import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
)

from memwal.catalog import Catalog
from memwal.catalog.records import SENSOR_JOB
from memwal.errors import InvalidInputError, StoreAccessError


class ForeignOperator(BaseOperator):
    """An operator that has the same attributes, and is not ours."""

    table = "flights"
    job = "merge"


def task_of(task: Any, *, state: str = "failed", dag_id: str = "memwal__flights") -> Any:
    return SimpleNamespace(task=task, task_id=task.task_id, dag_id=dag_id, state=state)


MERGE = MemWalMergeOperator(task_id="merge", table="flights")
SENSOR = TableBacklogSensor(task_id="wait", table="flights")


@pytest.fixture
def flights(catalog: Catalog) -> Catalog:
    for name in ("flights", "trains"):
        catalog.register(name, uri=f"/{name}")
    return catalog


def recorded(catalog: Catalog) -> dict[tuple[str, str], str]:
    return {(one.table, one.job): one.reason for one in catalog.backoffs.failed_jobs()}


@pytest.mark.parametrize(("task", "job"), [(MERGE, "merge"), (SENSOR, "status")])
def test_the_last_try_of_a_task_is_recorded(flights: Catalog, task: Any, job: str) -> None:
    error = StoreAccessError("no rights; renew the credentials")
    listener.on_task_instance_failed(None, task_of(task, state="up_for_retry"), error)
    assert recorded(flights) == {}
    listener.on_task_instance_failed(None, task_of(task, dag_id="of_a_user"), error)
    ((key, reason),) = recorded(flights).items()
    assert key == ("flights", job)
    assert reason.startswith("StoreAccessError: no rights")


@pytest.mark.parametrize(
    "task",
    [
        ForeignOperator(task_id="merge"),
        MemWalMergeOperator(task_id="merge", table_uri="/data/t.lance"),
    ],
)
def test_tasks_of_no_managed_table_are_not(flights: Catalog, task: Any) -> None:
    listener.on_task_instance_failed(None, task_of(task), "boom")
    listener.on_task_instance_success(None, task_of(task))
    assert recorded(flights) == {}


def test_the_end_of_the_window_of_a_sensor_is_a_state_of_its_own(flights: Catalog) -> None:
    listener.on_task_instance_failed(None, task_of(SENSOR), TaskDeferralError("Trigger failure"))
    assert recorded(flights) == {}
    listener.on_task_instance_failed(None, task_of(SENSOR), AirflowSensorTimeout("over"))
    assert list(recorded(flights)) == [("flights", SENSOR_JOB)]
    listener.on_task_instance_success(None, task_of(SENSOR))
    assert recorded(flights) == {}


def test_regions_that_a_merge_skips_do_not_delay_the_merge_of_the_others(flights: Catalog) -> None:
    listener.on_task_instance_failed(None, task_of(MERGE), RegionsSkipped("a file is lost"))
    assert recorded(flights) == {}


def test_a_trigger_records_why_it_gives_up(
    flights: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise StoreAccessError("no rights; renew the credentials")

    trigger = table_triggers.TableTrigger(
        condition="BacklogDue",
        table="flights",
        poke_seconds=0.0,
        window_ends_at=0.0,
        soft_fail=True,
        region_ids=None,
        policy={},
    )

    async def run() -> None:
        readings = SharedReadings(read=fail)
        monkeypatch.setattr(table_triggers, "shared_readings", lambda: readings)
        async for _ in trigger.run():
            raise AssertionError("it cannot be read")

    with pytest.raises(StoreAccessError):
        asyncio.run(run())
    assert recorded(flights) == {
        ("flights", "status"): "StoreAccessError: no rights; renew the credentials"
    }


def test_a_success_ends_the_failure_to_read_and_to_build_the_dag(flights: Catalog) -> None:
    for job in ("status", "dag", "merge"):
        flights.backoffs.record_failure("flights", job, "no")
    listener.on_task_instance_success(None, task_of(MERGE))
    # The run of the merge, which the catalog records, ends that of the merge.
    assert set(recorded(flights)) == {("flights", "status"), ("flights", "merge")}
    listener.on_task_instance_success(None, task_of(SENSOR))
    assert set(recorded(flights)) == {("flights", "merge")}


def test_a_dag_file_that_cannot_be_imported_stops_every_table(flights: Catalog) -> None:
    flights.update("trains", enabled=False)
    trace = 'File "/x/memwal_airflow/dag_factory.py", line 3\nmemwal.errors.InvalidInputError: no\n'
    listener.on_new_dag_import_error("dags/memwal_tables.py", trace)
    assert recorded(flights) == {("flights", "dag"): "InvalidInputError: no"}
    listener.on_existing_dag_import_error("dags/other.py", "ImportError: of somebody else")
    assert recorded(flights) == {("flights", "dag"): "InvalidInputError: no"}


def test_a_catalog_that_does_not_answer_fails_nothing_more(
    flights: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMWAL_CATALOG_URL", "sqlite:////nowhere/at/all.db")
    listener.on_task_instance_failed(None, task_of(MERGE), "boom")
    listener.on_task_instance_success(None, task_of(SENSOR))
    listener.on_new_dag_import_error("f", "dag_factory.py\nValueError: x")


def caused(by: Exception) -> Exception:
    error = AirflowFailException("as Airflow sees it")
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InvalidInputError("one\n two"), "InvalidInputError: one two"),
        (caused(InvalidInputError("the cause")), "InvalidInputError: the cause"),
        (SparkApplicationError("Spark failed"), "SparkApplicationError: Spark failed"),
        (AirflowFailException("2 errors"), "AirflowFailException: 2 errors"),
        # The message of a secrets backend is not ours to show.
        (AirflowException("hush"), "AirflowException"),
        (ValueError("hush"), "ValueError"),
        ("killed", "killed"),
    ],
)
def test_reasons_tell_no_secret(error: Exception | str, reason: str) -> None:
    assert failure_reason(error) == reason


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        ("Traceback\n  File x\na.b.SomeError: why: not\n", "SomeError: why: not"),
        ("KeyError", "KeyError"),
        ("odd line, with a comma", "odd line, with a comma"),
    ],
)
def test_the_end_of_a_traceback(trace: str, reason: str) -> None:
    assert traceback_reason(trace) == reason
    assert traceback_reason("")
