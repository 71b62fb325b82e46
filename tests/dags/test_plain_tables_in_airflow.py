"""A table without MemWAL under the DAGs: from 10,000 fragments to a clean one.

Airflow's metadata and the catalog are in PostgreSQL here.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from airflow_demo.standalone import AirflowStandalone
from support.airflow.quiet import QUIET
from support.data.postgres import PostgresServer

import memwal
from memwal.catalog import Catalog, Policy, RunState

REPOSITORY = Path(__file__).resolve().parents[2]
FRAGMENTS = 10_000
ROWS = 5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a table of 10,000 fragments that its index does not cover."""
    uri = tmp_path / "lake" / "memory.lance"
    first = lance.write_dataset(_rows(0), uri)
    first.create_scalar_index("id", "BTREE")
    fragments = [
        lance.fragment.write_fragments(_rows(number), uri, mode="append")[0]
        for number in range(1, FRAGMENTS)
    ]
    lance.LanceDataset.commit(uri, lance.LanceOperation.Append(fragments), read_version=2)
    return uri.parent


def _rows(number: int) -> pa.Table:
    ids = np.arange(number * ROWS, (number + 1) * ROWS)
    return pa.table({"id": ids, "note": [f"note {number}"] * ROWS})


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


def test_all_jobs_of_a_table_that_is_found_run_by_themselves(
    folder: Path, server: PostgresServer, tmp_path: Path
) -> None:
    url = server.new_database()
    env = {
        "MEMWAL_CATALOG_URL": url,
        "MEMWAL_CATALOG_SNAPSHOT": str(tmp_path / "tables.json"),
        **QUIET,
    }
    dags = tmp_path / "dags"
    dags.mkdir()
    for name in ("memwal_tables.py", "memwal_fleet.py"):
        (dags / name).symlink_to(REPOSITORY / "dags" / name)
    with closing(Catalog(url, snapshot_path=env["MEMWAL_CATALOG_SNAPSHOT"])) as catalog:
        catalog.migrate()
        catalog.add_folder(str(folder), policy=Policy(poll_seconds=1, index_at_rows=1))
        airflow_url = server.new_database()
        settings = {
            # One driver for both, which Airflow does not choose by itself.
            "database": {"sql_alchemy_conn": airflow_url, "sql_alchemy_conn_async": airflow_url},
            "memwal": {"local_below_bytes": str(1 << 30)},
        }
        with AirflowStandalone(
            tmp_path / "airflow", dags_folder=dags, env=env, settings=settings
        ) as airflow:
            airflow.wait_dag("memwal_fleet")
            airflow.trigger("memwal_fleet")
            airflow.wait_dag("memwal__memory", timeout=300)

            def done() -> bool:
                ended = {run.job for run in catalog.runs() if run.state is RunState.SUCCEEDED}
                return ended >= {"index", "compact", "gc"}

            airflow.wait(done, timeout=600, what="run every job")
            table = memwal.open(folder / "memory.lance")
            status = table.status()
            assert status.small_fragments == 0
            assert [lag.rows for lag in status.indexes] == [0]
            assert table.count_rows() == FRAGMENTS * ROWS
            assert table.verify().findings == ()
            tasks = {
                instance["task_id"]
                for run in airflow.client()
                .get("/api/v2/dags/memwal__memory/dagRuns")
                .json()["dag_runs"]
                for instance in airflow.task_instances("memwal__memory", run["dag_run_id"])
            }
            assert tasks == {"gate", "index", "compact", "collect", "done"}
