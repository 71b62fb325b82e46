"""Airflow and Spark maintain the table: a real scheduler, in the folder of the run."""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from run import Settings
from upkeep import Upkeep, UpkeepRun

from memwal.catalog import Catalog, Policy
from memwal.maintenance.results import JobResult

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "plugins"
sys.path.insert(0, str(PLUGINS))

from memwal_airflow.standalone import AirflowStandalone  # noqa: E402  (Airflow adds it by itself)

NAME = "flights"
DAG_ID = f"memwal__{NAME}"
POLICY = Policy(
    schedule=20.0,
    merge_at_generations=2,
    merge_at_age_seconds=30.0,
    sensor_poke_seconds=2.0,
    sensor_timeout_seconds=20.0,
    gc_grace_seconds=60.0,
    gc_retention_seconds=60.0,
)
"""Far more eager than the defaults: a year passes in minutes here."""


class AirflowUpkeep(Upkeep):
    """Registers the table in a catalog and lets an Airflow of its own run the table's DAG.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    folder : Path
        Folder of the run: takes the catalog and Airflow's home.
    """

    run_name = "DAG runs"

    def __init__(self, settings: Settings, folder: Path) -> None:
        snapshot = folder / "catalog.json"
        url = f"sqlite:///{folder / 'catalog.db'}"
        self._table = settings.open_table()
        self._catalog = Catalog(url, snapshot_path=snapshot)
        self._catalog.migrate()
        if NAME not in [table.name for table in self._catalog.list()]:
            self._catalog.register(
                NAME,
                uri=settings.table,
                storage_options_ref=settings.storage_options_file,
                policy=POLICY,
                owner="demo",
            )
        self._airflow = AirflowStandalone(
            folder / "airflow",
            dags_folder=ROOT / "dags",
            plugins_folder=PLUGINS,
            env={"MEMWAL_CATALOG_URL": url, "MEMWAL_CATALOG_SNAPSHOT": str(snapshot)},
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="airflow")
        self._ready: Future[None] | None = None
        self._checkpoints: list[JobResult] = []

    def start(self) -> None:
        # Airflow takes half a minute to start; the producers need not wait for it.
        self._ready = self._pool.submit(self._start)

    def runs(self) -> list[UpkeepRun]:
        if self._ready is None or not self._ready.done():
            return []
        self._ready.result()
        self._airflow.check()
        answer = self._airflow.client().get(
            f"/api/v2/dags/{DAG_ID}/dagRuns", params={"order_by": "run_after", "limit": 500}
        )
        answer.raise_for_status()
        return [_run(values) for values in answer.json()["dag_runs"] if values["start_date"]]

    def pause(self) -> None:
        if self._ready is not None:
            self._ready.result()
            self._airflow.pause(DAG_ID)

    def wait_idle(self) -> None:
        self.pause()
        self._airflow.wait(
            lambda: all(run.ended is not None for run in self.runs()),
            timeout=300,
            what=f"finish the runs of {DAG_ID}",
        )

    def checkpoint(self) -> None:
        self._checkpoints.append(self._table.checkpoint())

    def close(self) -> None:
        if self._ready is not None:
            self._pool.shutdown()
        self._airflow.stop()
        self._catalog.close()

    def jobs(self) -> list[JobResult]:
        runs = self._catalog.runs(table=NAME, limit=10_000)[::-1]
        results = [JobResult(**run.result) for run in runs if run.result is not None]
        return results + self._checkpoints

    def _start(self) -> None:
        self._airflow.start()
        self._airflow.wait_healthy()
        self._airflow.wait_dag(DAG_ID)
        self._airflow.pause(DAG_ID, paused=False)


def _run(values: dict[str, Any]) -> UpkeepRun:
    ended = values["end_date"]
    return UpkeepRun(
        name=values["dag_run_id"],
        started=datetime.fromisoformat(values["start_date"]).timestamp(),
        ended=None if ended is None else datetime.fromisoformat(ended).timestamp(),
        state=values["state"],
    )
