"""The DAG of fleet-wide tasks: discovery, the catalog, verification, notifications.

::

    list_folders -> register_folder (mapped over folders)
    prune -> export
    clean_up
    choose_tables -> verify (mapped over tables)
    start_unwatched
    notify

Without drivers in a cluster there is no ``clean_up``. The branches are independent, and each task
that fails fails the run.
"""

from __future__ import annotations

import logging
import random
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, AssetAlias, get_current_context, get_parsing_context, task

import memwal.catalog
from memwal.catalog.records import START_JOB, ManagedTable, read_snapshot
from memwal.errors import MemWalError
from memwal.fleet.health import is_unwatched
from memwal.spark.result_store import clean_results
from memwal.util.records import JsonObject
from memwal_airflow import DAG_OPTIONS
from memwal_airflow.assets import due_asset, unwatched_asset
from memwal_airflow.dag_factory import snapshot_path
from memwal_airflow.drain.dag import build_drain_dag
from memwal_airflow.drain.operator import pool_of
from memwal_airflow.drain.settings import are_drained, exported_tables
from memwal_airflow.due_dag import DUE_ALIAS, DUE_DAG_ID, build_due_dag
from memwal_airflow.hooks.storage_options import read_options
from memwal_airflow.links import DRAIN_DAG_ID
from memwal_airflow.operators.verify import MemWalVerifyOperator
from memwal_airflow.provider.settings import DUE_WATCHERS, FLEET_SCHEDULE, VERIFY_TABLES_PER_DAY
from memwal_airflow.skips import TaskSkipped, TaskSkipReason
from memwal_airflow.spark.settings import ResultsFolder, is_kubernetes
from memwal_airflow.triggers.due import active_runs
from memwal_airflow.version_compat import AirflowException

FLEET_DAG_ID = "memwal_fleet"

logger = logging.getLogger(__name__)

_DOC = """### Fleet-wide tasks

`register_folder` registers the new tables of a folder of the catalog (`memwal catalog register
--all`). `prune` deletes old runs and backlog samples, as the policies say. `export` writes
the file that the DAGs of the tables are built from, so that they follow changes made elsewhere.
`verify` checks some tables a day, chosen at random. `start_unwatched` starts the DAGs of due tables
that no triggerer looks at, or that do not start although it announces them. `clean_up` deletes
abandoned results and pods of drivers. `notify` sends events through the connection of
`[memwal] notify_conn_id`, if it is set.
"""


def build_fleet_dags() -> dict[str, DAG]:
    """Build the fleet DAG, and the DAG of the tables that are due, by DAG id.

    The second one starts the DAGs of the tables, or, where they are drained, runs their jobs.
    Where Airflow parses the DAG file for a task, only the DAG of that task is built. Raises
    InvalidInputError if a setting in ``airflow.cfg`` is invalid.
    """
    watchers = DUE_WATCHERS.read()
    parsed_dag_id = get_parsing_context().dag_id
    tables = exported_tables()
    drained = are_drained(tables)
    dags = {}
    if parsed_dag_id in (None, FLEET_DAG_ID):
        dags[FLEET_DAG_ID] = _build_fleet_dag(drained=drained)
    if drained and parsed_dag_id in (None, DRAIN_DAG_ID):
        pools = {pool_of(table) for table in tables if table.enabled and table.starts_when_due}
        dags[DRAIN_DAG_ID] = build_drain_dag(watchers=watchers, pools=pools)
    if not drained and parsed_dag_id in (None, DUE_DAG_ID):
        dags[DUE_DAG_ID] = build_due_dag(watchers=watchers)
    return dags


def _build_fleet_dag(*, drained: bool) -> DAG:
    schedule = FLEET_SCHEDULE.read().strip()
    with DAG(
        dag_id=FLEET_DAG_ID,
        description="Discovery of tables, upkeep of the catalog, verification of a sample",
        schedule=None if schedule.lower() in ("", "none") else schedule,
        max_active_runs=1,
        **DAG_OPTIONS,
        tags=["memwal"],
        doc_md=_DOC,
        default_args={
            "owner": "memwal",
            "execution_timeout": timedelta(hours=6),
            "retries": 2,
            "retry_delay": timedelta(minutes=1),
        },
    ) as dag:
        register_folder.expand(uri=list_folders())
        prune() >> export()
        if ResultsFolder.configured() is not None:
            clean_up()
        chosen = choose_tables(VERIFY_TABLES_PER_DAY.read())
        MemWalVerifyOperator.partial(task_id="verify", sample_generations=1).expand(table=chosen)
        start_unwatched(drained=drained)
        notify()
    return dag


@task
def list_folders() -> list[str]:
    """Return the addresses of the catalog's folders."""
    with closing(memwal.catalog.Catalog()) as catalog:
        folders = [folder.uri for folder in catalog.folders()]
    if not folders:
        raise TaskSkipped("The catalog has no folder.", reason=TaskSkipReason.NOTHING_TO_DO)
    return folders


@task(map_index_template="{{ folder }}")
def register_folder(uri: str) -> list[str]:
    """Register the new tables of a folder, and return their names."""
    import memwal.fleet

    context: Any = get_current_context()
    context["folder"] = uri
    with closing(memwal.catalog.Catalog()) as catalog:
        folder = next((folder for folder in catalog.folders() if folder.uri == uri), None)
        added = []
        if folder is not None:
            options = read_options(folder.storage_options_ref)
            added = memwal.fleet.register_folder(catalog, folder, storage_options=options)
    for table in added:
        logger.info("%s is registered as %s.", table.uri, table.name)
    if not added:
        raise TaskSkipped(f"Nothing in {uri} is new.", reason=TaskSkipReason.NOTHING_TO_DO)
    return [table.name for table in added]


@task(outlets=[AssetAlias(DUE_ALIAS)])
def start_unwatched(*, drained: bool, outlet_events: Any = None) -> list[str]:
    """Start due tables that no triggerer starts; return their names.

    No triggerer polls these tables, or one announces them in vain, and no run of them is active. A
    triggerer records every few minutes which tables it polled. The status that is read here is not
    stored: the health of a table that is not due goes on to say that no triggerer polls it.
    """
    from memwal.fleet.tables import survey

    started: dict[str, JsonObject] = {}
    with closing(memwal.catalog.Catalog()) as catalog:
        unwatched = unwatched_tables(catalog, now=datetime.now(UTC))
        unstarted = unstarted_tables(catalog)
        tables = {table.name: table for table in [*unwatched, *unstarted]}
        for name in active_runs(tables):
            del tables[name]
        for table in tables.values():
            try:
                options = read_options(table.storage_options_ref)
                due = survey(catalog, table, storage_options=options).due
            except (AirflowException, MemWalError) as error:
                logger.warning("%s cannot be read: %s", table.name, error)
                continue
            jobs = {job: decision.reason for job, decision in due.items() if decision.reason}
            if jobs:
                started[table.name] = {"jobs": jobs, "succeeded": {}}
    if drained and started:
        extra: JsonObject = {"payload": {"tables": started}}
        outlet_events[AssetAlias(DUE_ALIAS)].add(unwatched_asset(), extra=extra)
    for name in () if drained else started:
        extra = {"jobs": started[name]["jobs"]}
        outlet_events[AssetAlias(DUE_ALIAS)].add(due_asset(name), extra=extra)
    if not unwatched and not unstarted:
        raise TaskSkipped(
            "Every table is looked at, and starts when it is due.",
            reason=TaskSkipReason.NOTHING_TO_DO,
        )
    if unwatched:
        logger.error(
            "%d tables are unwatched: see whether a triggerer runs, and has a seat left "
            "([triggerer] capacity).",
            len(unwatched),
        )
    if unstarted:
        logger.error(
            "%d due tables are announced, and do not start: see whether %s is paused or fails.",
            len(unstarted),
            DRAIN_DAG_ID if drained else DUE_DAG_ID,
        )
    logger.info("Started here: %s.", ", ".join(started) or "none, since none is due without a run")
    return list(started)


def unwatched_tables(catalog: memwal.catalog.Catalog, *, now: datetime) -> list[ManagedTable]:
    """Return the tables that start when due, and that no process has polled recently."""
    seen = {sample.table: sample.known_at for sample in catalog.latest_samples()}
    return [
        table
        for table in catalog.list(enabled_only=True)
        if table.starts_when_due and is_unwatched(table, seen.get(table.name), now)
    ]


def unstarted_tables(catalog: memwal.catalog.Catalog) -> list[ManagedTable]:
    """Return the tables that a triggerer announces, and that no run serves."""
    failed = {failed.table for failed in catalog.backoffs.failed_jobs() if failed.job == START_JOB}
    return [
        table
        for table in (catalog.list(enabled_only=True) if failed else ())
        if table.starts_when_due and table.name in failed
    ]


@task
def notify() -> int:
    """Send the events of the tables, and return how many were sent.

    A retry sends the missing messages: each delivery is recorded in the catalog.
    """
    from memwal_airflow.notifications.events import notify_events

    return notify_events()


@task
def prune() -> dict[str, int]:
    """Delete old runs and backlog samples, as the policies say."""
    with closing(memwal.catalog.Catalog()) as catalog:
        pruned = catalog.prune().values()
    return {
        "runs": sum(counts.runs for counts in pruned),
        "samples": sum(counts.samples for counts in pruned),
    }


@task
def clean_up() -> dict[str, int]:
    """Delete results and ended pods of drivers that no retry fetched within a week."""
    from memwal_airflow.kubernetes.cluster import delete_old_drivers, driver_pods
    from memwal_airflow.spark.submit import submit_hook

    results = ResultsFolder.configured()
    deleted_results = 0 if results is None else clean_results(results.uri, results.options)
    hook = submit_hook()
    deleted_pods = delete_old_drivers(driver_pods(hook)) if is_kubernetes(hook.master) else 0
    return {"results": deleted_results, "pods": deleted_pods}


@task
def export() -> int:
    """Write the snapshot of the catalog, and return how many tables are in it."""
    path = snapshot_path()
    with closing(memwal.catalog.Catalog()) as catalog:
        catalog.export_snapshot(path)
    return len(read_snapshot(path))


@task
def choose_tables(per_day: int) -> list[str]:
    """Choose random tables that were not verified within a day."""
    with closing(memwal.catalog.Catalog()) as catalog:
        chosen = sample_tables(catalog, per_day=per_day, now=datetime.now(UTC))
    if not chosen:
        raise TaskSkipped(
            "Enough tables were verified within a day.", reason=TaskSkipReason.NOTHING_TO_DO
        )
    return chosen


def sample_tables(catalog: memwal.catalog.Catalog, *, per_day: int, now: datetime) -> list[str]:
    """Return the names of enabled tables to verify now, so that ``per_day`` are verified a day."""
    since = now - timedelta(days=1)
    newest = {table: runs.newest.get("verify") for table, runs in catalog.latest_runs().items()}
    done = {table for table, run in newest.items() if run is not None and run.started_at >= since}
    names = [
        table.name
        for table in catalog.list(enabled_only=True)
        if table.name not in done and table.problem is None
    ]
    return sorted(random.sample(names, min(max(per_day - len(done), 0), len(names))))
