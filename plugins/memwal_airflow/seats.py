"""Check whether Airflow's triggerers have the seats that the tables need.

``memwal doctor --airflow`` runs ``python -m memwal_airflow.seats``, which prints them as JSON.
The library itself knows nothing of Airflow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

from airflow.configuration import conf
from airflow.jobs.job import Job
from airflow.models.dag import DagModel
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from memwal.catalog import Catalog
from memwal.jobs.table.store_check import CheckState, StoreCheck
from memwal.util.records import plain_value
from memwal_airflow.drain.settings import are_drained
from memwal_airflow.due_dag import DUE_DAG_ID
from memwal_airflow.links import DRAIN_DAG_ID
from memwal_airflow.provider.settings import DUE_WATCHERS
from memwal_airflow.triggers.due import TablesDueTrigger


def seat_checks(catalog: Catalog, session: Session) -> Iterator[StoreCheck]:
    """Yield the checks of the triggerers, the seats, and the triggers that watch the tables.

    ``session`` is one of Airflow's database.
    """
    watchers = DUE_WATCHERS.read()
    capacity = conf.getint("triggerer", "capacity")
    silence = conf.getfloat("triggerer", "triggerer_health_check_threshold")
    alive = list(
        session.scalars(
            select(Job.id).where(
                Job.job_type == "TriggererJob",
                Job.end_date.is_(None),
                Job.latest_heartbeat > datetime.now(UTC) - timedelta(seconds=silence),
            )
        )
    )
    tables = [table for table in catalog.list(enabled_only=True) if table.problem is None]
    if are_drained(tables):
        tables = [table for table in tables if not table.starts_when_due]
    sensors = sum(max(1, min(table.regions or 1, table.policy.sensor_groups)) for table in tables)

    state = CheckState.WARNING if len(alive) < watchers else CheckState.OK
    yield StoreCheck(
        "triggerers",
        state if alive else CheckState.ERROR,
        f"{len(alive)} have a heartbeat, and due_watchers is {watchers}",
        "" if state is CheckState.OK else f"start {watchers - len(alive)} more: airflow triggerer",
    )
    yield _seats(session, seats=len(alive) * capacity, watchers=watchers, sensors=sensors)
    yield _watchers(session, watchers=watchers)


def _seats(session: Session, *, seats: int, watchers: int, sensors: int) -> StoreCheck:
    """Compare the seats with the present triggers, and with the most that the tables need."""
    present = session.scalar(select(func.count(Trigger.id))) or 0
    most = watchers + sensors
    text = (
        f"{seats} in all, for {present} triggers now; the tables take {watchers}, and {most} if "
        "runs of all of them wait at once"
    )
    advice = f"raise [triggerer] capacity, or start more triggerers, for {most} and your own DAGs"
    if present > seats or seats <= watchers:
        return StoreCheck("seats", CheckState.ERROR, f"too few: {text}", advice)
    if seats < most:
        return StoreCheck("seats", CheckState.WARNING, f"runs wait for one another: {text}", advice)
    return StoreCheck("seats", CheckState.OK, text)


def _watchers(session: Session, *, watchers: int) -> StoreCheck:
    """Check that every shard of the tables is watched, and that the due DAG starts runs."""
    watched = len(watched_shards(session, shards=watchers))
    starts = DagModel.dag_id.in_([DUE_DAG_ID, DRAIN_DAG_ID])
    paused = session.scalar(
        select(DagModel.dag_id).where(starts, DagModel.is_paused, ~DagModel.is_stale)
    )
    text = f"{watched} of {watchers} shards of the tables are watched"
    if paused:
        return StoreCheck("watchers", CheckState.ERROR, f"{paused} is paused; {text}", "unpause it")
    if watched < watchers:
        return StoreCheck(
            "watchers",
            CheckState.ERROR,
            text,
            f"see whether Airflow has {DUE_DAG_ID} or {DRAIN_DAG_ID}, and a seat for each",
        )
    return StoreCheck("watchers", CheckState.OK, text)


def watched_shards(session: Session, *, shards: int) -> set[int]:
    """Return the shards of the tables that a trigger in a living triggerer watches."""
    path, _ = TablesDueTrigger().serialize()
    triggers = session.execute(
        select(Trigger, Job)
        .join(Job, Job.id == Trigger.triggerer_id)
        .where(Trigger.classpath == path)
    )
    watched = [trigger.kwargs for trigger, job in triggers if job.is_alive()]
    return {kwargs["shard"] for kwargs in watched if kwargs["shards"] == shards}


if __name__ == "__main__":
    with closing(Catalog()) as _catalog, create_session() as _session:
        print(json.dumps(plain_value(list(seat_checks(_catalog, _session)))))
