r"""One DAG per managed table, built from a snapshot of the catalog.

The DAG of a table::

    gate -> merge -> index -> compact -> collect -> quality
                  -> snapshot -> collect
                  -> recover

The DAG of a table without MemWAL, which has no regions, is ``gate -> index -> compact -> collect ->
quality``. ``quality`` is there if the policy has a suite. Behind all jobs is ``done``, which gives
the run its state.

With the schedule ``@due`` a run starts when the triggerer sees that a job is due. ``gate`` waits in
the triggerer, without a process, until a job is due, and skips the tasks of the others; if nothing
is due, all of them. If the merge is due, it runs first, and then decides which of the jobs behind
it are due. Rows that ``recover`` flushes are in the backlog of the next run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseOperator, TriggerRule, get_parsing_context

from memwal.catalog.records import SNAPSHOT_VARIABLE, ManagedTable, read_snapshot
from memwal.errors import InvalidInputError, MemWalError
from memwal.jobs.due import jobs_of
from memwal.jobs.policy import WHEN_DUE, Policy
from memwal_airflow import DAG_OPTIONS, DAG_PREFIX
from memwal_airflow.assets import due_asset, indexed_asset, merged_asset
from memwal_airflow.drain.settings import are_drained
from memwal_airflow.notifications.failures import record_dag_failure, run_deadline
from memwal_airflow.operators.maintenance import (
    MemWalCollectOperator,
    MemWalCompactOperator,
    MemWalIndexOperator,
    MemWalQualityOperator,
    MemWalRecoverOperator,
    MemWalSnapshotOperator,
    MergeAndPlanOperator,
)
from memwal_airflow.provider.settings import OWNER_ROLES, setting_by_owner
from memwal_airflow.run_params import run_params
from memwal_airflow.sensors.gate import TableGateSensor
from memwal_airflow.triggers.gate import start_arguments
from memwal_airflow.version_compat import AirflowException, AssetTriggeredTimetable

logger = logging.getLogger(__name__)

MAX_JOB_DURATION = timedelta(hours=6)

OWNER_RIGHTS: dict[str, Collection[str]] = {
    "DAGs": {"can_read", "can_edit"},
    "DAG Runs": {"can_read", "can_create"},
}
"""Rights of a role of ``[memwal] owner_roles`` on a DAG: see the table, start its jobs."""

LATER_TASKS = {
    "recover": "recover",
    "index": "index",
    "compact": "compact",
    "snapshot": "snapshot",
    "gc": "collect",
    "quality": "quality",
}
"""The tasks behind the merge, by their jobs."""


def build_dags(snapshot: str | Path, *, owners: Collection[str] | None = None) -> dict[str, DAG]:
    """Build the DAGs of the enabled tables of a snapshot that have their own, by DAG id.

    See :func:`memwal_airflow.drain.settings.are_drained`.
    Where Airflow parses the DAG file for a task, only the DAG of that task is built. A table whose
    DAG cannot be built is left out, and the reason is its last error in the catalog. An invalid
    snapshot or setting raises InvalidInputError, which Airflow shows as an import error.

    Parameters
    ----------
    snapshot : str or Path
        A file written by ``Catalog.export_snapshot``. No file means no tables yet, and no DAGs.
    owners : collection of str, optional
        Only tables of these owners, for the DAG bundle of a team. Default: all.
    """
    if not Path(snapshot).exists():
        return {}
    parsed_dag_id = get_parsing_context().dag_id
    roles = setting_by_owner(OWNER_ROLES)
    dags = {}
    tables = read_snapshot(snapshot)
    drained = are_drained(tables)
    for table in tables:
        if not table.enabled or parsed_dag_id not in (None, dag_id(table)):
            continue
        if drained and table.starts_when_due:
            continue
        if owners is not None and table.owner not in owners:
            continue
        try:
            if table.problem is not None:
                raise InvalidInputError(table.problem)
            dag = build_dag(table, roles=roles)
            # Otherwise Airflow refuses it later, and with it all DAGs of the file.
            dag.validate()  # type: ignore[no-untyped-call]
        except (AirflowException, MemWalError, TypeError, ValueError) as error:
            logger.exception("The DAG of %s cannot be built.", table.name)
            record_dag_failure(f"{type(error).__name__}: {error}", table=table.name)
        else:
            dags[dag_id(table)] = dag
    return dags


def snapshot_path() -> Path:
    """Return ``$MEMWAL_CATALOG_SNAPSHOT``, the path that the catalog writes its snapshot to."""
    path = os.environ.get(SNAPSHOT_VARIABLE)
    if not path:
        raise InvalidInputError(
            f"{SNAPSHOT_VARIABLE} is not set; set it for Airflow, and where tables are registered, "
            "to the path of the catalog's snapshot."
        )
    return Path(path)


def dag_id(table: ManagedTable) -> str:
    """Return the id of a table's DAG."""
    return f"{DAG_PREFIX}{table.name}"


def build_dag(table: ManagedTable, *, roles: Mapping[str, str] | None = None) -> DAG:
    """Build the DAG of one table; only the role of its owner, if there are ``roles``, has rights.

    Without ``roles``, the rights that administrators gave to other roles on the DAG stay.
    """
    policy = table.policy
    with DAG(
        dag_id=dag_id(table),
        description=f"Maintenance of {table.uri}",
        schedule=_schedule(table),
        max_active_runs=1,
        **DAG_OPTIONS,
        tags=["memwal", *policy.tags],
        doc_md=_dag_doc(table),
        deadline=run_deadline(table.name, seconds=policy.late_seconds),
        default_args={
            "owner": table.owner,
            "priority_weight": policy.priority,
            # The merges of all tables run before any other job: only backlogs grow while they wait.
            "weight_rule": "downstream",
            "execution_timeout": MAX_JOB_DURATION,
            # Set here as well: a mapped task does not see the defaults of its operator class.
            "retries": 2,
            "retry_delay": timedelta(seconds=15),
        },
    ) as dag:
        _add_tasks(table)
    # Set last: every task created in a DAG with parameters copies and validates them, which would
    # take half of the time that 500 tables need. Set past the DAG's own check of them, which takes
    # as long again: they are the same for all tables, and a test validates them.
    object.__setattr__(dag, "params", run_params())
    if roles:
        # An empty one revokes the rights of the role of an earlier owner. Set here, since Airflow
        # warns of each DAG that is constructed with it: it is for Airflow 3 and FAB alone.
        role = roles.get(table.owner)
        dag.access_control = {} if role is None else {role: OWNER_RIGHTS}
    return dag


def _schedule(table: ManagedTable) -> Any:
    schedule = table.policy.schedule
    if schedule == WHEN_DUE:
        # An asset by itself is hashed with every dependency between tasks, which takes a fifth of
        # the time of all DAGs.
        return AssetTriggeredTimetable(due_asset(table.name))
    return timedelta(seconds=schedule) if isinstance(schedule, int | float) else schedule


def _add_tasks(table: ManagedTable) -> None:
    policy = table.policy
    job: dict[str, Any] = {
        "table": table.name,
        "retries": policy.retries,
        **({} if policy.pool is None else {"pool": policy.pool}),
    }
    # A job that is skipped does not skip those behind it.
    later: dict[str, Any] = {"trigger_rule": TriggerRule.NONE_FAILED, **job}
    jobs = jobs_of(mem_wal=table.mem_wal)
    planned = {job: task_id for job, task_id in LATER_TASKS.items() if job in jobs}
    index = MemWalIndexOperator(task_id="index", outlets=[indexed_asset(table.name)], **later)
    compact = MemWalCompactOperator(task_id="compact", **later)
    collect = MemWalCollectOperator(task_id="collect", **later)
    tasks: list[BaseOperator] = [index, compact, collect]
    # A task that is skipped ends at once: a job that needs several others is behind each of them.
    index >> compact
    [index, compact] >> collect
    if policy.quality is not None and policy.quality.suite:
        quality = MemWalQualityOperator(task_id="quality", **later)
        collect >> quality
        tasks.append(quality)
    else:
        planned.pop("quality")
    if table.mem_wal:
        merge = MergeAndPlanOperator(
            task_id="merge", later=planned, outlets=[merged_asset(table.name)], **job
        )
        recover = MemWalRecoverOperator(task_id="recover", **later)
        snapshot = MemWalSnapshotOperator(task_id="snapshot", **later)
        merge >> [*tasks, recover, snapshot]
        snapshot >> collect
        tasks += [merge, recover, snapshot]
        planned = {"merge": merge.task_id, **planned}
    _add_gate(table, planned) >> tasks
    # Airflow derives the state of a run from its last tasks, and these may have been skipped
    # before a job fails. This one, which starts no process, is behind all jobs.
    tasks >> EmptyOperator(task_id="done", trigger_rule=TriggerRule.NONE_FAILED)


def _add_gate(table: ManagedTable, tasks: Mapping[str, str]) -> TableGateSensor:
    """Add the gate of a run and, if the policy wants them, sensors of its regions before it."""
    policy = table.policy
    # A run that waits for work is not late.
    wait = min(policy.due_wait_seconds, policy.late_seconds / 2)
    shares = min(table.regions or 1, policy.sensor_groups) if table.mem_wal else 1
    gate = TableGateSensor(
        task_id="gate",
        table=table.name,
        tasks=tasks,
        start_trigger_args=start_arguments(table.name, tasks, wait=0 if shares > 1 else wait),
        trigger_rule=TriggerRule.ALL_DONE,
    )
    if shares > 1:
        arguments = start_arguments(table.name, tasks, shares=shares, wait=wait)
        regions = TableGateSensor.partial(
            task_id="regions",
            table=table.name,
            tasks=tasks,
            shares=shares,
            start_trigger_args=arguments,
        )
        regions.expand(share=list(range(shares))) >> gate
    return gate


def _start_text(policy: Policy) -> str:
    match policy.schedule:
        case str() if policy.schedule == WHEN_DUE:
            return f"when a limit is reached, looked at every {policy.poll_seconds:g} s"
        case str():
            return f"by `{policy.schedule}`"
        case None:
            return "by hand only"
        case seconds:
            return f"every {seconds:g} s"


def _dag_doc(table: ManagedTable) -> str:
    policy = table.policy
    return f"""### Maintenance of `{table.name}`

|  |  |
|---|---|
| Table | `{table.uri}` |
| Owner | {table.owner} |
| Generations of a region that make it due | {policy.merge_at_generations} |
| or their bytes | {policy.merge_at_bytes or "no limit"} |
| or the age of the oldest | {policy.merge_at_age_seconds:g} s |
| Quiet hours | {", ".join(policy.quiet_hours) or "none"} |
| A run starts | {_start_text(policy)} |
| It is late after | {policy.late_seconds:g} s |
| Garbage is kept for | {policy.gc_grace_seconds:g} s |
| Generations of old versions are kept for | {policy.gc_retention_seconds:g} s |

To run it by hand, trigger it with `jobs` (only these), `regions` (merge these only), `force` (now,
due or not) or `dry_run` (decide what to do, change nothing).

Other DAGs can be scheduled by the assets `memwal://{table.name}/merged` and
`memwal://{table.name}/indexed`.
"""
