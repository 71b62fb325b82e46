"""A table that is registered while Airflow runs, with a producer that writes all the time.

Airflow's metadata and the catalog are in PostgreSQL here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow_demo.standalone import AirflowStandalone
from support.data.postgres import PostgresServer
from support.oracles import native

import memwal
from memwal.catalog import Catalog, Policy, RunState

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_ID = "memwal__orders"
KEYS = 500
BATCH = 25
ON = ("on_merged", "on_indexed", "on_changed")
CONSUMERS = """
from airflow.sdk import DAG, task
from memwal_airflow.assets import changed_asset, indexed_asset, merged_asset

assets = {
    "on_merged": merged_asset("orders"),
    "on_indexed": indexed_asset("orders"),
    "on_changed": changed_asset("orders", "c"),
}
for name, asset in assets.items():
    with DAG(name, schedule=[asset], is_paused_upon_creation=False):

        @task
        def take(triggering_asset_events=None):
            return [
                dict(event.extra) for events in triggering_asset_events.values() for event in events
            ]

        take()
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Place:
    """An Airflow that runs, and the catalog that it looks into."""

    airflow: AirflowStandalone
    catalog: Catalog
    folder: Path


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def place(server: PostgresServer, tmp_path: Path) -> Iterator[Place]:
    catalog_url, airflow_url = server.new_database(), server.new_database()
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "consumers.py").write_text(CONSUMERS)
    for name in ("memwal_tables.py", "memwal_fleet.py"):
        (dags / name).symlink_to(REPOSITORY / "dags" / name)
    env = {
        "MEMWAL_CATALOG_URL": catalog_url,
        "MEMWAL_CATALOG_SNAPSHOT": str(tmp_path / "tables.json"),
    }
    catalog = Catalog(catalog_url, snapshot_path=env["MEMWAL_CATALOG_SNAPSHOT"])
    catalog.migrate()
    with AirflowStandalone(
        tmp_path / "airflow",
        dags_folder=dags,
        env=env,
        settings={
            "memwal": {"spark_master": "local[1]", "fleet_schedule": "none"},
            # One driver for both, which Airflow does not choose by itself.
            "database": {"sql_alchemy_conn": airflow_url, "sql_alchemy_conn_async": airflow_url},
        },
    ) as airflow:
        yield Place(airflow=airflow, catalog=catalog, folder=tmp_path)
    catalog.close()


class Producer:
    """Writes and flushes until it is told to stop, and remembers what was acknowledged."""

    def __init__(self, table: memwal.Table) -> None:
        self.acknowledged: dict[int, str] = {}
        self.error: BaseException | None = None
        self._table = table
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer")

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            with self._table.writer() as writer:
                turn = 0
                # A pause in between: nobody is to be kept from work by small writes.
                while not self._stop.wait(0.5):
                    ids = [(turn * BATCH + i) % KEYS for i in range(BATCH)]
                    values = [f"{turn}-{i}" for i in ids]
                    writer.upsert(pa.table({"id": pa.array(ids, pa.int64()), "v": values}))
                    self.acknowledged.update(zip(ids, values, strict=True))
                    if turn % 10 == 9:
                        writer.flush()
                    turn += 1
        except BaseException as error:  # told by the test, which is another thread
            self.error = error


def test_a_new_table_is_maintained_by_itself_while_it_is_written(place: Place) -> None:
    airflow = place.airflow
    for name in ON:
        airflow.wait_dag(name)

    table = memwal.create(
        str(place.folder / "orders.lance"),
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())]),
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        maintained_indexes=["id_idx"],
    )
    with Producer(table) as producer:
        policy = Policy(merge_at_generations=2, index_at_generations=1, poll_seconds=2)
        place.catalog.register("orders", uri=table.uri, policy=policy, owner="tests")
        airflow.wait(
            lambda: {"merge", "index", "snapshot", "gc"} <= succeeded(place.catalog),
            timeout=500,
            what="do all jobs by itself",
        )
        place.catalog.update("orders", policy=replace(policy, schedule=None))
        runs = runs_of(airflow, DAG_ID)
        assert {run["run_type"] for run in runs} == {"asset_triggered"}
        for run in runs:
            run_id = run["dag_run_id"]
            state = airflow.wait_run(DAG_ID, run_id, timeout=500)
            assert state == "success", airflow.task_log(DAG_ID, run_id, "merge")
        for name in ON:
            airflow.wait(lambda name=name: runs_of(airflow, name) != [], timeout=60, what=name)
            fired = runs_of(airflow, name)[-1]
            assert airflow.wait_run(name, fired["dag_run_id"], timeout=120) == "success"
            extra = airflow.xcom(name, fired["dag_run_id"], "take")[0]
            if name == "on_indexed":
                assert set(extra) == {"version"}
                continue
            if name == "on_changed":
                feed = table.changes(extra["payload"]["after"], until=extra["payload"]["until"])
                assert feed.token == extra["payload"]["until"]
                assert 0 < extra["payload"]["rows"] <= len(producer.acknowledged)
                continue
            results = [run.result for run in place.catalog.runs(table="orders", job="merge")]
            assert extra in [
                {
                    "version": result["version"],
                    "rows": result["metrics"]["rows_upserted"],
                    "generations": result["metrics"]["generations"],
                }
                for result in results
                if result is not None
            ]
    assert producer.error is None
    assert len(producer.acknowledged) >= 250

    # Lance's own reader sees every row that was acknowledged, merged or not, in its last state.
    found = native.everything(table)
    assert {row["id"]: row["v"] for row in found} == producer.acknowledged
    assert len(found) == len(producer.acknowledged)
    assert {run.state for run in place.catalog.runs(table="orders")} == {"succeeded"}


def succeeded(catalog: Catalog) -> set[str]:
    """The jobs that succeeded."""
    return {run.job for run in catalog.runs(table="orders") if run.state is RunState.SUCCEEDED}


def runs_of(airflow: AirflowStandalone, dag_id: str) -> list[dict[str, Any]]:
    """The runs of a DAG; none while it is not parsed."""
    answer = airflow.client().get(f"/api/v2/dags/{dag_id}/dagRuns")
    found: list[dict[str, Any]] = answer.json().get("dag_runs", [])
    return found
