r"""One DAG per managed table, built from a snapshot of the catalog.

The DAG of a table::

    recover -> plan -> wait_for_backlog (mapped over regions) -> merge -> plan_indexes
                                        \-> region_problems      -> index (mapped)
                                                                 -> announce_indexed -> compact
                                                                 -> snapshot -> collect -> quality

What ``recover`` flushes is in the backlog of the same run; if it fails, the others go on. ``merge``
starts with the first region that is due. If none is when the window ends, it is skipped. The later
stages check themselves whether earlier runs left work, so a skipped merge does not skip them. Every
stage without work is skipped with the reason. A region whose sensor failed does not stop the
others; ``region_problems`` then fails the run to show it.
"""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, TriggerRule, get_parsing_context, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from memwal.catalog.records import SNAPSHOT_VARIABLE, ManagedTable, read_snapshot
from memwal.errors import InvalidInputError, MemWalError
from memwal_airflow import DAG_PREFIX
from memwal_airflow.assets import indexed_asset, merged_asset
from memwal_airflow.deadlines import run_deadline
from memwal_airflow.notifications.failures import record_dag_failure
from memwal_airflow.operators.maintenance import (
    MemWalCollectOperator,
    MemWalCompactOperator,
    MemWalIndexOperator,
    MemWalMergeOperator,
    MemWalQualityOperator,
    MemWalRecoverOperator,
    MemWalSnapshotOperator,
)
from memwal_airflow.operators.plan import AnnounceIndexedOperator, PlanIndexesOperator, PlanOperator
from memwal_airflow.run_params import run_params
from memwal_airflow.sensors.table import RegionBacklogSensor

log = logging.getLogger(__name__)

START = datetime(2025, 1, 1, tzinfo=UTC)
MAX_JOB_DURATION = timedelta(hours=6)


def build_dags(snapshot: str | Path) -> dict[str, DAG]:
    """Build the DAGs of all enabled tables of a snapshot, by DAG id.

    Where Airflow parses the DAG file for a task, only the DAG of that task is built. A table whose
    DAG cannot be built is left out, and the reason is its last error in the catalog. An invalid
    snapshot raises InvalidInputError, which Airflow shows as an import error.

    Parameters
    ----------
    snapshot : str or Path
        A file written by ``Catalog.export_snapshot``. No file means no tables yet, and no DAGs.
    """
    if not Path(snapshot).exists():
        return {}
    parsed_dag_id = get_parsing_context().dag_id
    dags = {}
    for table in read_snapshot(snapshot):
        if not table.enabled or parsed_dag_id not in (None, dag_id(table)):
            continue
        try:
            if table.problem is not None:
                raise InvalidInputError(table.problem)
            dag = build_dag(table)
            # Otherwise Airflow refuses it later, and with it all DAGs of the file.
            dag.validate()  # type: ignore[no-untyped-call]
        except (AirflowException, MemWalError, TypeError, ValueError) as error:
            log.exception("The DAG of %s cannot be built.", table.name)
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


def build_dag(table: ManagedTable) -> DAG:
    """Build the DAG of one table."""
    policy, schedule = table.policy, table.policy.schedule
    with DAG(
        dag_id=dag_id(table),
        description=f"Maintenance of {table.uri}",
        schedule=timedelta(seconds=schedule) if isinstance(schedule, int | float) else schedule,
        start_date=START,
        catchup=False,
        max_active_runs=1,
        # A table is switched on and off in the catalog, not by pausing its DAG.
        is_paused_upon_creation=False,
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
    # take half of the time that 500 tables need.
    dag.params = run_params()
    return dag


def _add_tasks(table: ManagedTable) -> None:
    policy = table.policy
    job: dict[str, Any] = {
        "table": table.name,
        "retries": policy.retries,
        **({} if policy.pool is None else {"pool": policy.pool}),
    }
    # These tasks check themselves whether they are due: an earlier skip does not skip them.
    after_skips = TriggerRule.NONE_FAILED
    later: dict[str, Any] = {"trigger_rule": after_skips, **job}
    recover = MemWalRecoverOperator(task_id="recover", **job)
    plan = PlanOperator(task_id="plan", table=table.name, trigger_rule=TriggerRule.ALL_DONE)
    sensors = RegionBacklogSensor.partial(
        task_id="wait_for_backlog",
        table=table.name,
        poke_interval=policy.sensor_poke_seconds,
        timeout=policy.sensor_timeout_seconds,
        soft_fail=True,
    ).expand_kwargs(plan.output)
    merge = MemWalMergeOperator(
        task_id="merge",
        trigger_rule=TriggerRule.ONE_SUCCESS,
        outlets=[merged_asset(table.name)],
        **job,
    )
    indexes = PlanIndexesOperator(
        task_id="plan_indexes", table=table.name, trigger_rule=after_skips
    )
    index = MemWalIndexOperator.partial(task_id="index", **job).expand(index=indexes.output)
    announce = AnnounceIndexedOperator(
        task_id="announce_indexed",
        plan_task_id=indexes.task_id,
        index_task_id=index.task_id,
        trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
        outlets=[indexed_asset(table.name)],
    )
    compact = MemWalCompactOperator(task_id="compact", **later)
    snapshot = MemWalSnapshotOperator(task_id="snapshot", **later)
    collect = MemWalCollectOperator(task_id="collect", **later)
    quality = MemWalQualityOperator(task_id="quality", **later)
    recover >> plan
    sensors >> [merge, region_problems()]
    merge >> indexes
    index >> announce >> compact >> snapshot >> collect >> quality


@task(trigger_rule=TriggerRule.ONE_FAILED, retries=0)
def region_problems() -> None:
    """Fail the run if the sensor of a region failed; skipped otherwise."""
    raise AirflowFailException(
        "The backlog of at least one region could not be read; its sensor's log says why."
    )


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
| A run waits for | {policy.sensor_timeout_seconds:g} s |
| It is late after | {policy.late_seconds:g} s |
| Garbage is kept for | {policy.gc_grace_seconds:g} s |
| Generations of old versions are kept for | {policy.gc_retention_seconds:g} s |

To run it by hand, trigger it with `jobs` (only these), `regions` (merge these only), `force` (now,
due or not) or `dry_run` (decide what to do, change nothing).

Other DAGs can be scheduled by the assets `memwal://{table.name}/merged` and
`memwal://{table.name}/indexed`.
"""
