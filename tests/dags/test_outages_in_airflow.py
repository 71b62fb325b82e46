"""Sixty tables on disks and in S3 while Airflow, PostgreSQL, the store and Spark are taken away.

At each moment the page's data names the states of the tables, and afterwards every table is served
by itself: no row is lost or doubled, and no run has failed without a failed job. Pictures of the
page go to the folder that MEMWAL_SCREENSHOTS names, if it names one.
"""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pytest
from airflow_demo.connect_server import ConnectServer
from airflow_demo.standalone import AirflowStandalone
from pyarrow.fs import S3FileSystem, copy_files
from sqlalchemy import text
from support.airflow.browser import pictures
from support.data.policies import IDLE
from support.data.postgres import PostgresServer
from support.oracles import native
from support.stores.s3_emulator import ACCESS_KEY, REGION, SECRET_KEY, running_emulator
from support.stores.store_gateway import Gateway, gateway_before, pass_on

import memwal
from memwal.catalog import Catalog, RunState
from memwal.errors import MemWalError
from memwal.jobs.job import JobResult
from memwal.jobs.policy import WHEN_DUE
from memwal.region.change_trace import wait_for_traces

REPOSITORY = Path(__file__).resolve().parents[2]
DRAIN = "memwal_drain"
# For the other limits of time there are waits, which a busy machine may need whole.
LONG = 900.0
POLICY = replace(
    IDLE,
    late_seconds=36_000,
    schedule=WHEN_DUE,
    poll_seconds=5,
    idle_poll_seconds=5,
    merge_at_generations=1,
    compact_deleted_percent=None,
)
# On a busy machine a gate may wait too long for a triggerer; that is told until the next run.
LASTING = {"sensor_timeout"}
# Tables of more bytes run on Spark.
SMALL_BYTES = 200_000
# With less, a scheduler that is only slow takes its own tasks for those of a dead one.
HEALTH = {
    "scheduler": {"scheduler_health_check_threshold": "45", "orphaned_tasks_check_interval": "20"},
    "triggerer": {"triggerer_health_check_threshold": "45", "capacity": "10"},
    "dag_processor": {"health_check_threshold": "45"},
}
ON_DISK = tuple(f"disk{number:02}" for number in range(46))
IN_S3 = tuple(f"s3_{number}" for number in range(10))
LARGE = tuple(f"large{number}" for number in range(4))
ALL = (*ON_DISK, *IN_S3, *LARGE)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@dataclass
class Fleet:
    """The tables, what was acknowledged of each, and all that surrounds them."""

    airflow: AirflowStandalone
    catalog: Catalog
    postgres: PostgresServer
    store: Gateway
    tables: dict[str, memwal.Table]
    acknowledged: dict[str, dict[int, str]] = field(default_factory=dict)
    turns: int = 0

    def flush(self, names: Collection[str]) -> None:
        """Make tables due: each gets new rows, and others of its rows are replaced."""
        self.turns += 1
        ids = range(self.turns * 10, self.turns * 10 + 20)
        values = [f"{self.turns}-{number}" for number in ids]
        rows = pa.table({"id": pa.array(ids, pa.int64()), "v": values})
        for name in names:
            self.tables[name].upsert(rows)
            self.acknowledged[name].update(zip(ids, values, strict=True))
        assert wait_for_traces(LONG)

    def shown(self) -> dict[str, dict[str, str]]:
        """Return the reason of each state that the page shows, by table."""
        answer = self.airflow.client().get("/memwal/api/fleet")
        answer.raise_for_status()
        rows = answer.json()["tables"]
        return {
            row["table"]: {one["health"]: one["text"] for one in reversed(row["reasons"])}
            for row in rows
        }

    def wait(self, done: Callable[[], Any], what: str) -> None:
        """Wait; a busy server or store that does not answer says "not yet".

        A component that has ended by itself is started again, as where a service is run.
        """

        def is_done() -> bool:
            self.airflow.restart_ended()
            try:
                return bool(done())
            except (httpx.HTTPStatusError, MemWalError):
                return False

        self.airflow.wait(is_done, timeout=LONG, what=what, every=1.0)

    def wait_shown(self, names: Collection[str], state: str, *, naming: str = "") -> None:
        """Wait until the page shows a state of all these tables, with a reason that names this."""

        def is_shown() -> bool:
            shown = self.shown()
            return all(state in shown[n] and naming in shown[n][state] for n in names)

        self.wait(is_shown, f"show that {len(names)} tables are {state} {naming}")

    def wait_served(self, names: Collection[str] = ALL, *, once_more: bool = False) -> None:
        """Wait until all that was flushed is merged, and the page shows that all is well.

        ``once_more`` after a process was killed: its job may be done, and counts as failing until
        one of the next rows succeeds.
        """
        left = set(names)
        if once_more:
            self.wait(
                lambda: not any(self.tables[name].status().backlog_generations for name in names),
                "merge what a process left that died",
            )
            self.flush(names)

        def is_served() -> bool:
            for name in sorted(left):
                if self.tables[name].status().backlog_generations:
                    return False
                left.remove(name)
            shown = self.shown()
            return not any(shown[name].keys() - LASTING for name in names)

        try:
            self.wait(is_served, f"serve {len(names)} tables")
        except Exception as error:
            shown = {name: states for name, states in self.shown().items() if states}
            raise AssertionError(f"not merged: {left}; not well: {shown}") from error

    def merged(self) -> set[str]:
        runs = self.catalog.runs(job="merge", state=RunState.SUCCEEDED, limit=10_000)
        return {run.table for run in runs}

    def is_merging(self, names: Collection[str]) -> bool:
        runs = self.catalog.runs(job="merge", state=RunState.RUNNING, limit=1_000)
        return any(run.table in names for run in runs)

    def let_pass(self, time: timedelta, table: str) -> None:
        """Have a table become due, and its last run end, so much earlier."""
        with self.catalog.database.writing() as session:
            for change in (
                "UPDATE due_jobs SET since = since - :time WHERE table_name = :table",
                "UPDATE job_runs SET started_at = started_at - :time,"
                " finished_at = finished_at - :time WHERE table_name = :table",
            ):
                session.execute(text(change), {"time": time, "table": table})

    def kill_scheduler(self) -> None:
        """Kill the scheduler and the tasks that it runs, as the end of their machine does."""
        family = psutil.Process(self.airflow.pids["scheduler"]).children(recursive=True)
        self.airflow.kill("scheduler")
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def check(self, *, failed_by_hand: Collection[str] = ()) -> None:
        """Compare the rows of each table, and the failed runs with the failed jobs."""
        for name, table in self.tables.items():
            found = native.everything(table)
            assert {row["id"]: row["v"] for row in found} == self.acknowledged[name], name
            assert len(found) == len(self.acknowledged[name]), name
        path, query = "/api/v2/dags/~/dagRuns", {"state": "failed", "limit": 1_000}
        runs = self.airflow.client().get(path, params=query).json()["dag_runs"]
        # A run for many tables names the jobs that failed, also the reading of a status.
        failed = {
            run["dag_run_id"]
            for run in runs
            if run["dag_id"] != DRAIN
            or not self.airflow.xcom(DRAIN, run["dag_run_id"], "drain")["failed"]
        }
        # A try whose process was killed ends as abandoned.
        states = (RunState.FAILED, RunState.ABANDONED)
        jobs = [run for state in states for run in self.catalog.runs(state=state, limit=10_000)]
        with_jobs = {(run.external_id or "").split("/")[1] for run in jobs}
        assert failed - with_jobs == set(failed_by_hand)
        assert {job.job for job in self.catalog.backoffs.failed_jobs()} <= LASTING


@contextmanager
def running_fleet(folder: Path, *, table_dags: str, **memwal_settings: str) -> Iterator[Fleet]:
    """Run Airflow on PostgreSQL with sixty tables, all of which are due."""
    with ExitStack() as stack:
        postgres = PostgresServer("max_connections=200")
        stack.callback(postgres.close)
        scratch = folder / "s3"
        scratch.mkdir()
        emulator = stack.enter_context(running_emulator(scratch))
        store = stack.enter_context(gateway_before(emulator.endpoint))
        options = {**emulator.storage_options, "aws_endpoint": store.endpoint}
        options_file = folder / "s3.json"
        options_file.write_text(json.dumps(options))
        options_file.chmod(0o600)
        env = {
            "MEMWAL_CATALOG_URL": postgres.new_database(),
            "MEMWAL_CATALOG_SNAPSHOT": str(folder / "tables.json"),
        }
        catalog = Catalog(env["MEMWAL_CATALOG_URL"], snapshot_path=env["MEMWAL_CATALOG_SNAPSHOT"])
        stack.callback(catalog.close)
        catalog.migrate()
        filesystem = S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            region=REGION,
            endpoint_override=emulator.endpoint,
        )
        bucket = emulator.create_bucket()
        few, many = (_make(folder, count) for count in (100, 20_000))
        tables, acknowledged = {}, {}
        for name in ALL:
            source, rows = many if name in LARGE else few
            acknowledged[name] = dict(rows)
            if name in IN_S3:
                copy_files(str(source), f"{bucket}/{name}.lance", destination_filesystem=filesystem)
                uri = f"s3://{bucket}/{name}.lance"
                tables[name] = memwal.open(uri, storage_options=options)
            else:
                shutil.copytree(source, uri := str(folder / f"{name}.lance"))
                tables[name] = memwal.open(uri)
            ref = str(options_file) if name in IN_S3 else None
            catalog.register(name, uri=uri, policy=POLICY, storage_options_ref=ref)
            with catalog.record_run(name, "gc") as run:
                run.finish(JobResult(job="gc", table=uri, version=1))
        dags = folder / "dags"
        dags.mkdir()
        for file in ("memwal_tables.py", "memwal_fleet.py"):
            (dags / file).symlink_to(REPOSITORY / "dags" / file)
        airflow_url = postgres.new_database()
        airflow = AirflowStandalone(
            folder / "airflow",
            dags_folder=dags,
            env=env,
            settings={
                **HEALTH,
                "database": {
                    "sql_alchemy_conn": airflow_url,
                    "sql_alchemy_conn_async": airflow_url,
                },
                "memwal": {
                    "table_dags": table_dags,
                    "fleet_schedule": "none",
                    "due_watchers": "2",
                    **memwal_settings,
                },
            },
        )
        fleet = Fleet(airflow, catalog, postgres, store, tables, acknowledged)
        fleet.flush(ALL)
        stack.enter_context(airflow)
        airflow.restart("triggerer-2")
        yield fleet


def _make(folder: Path, count: int) -> tuple[Path, dict[int, str]]:
    """Make a table whose rows are merged, and return its path with the rows."""
    path = folder / f"{count}.lance"
    table = memwal.create(
        str(path),
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())]),
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
    )
    rows = {number: os.urandom(8).hex() for number in range(count)}
    table.upsert(pa.table({"id": pa.array(rows, pa.int64()), "v": list(rows.values())}))
    table.merge()
    table.build_snapshot()
    return path, rows


def test_tables_with_dags(tmp_path: Path) -> None:
    """Triggerers of ten seats each and the scheduler are killed while the tables are due."""
    with running_fleet(tmp_path, table_dags="each") as fleet, pictures(fleet.airflow) as take:
        airflow = fleet.airflow
        fleet.wait(
            lambda: any("due" in states for states in fleet.shown().values()), "show due tables"
        )
        fleet.wait(lambda: len(fleet.merged()) >= 10, "merge some tables")
        take("due")
        airflow.kill("triggerer-2")
        fleet.wait_served()

        # No triggerer is left. Meanwhile a run waits for its DAG, one is marked as failed, and a
        # gate has nobody that evaluates it.
        asked, waiting, failed = ON_DISK[:3]
        for name in (waiting, failed):
            airflow.pause(f"memwal__{name}")
        airflow.trigger(f"memwal__{waiting}")
        failed_run = airflow.trigger(f"memwal__{failed}")
        path = airflow._run_path(f"memwal__{failed}", failed_run)
        airflow._request("PATCH", path, json={"state": "failed"})
        fleet.flush([waiting])
        fleet.wait_shown([waiting], "due")
        fleet.let_pass(timedelta(minutes=15), waiting)
        airflow.kill("triggerer")
        airflow.trigger(f"memwal__{asked}")
        fleet.flush([*ON_DISK[3:], *IN_S3, *LARGE])
        fleet.wait_shown(ALL, "no_heartbeat", naming="triggerer")
        fleet.wait_shown(ALL, "unwatched")
        fleet.wait_shown([failed], "run_failed", naming=failed_run)
        fleet.wait_shown([waiting], "not_started")
        fleet.wait_shown([waiting], "run_queued", naming="paused")
        fleet.wait_shown([asked], "sensor_timeout")
        take("no-triggerer", asked, waiting, failed)
        for name in ("triggerer", "triggerer-2"):
            airflow.restart(name)
        for name in (waiting, failed):
            airflow.pause(f"memwal__{name}", paused=False)
        fleet.flush([asked, failed])
        fleet.wait_served()

        fleet.flush(ALL)
        fleet.wait(lambda: fleet.is_merging(ALL), "begin to merge")
        fleet.kill_scheduler()
        fleet.wait_shown(ALL, "no_heartbeat", naming="scheduler")
        take("no-scheduler", LARGE[0])
        assert any("due" in states for states in fleet.shown().values())
        airflow.restart("scheduler")
        fleet.wait_served(once_more=True)
        fleet.check(failed_by_hand=[failed_run])


def test_tables_in_one_dag(tmp_path: Path) -> None:
    """The store, PostgreSQL, and Spark's executors and driver go away while the tables are due."""
    server = ConnectServer(
        tmp_path / "connect.log",
        conf={"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "1024m"},
    )
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.start().wait()
        fleet = stack.enter_context(
            running_fleet(
                tmp_path,
                table_dags="drain",
                spark_master=server.url,
                local_below_bytes=str(SMALL_BYTES),
            )
        )
        take = stack.enter_context(pictures(fleet.airflow))
        airflow = fleet.airflow
        fleet.wait_served()

        # The store.
        fleet.flush(ALL)
        fleet.store.rule = lambda request, forward: None
        fleet.wait_shown(IN_S3, "failing")
        take("no-store", IN_S3[0])
        fleet.wait_served([*ON_DISK, *LARGE])
        fleet.store.rule = pass_on
        fleet.wait_served()

        # The databases of Airflow and of the catalog.
        fleet.flush(ALL)
        fleet.wait(lambda: fleet.is_merging(ALL), "begin to merge")
        fleet.postgres.stop()
        fleet.wait(
            lambda: airflow.client().get("/memwal/api/fleet").status_code == 503, "miss PostgreSQL"
        )
        take("no-database")
        fleet.postgres.start()
        fleet.wait_served(once_more=True)

        # An executor, and the driver.
        fleet.flush(LARGE)
        fleet.wait(lambda: fleet.is_merging(LARGE), "begin to merge")
        for process in psutil.Process(server.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                    process.kill()
        fleet.wait_served()
        server.stop(seconds=0)
        fleet.flush(ALL)
        fleet.wait_shown(LARGE, "failing")
        take("no-spark", LARGE[0])
        fleet.wait_served([*ON_DISK, *IN_S3])
        server.start().wait()
        fleet.wait_served()
        fleet.check()
