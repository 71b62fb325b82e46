"""Maintenance of the table by Airflow, and Spark for many flights, in the folder of the run."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_demo.connect_server import ConnectServer
from airflow_demo.rest import FINAL_RUN_STATES
from airflow_demo.standalone import AirflowStandalone
from run import Settings
from upkeep import Upkeep, UpkeepJob, UpkeepRun, timed

from memwal.catalog import Catalog, Policy
from memwal.jobs.job import JobResult
from memwal.quality.rules import QualityRules

ROOT = Path(__file__).parents[2]
NAME = "flights"
DAG_ID = f"memwal__{NAME}"
POLICY = Policy(
    poll_seconds=1.0,
    merge_at_generations=2,
    merge_at_age_seconds=30.0,
    gc_grace_seconds=120.0,
    gc_retention_seconds=60.0,
    quality=QualityRules.from_dict(
        {
            "mode": "warn",
            "suite": [
                {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "status"}},
                {
                    "type": "expect_column_values_to_be_between",
                    "kwargs": {"column": "distance_miles", "min_value": 1, "max_value": 5_000},
                },
            ],
        }
    ),
)
"""Far more eager than the defaults: a year passes in minutes here."""


RUN_SECONDS = 600.0
"""Seconds that a DAG run may take."""
LOOK_SECONDS = 1.0
"""Seconds between two looks at the DAG runs: Airflow takes processor time to answer."""
DUE_SECONDS = 6.0
"""Seconds within which Airflow starts a run of what is due."""
STOP_SECONDS = 2.0
"""Seconds that Airflow and Spark have to end by themselves."""
SPARK_FROM_FLIGHTS = 100_000
"""Flights from which the jobs run on Spark. Of fewer, they run in Airflow's tasks, which is the
default for small tables."""


class AirflowUpkeep(Upkeep):
    """Registers the table in a catalog and starts an Airflow that runs the table's DAG.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    folder : Path
        Folder of the run: contains the catalog and Airflow's home.
    """

    run_name = "DAG runs"

    def __init__(self, settings: Settings, folder: Path) -> None:
        snapshot = folder / "catalog.json"
        url = f"sqlite:///{folder / 'catalog.db'}"
        self._table = settings.open_table()
        self._catalog = Catalog(url, snapshot_path=snapshot)
        self._catalog.migrate()
        if NAME in [table.name for table in self._catalog.list()]:
            # A run that is resumed may have ended without runs of the DAG.
            self._catalog.update(NAME, policy=POLICY)
        else:
            self._catalog.register(
                NAME,
                uri=settings.table,
                storage_options_ref=settings.storage_options_file,
                policy=POLICY,
                owner="demo",
            )
        on_spark = settings.rows is None or settings.rows >= SPARK_FROM_FLIGHTS
        self._spark = ConnectServer(folder / "spark-connect.log") if on_spark else None
        home = folder / "airflow"
        self._passwords = home / "passwords.json"
        self._airflow = AirflowStandalone(
            home,
            dags_folder=ROOT / "dags",
            env={"MEMWAL_CATALOG_URL": url, "MEMWAL_CATALOG_SNAPSHOT": str(snapshot)},
            settings={
                # The table is registered before Airflow starts.
                "dag_processor": {"min_file_process_interval": "120"},
                "memwal": {
                    # Its work for fleets of tables would only take processor time from this one.
                    "fleet_schedule": "none",
                    # One Spark for all jobs: to start one for each would take most of the time.
                    **(self._spark.airflow_settings if self._spark else {}),
                },
            },
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="airflow")
        self._healthy = threading.Event()
        self._paused = threading.Event()
        self._work: Future[None] | None = None
        self._checkpoints: list[UpkeepJob] = []
        # As of the last look: an Airflow that is busy may take half a minute to answer.
        self._runs: list[UpkeepRun] = []

    def start(self) -> None:
        if self._spark:
            self._spark.start()
        self._work = self._pool.submit(self._keep)

    def where(self) -> str:
        if not self._healthy.is_set():
            return ""
        page = f"{self._airflow.url}/dags/{DAG_ID}/plugin/memwal-table"
        return f"{page} (user and password: {self._passwords})"

    def runs(self) -> list[UpkeepRun]:
        if self._work is not None and self._work.done():
            self._work.result()
        return self._runs

    def pause(self) -> None:
        self._paused.set()

    def idle(self) -> bool:
        return self._work is None or self._work.done()

    def checkpoint(self) -> None:
        self._checkpoints.append(timed(self._table.checkpoint))

    def close(self) -> None:
        self.pause()
        # Nothing waits for Airflow any more, and nothing starts a part of it.
        self._airflow.cancel()
        with ThreadPoolExecutor(2) as pool:
            ends = [
                pool.submit(part.stop, seconds=STOP_SECONDS)
                for part in (self._airflow, self._spark)
                if part
            ]
        for end in ends:
            end.result()
        self._pool.shutdown()
        self._catalog.close()

    def jobs(self) -> list[UpkeepJob]:
        runs = self._catalog.runs(table=NAME, limit=10_000)[::-1]
        return [
            UpkeepJob(
                result=JobResult.from_dict(run.result),
                started=run.started_at.timestamp(),
                ended=run.finished_at.timestamp(),
            )
            for run in runs
            if run.result is not None and run.finished_at is not None
        ] + self._checkpoints

    def _keep(self) -> None:
        """Let Airflow start a run whenever something is due, until it is told to pause.

        A run that is active then is the last one. Airflow may take longer to start than the stream
        lasts: without a run, one is started, so that there is always one at least.
        """
        self._airflow.start()
        self._airflow.wait_healthy()
        if self._spark:
            self._spark.wait()
        self._healthy.set()
        self._airflow.wait_dag(DAG_ID)
        self._airflow.wait(
            self._is_paused, timeout=math.inf, what="run the DAG", every=LOOK_SECONDS
        )
        deadline = time.monotonic() + DUE_SECONDS
        has_run = False

        def is_decided() -> bool:
            nonlocal has_run
            has_run = self._is_active() or bool(self._runs)
            return has_run or time.monotonic() > deadline

        self._airflow.wait(is_decided, timeout=math.inf, what="start a run", every=LOOK_SECONDS)
        self._catalog.update(NAME, policy=replace(POLICY, schedule=None))
        if not has_run:
            self._airflow.trigger(DAG_ID)
        self._airflow.wait(
            lambda: not self._is_active(),
            timeout=RUN_SECONDS,
            what="finish the last run of the DAG",
            every=LOOK_SECONDS,
        )

    def _is_paused(self) -> bool:
        """Look at all runs; return whether no further one is wanted."""
        self._is_active()
        return self._paused.is_set()

    def _is_active(self) -> bool:
        """Look at all runs; return whether one of them is queued or running."""
        self._airflow.check()
        answer = self._airflow.client().get(
            f"/api/v2/dags/{DAG_ID}/dagRuns", params={"order_by": "run_after", "limit": 500}
        )
        answer.raise_for_status()
        runs = answer.json()["dag_runs"]
        self._runs = [_run(run) for run in runs if run["start_date"]]
        return any(run["state"] not in FINAL_RUN_STATES for run in runs)


def _run(values: dict[str, Any]) -> UpkeepRun:
    ended = values["end_date"]
    return UpkeepRun(
        name=values["dag_run_id"],
        started=datetime.fromisoformat(values["start_date"]).timestamp(),
        ended=None if ended is None else datetime.fromisoformat(ended).timestamp(),
        state=values["state"],
    )
