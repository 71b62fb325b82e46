"""An Airflow of the tests' own, set before Airflow is imported, and a table with a backlog."""

import importlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.airflow.dag_bag import load_dag_bag
from support.airflow.outlet_events import OutletEvents
from support.data.copied import copy_of
from support.kubernetes.kubernetes_server import KubernetesServer, kubeconfig, running_kubernetes

import memwal
from memwal.catalog import Catalog, Policy

_NUMBERS = itertools.count()
HOME = Path(tempfile.mkdtemp(prefix="memwal-airflow-"))
os.environ["AIRFLOW_HOME"] = str(HOME)
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(HOME / "dags")
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "True"
# Tables of tests are small, and most tests are about the Spark that their jobs run on.
os.environ["AIRFLOW__MEMWAL__LOCAL_BELOW_BYTES"] = "0"
# The Kubernetes provider reads how long it waits between attempts when it is imported.
os.environ["AIRFLOW__WORKERS__API_RETRY_WAIT_MIN"] = "0.01"
os.environ["AIRFLOW__WORKERS__API_RETRY_WAIT_MAX"] = "0.02"
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
        self.table.upsert(pa.table({"id": pa.array(ids, pa.int64()), "v": ["new"] * len(ids)}))

    def waiting(self) -> dict[str, int]:
        """Return the pending generations of each region."""
        return {r.region_id: r.backlog_generations for r in self.table.status().regions}


@pytest.fixture(scope="session")
def airflow_database() -> None:
    from airflow.utils.db import initdb

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # It warns about the settings of the FAB provider's migrations.
        initdb()
        # It warns about the test client of another package; DAG.test() would load it later.
        importlib.import_module("airflow.api_fastapi.execution_api.app")


@pytest.fixture(autouse=True)
def _no_context_of_a_task() -> Iterator[None]:
    """Forget what ``DAG.test()`` leaves in the environment: the names of the last task."""
    yield
    # The second is what Airflow 3.1 leaves: later loads would give this DAG alone.
    left = ("AIRFLOW_CTX_", "_AIRFLOW_PARSING_CONTEXT_")
    for name in [name for name in os.environ if name.startswith(left)]:
        del os.environ[name]


@pytest.fixture
def load_dag(
    airflow_database: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], Any]]:
    """Give the text of a DAG file and the id of a DAG in it; get the DAG as Airflow loads it."""
    # DAG.test() sleeps a second after each round in which no task could run.
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.02)))
    folder = HOME / "dags"
    folder.mkdir(exist_ok=True)
    written: list[Path] = []

    def load(text: str, dag_id: str) -> Any:
        # Each has a name of its own: of two files of the same name, length and second, Python
        # takes the stored bytecode of the first for that of the second.
        path = folder / f"under_test_{next(_NUMBERS)}.py"
        path.write_text(text)
        written.append(path)
        bag = load_dag_bag(path)
        assert bag.import_errors == {}
        return bag.dags[dag_id]

    yield load
    for path in written:
        path.unlink()


def _make_backlog(folder: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = memwal.create(
        str(folder / "table.lance"),
        schema,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        maintained_indexes=["id_idx", "v_idx"],
    )
    made = BacklogTable(uri=table.uri, table=table, hot="", cold="")
    made.flush(*range(100))
    for _ in range(3):
        made.flush(0)


@pytest.fixture
def backlog(tmp_path: Path) -> BacklogTable:
    copy_of("a table of the plugin", tmp_path, _make_backlog, times=False)
    table = memwal.open(tmp_path / "table.lance")
    counts = {r.backlog_generations: r.region_id for r in table.status().regions}
    return BacklogTable(uri=table.uri, table=table, hot=counts[4], cold=counts[1])


@pytest.fixture
def catalog(catalog: Catalog, url: str, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The catalog that the plugin's code finds."""
    monkeypatch.setenv("MEMWAL_CATALOG_URL", url)
    return catalog


class TaskState:
    """A task's state, as Airflow keeps it from one try to the next."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def set(self, key: str, value: Any) -> None:
        self.values[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


class TaskInstance:
    """What the operators use of one."""

    dag_id, run_id, task_id, map_index = "dag", "run", "task", -1
    try_number = 1

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


class Event:
    """What an asset's event carries."""

    def __init__(self) -> None:
        self.extra: dict[str, Any] = {}


@pytest.fixture
def context() -> dict[str, Any]:
    """What Airflow gives to a task."""
    return {
        "ti": TaskInstance(),
        "params": {},
        "outlet_events": OutletEvents(Event),
        "task_state_store": TaskState(),
    }


@pytest.fixture
def fake_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``spark-submit`` that runs applications without Spark, which takes a second or two."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "spark3-submit"
    runner = Path(__file__).parents[1] / "support" / "airflow" / "fake_spark.py"
    script.write_text(
        "#!/bin/sh\n"
        'while [ "${1%.py}" = "$1" ]; do shift; done\n'
        f'exec {sys.executable} {runner} "$@"\n'
    )
    script.chmod(0o755)
    connection = {
        "conn_type": "spark",
        "host": "local[1]",
        "extra": {"spark-binary": "spark3-submit"},
    }
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_FAKE", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_CONN_ID", "fake")
    monkeypatch.setenv("AIRFLOW__MEMWAL__STATE_FOLDER", str(tmp_path / "state"))


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what a job leads to, however it was run: an application takes seconds to start."""
    monkeypatch.setenv("AIRFLOW__MEMWAL__LOCAL_BELOW_BYTES", "1000000000")


@pytest.fixture
def kubernetes() -> Iterator[KubernetesServer]:
    """A cluster whose drivers do nothing by themselves."""
    with running_kubernetes() as running:
        yield running


@pytest.fixture
def in_cluster(
    kubernetes: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> KubernetesServer:
    """Jobs run there, submitted by a ``spark-submit`` that needs no Spark."""
    from memwal_airflow.kubernetes import driver_pod
    from memwal_airflow.spark import submit

    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "spark-submit"
    stand_in = Path(__file__).parents[1] / "support" / "kubernetes" / "fake_cluster_submit.py"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -I {stand_in} "$@"\n')
    script.chmod(0o755)
    settings = {
        "SPARK_MASTER": f"k8s://{kubernetes.address}",
        "DEPLOY_MODE": "cluster",
        "KUBERNETES_NAMESPACE": "spark",
        "RESULTS_URI": f"file://{tmp_path / 'results'}",
        "STATE_FOLDER": str(tmp_path / "state"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"AIRFLOW__MEMWAL__{name}", value)
    # The command itself is not what is tested, and looking for a Java takes its time.
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(submit, "job_environment", lambda **_: dict(os.environ))
    monkeypatch.setattr(driver_pod, "POLL_SECONDS", 0.05)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    return kubernetes


@pytest.fixture
def managed(backlog: BacklogTable, catalog: Catalog) -> BacklogTable:
    """The table with the backlog, in the catalog as ``t``."""
    policy = Policy(merge_at_generations=4, merge_at_age_seconds=3600)
    catalog.register("t", uri=backlog.uri, policy=policy)
    return backlog
