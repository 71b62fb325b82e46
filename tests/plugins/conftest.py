"""An Airflow of the tests' own, set before Airflow is imported, and a table with a backlog."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import memwal
from memwal.catalog import Catalog

HOME = Path(tempfile.mkdtemp(prefix="memwal-airflow-"))
os.environ["AIRFLOW_HOME"] = str(HOME)
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(HOME / "dags")
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "True"
os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{HOME / 'airflow.db'}"


def pytest_sessionfinish() -> None:
    shutil.rmtree(HOME, ignore_errors=True)


@dataclass(frozen=True)
class BacklogTable:
    """A table of two regions, ``hot`` with four generations and ``cold`` with one.

    Two indexes are maintained, ``id_idx`` and ``v_idx``.
    """

    uri: str
    table: memwal.Table
    hot: str
    cold: str

    def flush(self, *ids: int) -> None:
        """Write these keys and flush them as one generation per region."""
        with self.table.writer() as writer:
            writer.upsert(pa.table({"id": pa.array(ids, pa.int64()), "v": ["new"] * len(ids)}))
            writer.flush()


@pytest.fixture(scope="session")
def airflow_database() -> None:
    from airflow.utils.db import initdb

    initdb()
    # It warns about the test client of another package; DAG.test() would load it later.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("airflow.api_fastapi.execution_api.app")


@pytest.fixture
def load_dag(airflow_database: None) -> Iterator[Callable[[str, str], Any]]:
    """Give the text of a DAG file and the id of a DAG in it; get the DAG as Airflow loads it."""
    folder = HOME / "dags"
    folder.mkdir(exist_ok=True)
    path = folder / "under_test.py"

    def load(text: str, dag_id: str) -> Any:
        from airflow.dag_processing.dagbag import DagBag

        path.write_text(text)
        bag = DagBag(folder, bundle_name="dags-folder")
        assert bag.import_errors == {}
        return bag.dags[dag_id]

    yield load
    path.unlink(missing_ok=True)


@pytest.fixture
def backlog(tmp_path: Path) -> BacklogTable:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = memwal.create(
        str(tmp_path / "table.lance"),
        schema,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        maintained_indexes=["id_idx", "v_idx"],
    )
    made = BacklogTable(uri=table.uri, table=table, hot="", cold="")
    made.flush(*range(100))
    for _ in range(3):
        made.flush(0)
    counts = {r.backlog_generations: r.region_id for r in table.status().regions}
    return BacklogTable(uri=table.uri, table=table, hot=counts[4], cold=counts[1])


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """The catalog that the plugin's code finds."""
    monkeypatch.setenv("MEMWAL_CATALOG_URL", f"sqlite:///{tmp_path / 'catalog.db'}")
    catalog = Catalog()
    catalog.migrate()
    yield catalog
    catalog.close()
