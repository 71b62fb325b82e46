"""The page in a real Airflow: who gets in, and a run that is started from it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow_demo.standalone import AirflowStandalone
from support.airflow.quiet import QUIET
from support.processes import run_python

import memwal
from memwal.catalog import Catalog, Policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
REPOSITORY = Path(__file__).resolve().parents[3]
WRITES = {"X-Requested-With": "memwal"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="module")
def table(folder: Path) -> Any:
    import pyarrow as pa

    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = memwal.create(
        folder / "flights.lance", schema, primary_key="id", region_spec="bucket:id:2"
    )
    table.upsert(pa.table({"id": range(100), "v": ["new"] * 100}))
    return table


@pytest.fixture(scope="module")
def catalog(folder: Path, table: Any) -> Iterator[Catalog]:
    catalog = Catalog(f"sqlite:///{folder / 'c.db'}", snapshot_path=folder / "snapshot.json")
    catalog.migrate()
    # By hand only, so that what happens is what the test asks for.
    policy = Policy(schedule=None, merge_at_generations=1)
    catalog.register("flights", uri=table.uri, policy=policy)
    catalog.register("lake", uri=table.uri, policy=policy, storage_options_ref="airflow:lake")
    catalog.record_backlog("flights", table.status())
    yield catalog
    catalog.close()


@pytest.fixture(scope="module")
def airflow(folder: Path, catalog: Catalog) -> Iterator[AirflowStandalone]:
    env = {
        "MEMWAL_CATALOG_URL": catalog.database.shown_url,
        "MEMWAL_CATALOG_SNAPSHOT": str(folder / "snapshot.json"),
        **QUIET,
    }
    with AirflowStandalone(
        folder / "home",
        dags_folder=REPOSITORY / "dags",
        env=env,
        settings={"memwal": {"spark_master": "local[1]", "local_below_bytes": "0"}},
        parallelism=2,
    ) as airflow:
        yield airflow


def test_options_of_a_connection(airflow: AirflowStandalone) -> None:
    path = "/memwal/api/tables/lake/collection"
    viewer = airflow.client("viewer")
    assert viewer.get(path).status_code == 502
    extra = '{"aws_secret_access_key": "hush-hush-hush"}'
    body = {"connection_id": "lake", "conn_type": "generic", "extra": extra}
    assert airflow.client().post("/api/v2/connections", json=body).status_code == 201
    answer = viewer.get(path)
    assert answer.status_code == 200
    assert {one["kind"] for one in answer.json()["stays"]} >= {"generation"}
    logs = (airflow.home / "logs").rglob("*.log")
    assert not [log for log in logs if "hush-hush" in log.read_text(errors="replace")]


def test_an_admin_starts_a_run_and_sees_it(
    airflow: AirflowStandalone, catalog: Catalog, table: Any
) -> None:
    airflow.wait_dag("memwal__flights")
    client = airflow.client()
    body = {"jobs": ["merge", "index"], "regions": [], "force": True, "dry_run": False}
    answer = client.post("/memwal/api/tables/flights/runs", json=body, headers=WRITES)
    assert answer.status_code == 202, answer.text
    started = answer.json()
    run_id = started["dag_run_id"]
    assert started["paused"] is False
    run = client.get(f"/api/v2/dags/memwal__flights/dagRuns/{run_id}").json()
    assert run["conf"] == body
    assert run["triggering_user_name"] == "admin"
    assert airflow.wait_run("memwal__flights", run_id, timeout=300) == "success"
    assert table.status().backlog_generations == 0
    runs = client.get("/memwal/api/tables/flights/runs?job=merge").json()["runs"]
    assert [(one["state"], one["rows"]) for one in runs] == [("succeeded", 100)]
    assert runs[0]["link"].startswith("/dags/memwal__flights/runs/manual__")
    (found, _) = client.get("/memwal/api/fleet").json()["tables"]
    assert "merge" in found["last_runs"]
    assert found["rows_merged_per_second"] > 0
    events = client.get("/api/v2/eventLogs", params={"dag_id": "memwal__flights"}).json()
    asked = [one for one in events["event_logs"] if one["event"] == "memwal_start_run"]
    assert [(one["owner"], one["run_id"]) for one in asked] == [("admin", run_id)]


def test_tasks_do_not_load_the_app() -> None:

    code = (
        "import sys, memwal_airflow.plugin; "
        "print([n for n in sys.modules if n.startswith(('fastapi', 'memwal_airflow.web.app'))])"
    )
    assert run_python(code).stdout.splitlines()[-1] == "[]"
