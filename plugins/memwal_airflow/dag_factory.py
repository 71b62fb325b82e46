"""One DAG per managed table, built from a snapshot of the catalog.

The DAG of a table::

    list_regions -> wait_for_backlog (mapped over regions) -> decide -> merge -> index
                                     \\-> region_problems                  -> snapshot -> collect

``decide`` starts with the first region that is due and does not wait for the others. When the
window ends and none was, it and ``merge`` are skipped. ``index``, ``snapshot`` and ``collect``
look for themselves whether there is work left from earlier runs, so a skipped merge does not
skip them. A region whose sensor failed does not hold the others up, and ``region_problems`` fails
the run so that it is seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, get_parsing_context, task
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowFailException

from memwal.catalog.records import ManagedTable
from memwal.catalog.snapshot import PATH_VARIABLE, read_snapshot
from memwal.errors import InvalidInputError
from memwal_airflow.assets import indexed_asset, merged_asset
from memwal_airflow.operators import (
    MemWalCollectOperator,
    MemWalIndexOperator,
    MemWalMergeOperator,
    MemWalSnapshotOperator,
)
from memwal_airflow.planning import DecideMergeOperator, ListRegionsOperator
from memwal_airflow.sensors import RegionBacklogSensor

DAG_PREFIX = "memwal__"
START = datetime(2025, 1, 1, tzinfo=UTC)
LONGEST_JOB = timedelta(hours=6)


def build_dags(snapshot: str | Path) -> dict[str, DAG]:
    """Build the DAGs of all enabled tables of a snapshot, by DAG id.

    A task parses the DAG file again and wants one DAG only; Airflow says which, and the others
    are not built.

    Parameters
    ----------
    snapshot : str or Path
        A file written by ``Catalog.export_snapshot``. When there is none, no table was
        registered yet and there are no DAGs.

    Raises
    ------
    InvalidInputError
        The file is no snapshot; Airflow shows it as an import error.
    """
    if not Path(snapshot).exists():
        return {}
    wanted = get_parsing_context().dag_id
    tables = (table for table in read_snapshot(snapshot) if table.enabled)
    return {
        dag_id(table): build_dag(table)
        for table in tables
        if wanted is None or wanted == dag_id(table)
    }


def snapshot_path() -> Path:
    """``$MEMWAL_CATALOG_SNAPSHOT``, where the catalog writes its snapshot.

    Raises
    ------
    InvalidInputError
        The variable is not set; Airflow shows it as an import error.
    """
    path = os.environ.get(PATH_VARIABLE)
    if not path:
        raise InvalidInputError(
            f"{PATH_VARIABLE} is not set; set it for Airflow, and where tables are registered, to "
            "the path of the catalog's snapshot."
        )
    return Path(path)


def dag_id(table: ManagedTable) -> str:
    """Id of a table's DAG."""
    return f"{DAG_PREFIX}{table.name}"


def build_dag(table: ManagedTable) -> DAG:
    """Build the DAG of one table."""
    policy = table.policy
    where: dict[str, Any] = {
        "table_uri": table.uri,
        "storage_options_ref": table.storage_options_ref,
    }
    due: dict[str, Any] = {
        "at_generations": policy.merge_at_generations,
        "at_age_seconds": policy.merge_at_age_seconds,
    }
    with DAG(
        dag_id=dag_id(table),
        description=f"Maintenance of {table.uri}",
        schedule=_schedule(policy.schedule),
        start_date=START,
        catchup=False,
        max_active_runs=1,
        # The switch of a table is its entry in the catalog.
        is_paused_upon_creation=False,
        tags=["memwal", *policy.tags],
        doc_md=_doc(table),
        default_args={
            "owner": table.owner,
            "priority_weight": policy.priority,
            "weight_rule": "absolute",
            "execution_timeout": LONGEST_JOB,
            # Here and not left to the operators: a mapped task does not see its class's defaults.
            "retries": 2,
            "retry_delay": timedelta(seconds=15),
        },
    ) as dag:
        regions = ListRegionsOperator(task_id="list_regions", table=table.name, **where)
        sensors = RegionBacklogSensor.partial(
            task_id="wait_for_backlog",
            min_generations=policy.merge_at_generations,
            max_age_seconds=policy.merge_at_age_seconds,
            poke_interval=policy.sensor_poke_seconds,
            timeout=policy.sensor_timeout_seconds,
            **where,
        ).expand_kwargs(regions.output)
        decide = DecideMergeOperator(
            task_id="decide", trigger_rule=TriggerRule.ONE_SUCCESS, **where, **due
        )
        merge = MemWalMergeOperator(
            task_id="merge",
            table=table.name,
            regions=decide.output,
            outlets=[merged_asset(table.name)],
        )
        index = MemWalIndexOperator(
            task_id="index",
            table=table.name,
            trigger_rule=TriggerRule.NONE_FAILED,
            outlets=[indexed_asset(table.name)],
        )
        publish = MemWalSnapshotOperator(
            task_id="snapshot", table=table.name, trigger_rule=TriggerRule.NONE_FAILED
        )
        collect = MemWalCollectOperator(
            task_id="collect", table=table.name, trigger_rule=TriggerRule.NONE_FAILED
        )
        sensors >> [decide, region_problems()]
        decide >> merge >> index >> publish >> collect
    # Set last: every task made in a DAG with parameters would copy and validate them, which takes
    # half of the time that 500 tables need.
    dag.params = _params()
    return dag


@task(trigger_rule=TriggerRule.ONE_FAILED, retries=0)
def region_problems() -> None:
    """Fail the run when the sensor of a region failed; skipped otherwise."""
    raise AirflowFailException(
        "The backlog of at least one region could not be read; its sensor's log says why."
    )


def _schedule(schedule: str | float | None) -> str | timedelta | None:
    return timedelta(seconds=schedule) if isinstance(schedule, int | float) else schedule


def _params() -> ParamsDict:
    """What a run by hand can ask for; made anew, since a run's values are kept in them."""
    return ParamsDict(
        {
            "force": Param(
                False, type="boolean", description="Merge every backlog now, without waiting."
            ),
            "dry_run": Param(
                False, type="boolean", description="Look and decide, and change nothing."
            ),
            "regions": Param(
                [],
                type="array",
                items={"type": "string"},
                description="UUIDs of the regions to look at; all when empty.",
            ),
        }
    )


def _doc(table: ManagedTable) -> str:
    policy = table.policy
    rows: Iterable[tuple[str, object]] = (
        ("Table", f"`{table.uri}`"),
        ("Owner", table.owner),
        ("A region is merged at", f"{policy.merge_at_generations} generations"),
        ("or when one is as old as", f"{policy.merge_at_age_seconds:g} s"),
        ("A run waits for", f"{policy.sensor_timeout_seconds:g} s"),
        ("Garbage is kept for", f"{policy.gc_grace_seconds:g} s"),
        ("Old versions need theirs for", f"{policy.gc_retention_seconds:g} s"),
    )
    lines = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"""### Maintenance of `{table.name}`

|  |  |
|---|---|
{lines}

To run it by hand, trigger it with `force` (merge every backlog now), `dry_run` (look and decide,
change nothing) or `regions` (look at these only).

Other DAGs can be scheduled by the assets `memwal://{table.name}/merged` and
`memwal://{table.name}/indexed`.
"""
