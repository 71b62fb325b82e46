"""The DAG that runs the due jobs of the tables that have no DAG of their own.

::

    plan -> drain -> failed
         -> drain_{pool} -> failed_{pool}

There is a task for each pool that policies name, so that a pool limits how many such tasks of a
team run at once. Without named pools there is ``drain`` alone, and no ``plan``. The triggers that
start it are those of :mod:`memwal_airflow.due_dag`, which is not there then.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection
from contextlib import closing
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import DAG, AssetAlias, AssetAny, Param, task
from airflow.sdk.definitions.param import ParamsDict

import memwal.catalog
from memwal.errors import InvalidInputError
from memwal_airflow import DAG_OPTIONS
from memwal_airflow.assets import unwatched_asset, watched_asset
from memwal_airflow.drain.operator import (
    DEFAULT_POOL,
    DRAINED_ALIAS,
    MemWalDrainOperator,
    pool_of,
    wanted_tables,
)
from memwal_airflow.due_dag import ACTIVE_RUNS
from memwal_airflow.links import DRAIN_DAG_ID
from memwal_airflow.run_params import run_params
from memwal_airflow.skips import TaskSkipped, TaskSkipReason
from memwal_airflow.version_compat import AirflowFailException

MAX_DURATION: Final = timedelta(hours=6)

_LONGEST_ID = 100

_DOC = """### Runs what is due of all tables

The triggerer polls the tables and updates `memwal://due/{shard}`; `drain` runs the due jobs of the
tables that the event names, of one pool in one process. Its log has a line for each job; the page
of memwal and `memwal fleet status` show each table. `failed` fails if a job failed, and names the
tables.

To run jobs by hand, trigger it with `tables`, and `jobs` (only these), `regions` (merge these
only), `force` (now, due or not) or `dry_run` (decide what to do, change nothing).
"""


def build_drain_dag(*, watchers: int = 1, pools: Collection[str] = ()) -> DAG:
    """Build the DAG.

    Parameters
    ----------
    watchers : int
        Number of shards of the tables, each of which has a trigger.
    pools : collection of str
        The pools that the policies of the tables name.
    """
    watched = [watched_asset(n, shards=watchers, drained=True) for n in range(watchers)]
    with DAG(
        dag_id=DRAIN_DAG_ID,
        description="Maintenance of all tables that start when due",
        schedule=AssetAny(*watched, unwatched_asset()),
        max_active_runs=ACTIVE_RUNS,
        **DAG_OPTIONS,
        tags=["memwal"],
        doc_md=_DOC,
        params=drain_params(),
        default_args={
            "owner": "memwal",
            "execution_timeout": MAX_DURATION,
            "retries": 2,
            "retry_delay": timedelta(seconds=10),
        },
    ) as dag:
        named = sorted(set(pools) - {DEFAULT_POOL})
        drains = {pool: _add_drain(pool) for pool in (DEFAULT_POOL, *named)}
        if named:
            plan({pool: drain.task_id for pool, drain in drains.items()}) >> list(drains.values())
    return dag


def drain_params() -> ParamsDict:
    """Return the parameters of a run by hand: those of a table's DAG, and the tables."""
    tables = Param(
        [],
        type="array",
        title="Tables",
        items={"type": "string"},
        description="Names of tables, one a line; all that start when due when empty.",
    )
    others = run_params()
    return ParamsDict({"tables": tables, **{name: others.get_param(name) for name in others}})


def _add_drain(pool: str) -> MemWalDrainOperator:
    suffix = "" if pool == DEFAULT_POOL else f"_{_as_id(pool)}"
    drain = MemWalDrainOperator(
        task_id=f"drain{suffix}",
        failed_task_id=f"failed{suffix}",
        pool=pool,
        outlets=[AssetAlias(DRAINED_ALIAS)],
    )
    done: Any = drain.output
    task(task_id=f"failed{suffix}", retries=0)(raise_failures)(done)
    return drain


def _as_id(pool: str) -> str:
    """Return the name of a pool as a part of a task's id, which takes fewer characters."""
    text = re.sub(r"[^\w.-]", "_", pool, flags=re.ASCII)[:_LONGEST_ID]
    return text if text == pool else f"{text}_{zlib.crc32(pool.encode()):08x}"


@task.branch(retries=2)
def plan(drains: dict[str, str], *, params: Any = None, triggering_asset_events: Any = None) -> Any:
    """Choose the tasks of the pools of which a table is due; ``drains`` has their ids by pool.

    Tables of a pool that has no task yet are announced again.
    """
    with closing(memwal.catalog.Catalog()) as catalog:
        try:
            tables = wanted_tables(catalog, triggering_asset_events or {}, params)
        except InvalidInputError as error:
            raise AirflowFailException(str(error)) from error
    chosen = sorted({drains[pool_of(table)] for table in tables if pool_of(table) in drains})
    if not chosen:
        raise TaskSkipped(
            "A run has served each table since it was announced.",
            reason=TaskSkipReason.NOTHING_TO_DO,
        )
    return chosen


def raise_failures(done: dict[str, Any]) -> None:
    """Fail with the tables of which a job failed."""
    failed = done["failed"]
    lines = [f"{table}: {job}: {why}" for table in failed for job, why in failed[table].items()]
    text = "\n".join(lines)
    raise AirflowFailException(f"Jobs of {len(failed)} of {done['tables']} tables failed:\n{text}")
