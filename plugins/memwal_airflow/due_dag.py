"""The DAG that starts the DAGs of tables that are due: one task, ``start``.

The triggers of :mod:`memwal_airflow.triggers.due` update one asset for each shard of the tables,
and the task updates the assets of exactly the tables that are named. Airflow has no public call by
which a trigger updates more than its own asset, nor does a task that a trigger ends update any.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import closing
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, AssetAlias, AssetAny, task

import memwal.catalog
from memwal.jobs.job import RunState
from memwal.util.records import JsonMapping
from memwal_airflow import DAG_OPTIONS
from memwal_airflow.assets import due_asset, watched_asset
from memwal_airflow.skips import TaskSkipped, TaskSkipReason
from memwal_airflow.triggers.due import active_runs

DUE_DAG_ID = "memwal_due"

DUE_ALIAS = "memwal:due"
"""Alias of the assets that start the DAGs of tables."""

ACTIVE_RUNS = 16
"""Runs at once. With one, Airflow would lose events of tables that come while it is active. Their
tasks run one after the other: each sees the runs that the one before has started."""

RECENT = timedelta(minutes=10)
"""Runs of jobs that started at most this long before an event, or later, may have served it."""

_MAX_RUNS = 10_000

logger = logging.getLogger(__name__)

_DOC = """### Starts the DAGs of tables that are due

The triggerer polls the tables and updates `memwal://due/{shard}`; `start` updates the asset
`memwal://{name}/due` of each table that the event names. While this DAG is paused no table with
the schedule `@due` is maintained, until `start_unwatched` of `memwal_fleet` notices it.
"""


def build_due_dag(*, watchers: int = 1) -> DAG:
    """Build the DAG.

    Parameters
    ----------
    watchers : int
        Number of shards of the tables, each of which has a trigger.
    """
    assets = [watched_asset(shard, shards=watchers) for shard in range(watchers)]
    with DAG(
        dag_id=DUE_DAG_ID,
        description="Starts the DAGs of tables that are due",
        schedule=AssetAny(*assets),
        max_active_runs=ACTIVE_RUNS,
        **DAG_OPTIONS,
        tags=["memwal"],
        doc_md=_DOC,
        default_args={
            "owner": "memwal",
            "execution_timeout": timedelta(minutes=2),
            # Two that record the first update of one asset would fail, past all retries.
            "max_active_tis_per_dag": 1,
            "retries": 2,
            "retry_delay": timedelta(seconds=10),
            # Before the jobs of all tables: it takes a second, and others wait for it.
            "priority_weight": 1_000_000,
            "weight_rule": "absolute",
        },
    ) as dag:
        start()
    return dag


@task(outlets=[AssetAlias(DUE_ALIAS)])
def start(*, triggering_asset_events: Any = None, outlet_events: Any = None) -> list[str]:
    """Start the DAGs of the tables that the events name, that are still due and have no active run.

    Returns their names. Airflow records the updates of the assets with the success of the task, all
    of them or none: a process that dies before leaves the tables to its retry, or to the next
    announcement. A retry after a lost answer finds the runs that the first try has started. A
    process that is paused after it asked for active runs can start a table that another process has
    started since; the second run finds nothing due. Tables that are left out because a run of them
    is active are announced again once it has ended, see
    :class:`memwal_airflow.triggers.due.Announcements`.
    """
    events = [event for events in triggering_asset_events.values() for event in events]
    with closing(memwal.catalog.Catalog()) as catalog:
        due = still_due(catalog, events)
    active = active_runs(due)
    wanted = {table: jobs for table, jobs in due.items() if table not in active}
    for table, jobs in wanted.items():
        outlet_events[AssetAlias(DUE_ALIAS)].add(due_asset(table), extra={"jobs": jobs})
    if not wanted:
        raise TaskSkipped(
            "A run serves each table, or has served it since it was announced.",
            reason=TaskSkipReason.NOTHING_TO_DO,
        )
    logger.info("%d tables are started: %s", len(wanted), ", ".join(wanted))
    return list(wanted)


def still_due(catalog: memwal.catalog.Catalog, events: Iterable[Any]) -> dict[str, dict[str, str]]:
    """Return the announced jobs that no run has served since, by table.

    A table is left out while one of its jobs runs: that run of its DAG goes on with the jobs that
    are due next, and if it does not, the table is announced again. Numbers of runs are compared,
    and not times of different machines. An event that waited for hours is served as a new one is.
    """
    in_order = sorted(events, key=lambda event: event.timestamp)
    announced: dict[str, JsonMapping] = {}
    for event in in_order:
        announced |= event.extra["payload"]["tables"]
    if not announced:
        return {}
    since = in_order[0].timestamp - RECENT
    running = set()
    succeeded: dict[tuple[str, str], int] = {}
    for run in catalog.runs(since=since, limit=_MAX_RUNS):
        if run.state is RunState.RUNNING:
            running.add(run.table)
        elif run.state is RunState.SUCCEEDED:
            succeeded.setdefault((run.table, run.job), run.run_id)
    due = {
        table: {
            job: reason
            for job, reason in told["jobs"].items()
            if succeeded.get((table, job), 0) <= told["succeeded"].get(job, 0)
        }
        for table, told in announced.items()
        if table not in running
    }
    return {table: jobs for table, jobs in due.items() if jobs}
