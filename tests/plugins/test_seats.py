"""The seats of triggerers that tables need, by the settings and the database of Airflow."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from memwal_airflow.seats import seat_checks
from memwal_airflow.triggers.due import TablesDueTrigger
from typer.testing import CliRunner

from memwal.catalog import Catalog, Policy
from memwal.cli.commands.app import app


@pytest.fixture
def session(airflow_database: None) -> Iterator[Any]:
    """A session whose changes are undone."""
    from airflow.jobs.job import Job
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session(scoped=False) as session:
        session.execute(delete(Job))
        session.execute(delete(Trigger))
        yield session
        session.rollback()


def triggerer(session: Any, *, silent: float = 0.0) -> int:
    from airflow.jobs.job import Job

    job = Job()
    job.job_type, job.state = "TriggererJob", "running"
    job.latest_heartbeat = datetime.now(UTC) - timedelta(seconds=silent)
    session.add(job)
    session.flush()
    return int(job.id)


def trigger(session: Any, path: str, arguments: dict[str, Any], triggerer: int | None) -> None:
    from airflow.models.trigger import Trigger

    row = Trigger(path, arguments)
    row.triggerer_id = triggerer
    session.add(row)
    session.flush()


@pytest.fixture
def states(session: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give capacity and watchers; get the states of the checks."""

    def check(*, capacity: int, watchers: int = 1) -> dict[str, str]:
        monkeypatch.setenv("AIRFLOW__TRIGGERER__CAPACITY", str(capacity))
        monkeypatch.setenv("AIRFLOW__MEMWAL__DUE_WATCHERS", str(watchers))
        checks = list(seat_checks(catalog, session))
        assert all(check.advice for check in checks if check.state != "ok")
        return {check.name: check.state.value for check in checks}

    return check


def test_without_a_heartbeat_nothing_is_watched(session: Any, states: Any) -> None:
    triggerer(session, silent=3600)
    assert states(capacity=1000) == {
        "triggerers": "error",
        "seats": "error",
        "watchers": "error",
    }


def test_seats_for_the_tables_and_for_what_is_there(
    session: Any, catalog: Catalog, states: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        catalog.register(f"t{number}", uri=f"/t{number}", policy=Policy())
    catalog.register("off", uri="/off", enabled=False)
    alive = triggerer(session)
    trigger(session, *TablesDueTrigger().serialize(), alive)
    assert states(capacity=6) == {"triggerers": "ok", "seats": "ok", "watchers": "ok"}
    # Five gates may wait at once.
    assert states(capacity=5)["seats"] == "warning"
    assert states(capacity=1)["seats"] == "error"
    # None of them has a gate if one DAG does what is due of all.
    monkeypatch.setenv("AIRFLOW__MEMWAL__TABLE_DAGS", "drain")
    assert states(capacity=2)["seats"] == "ok"
    monkeypatch.delenv("AIRFLOW__MEMWAL__TABLE_DAGS")
    for _ in range(6):
        trigger(session, "of.a.User", {}, None)
    assert states(capacity=6)["seats"] == "error"
    triggerer(session)
    assert states(capacity=6)["seats"] == "ok"


def test_each_shard_has_a_watcher(session: Any, states: Any) -> None:
    first, second = triggerer(session), triggerer(session)
    trigger(session, *TablesDueTrigger(shard=0, shards=2).serialize(), first)
    assert states(capacity=1000, watchers=2)["watchers"] == "error"
    trigger(session, *TablesDueTrigger(shard=1, shards=2).serialize(), second)
    assert states(capacity=1000, watchers=2) == {
        "triggerers": "ok",
        "seats": "ok",
        "watchers": "ok",
    }
    assert states(capacity=1000, watchers=3)["triggerers"] == "warning"


@pytest.mark.slow
def test_the_doctor_asks_a_process_of_airflow(airflow_database: None, catalog: Catalog) -> None:
    done = CliRunner().invoke(app, ["doctor", "--airflow", "--json"])
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert [check["name"] for check in told["checks"]] == ["triggerers", "seats", "watchers"]
    assert told["errors"] == 3
