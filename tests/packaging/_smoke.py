"""Run by the Python of an environment that has memwal and one extra of it, and nothing else.

``python -I _smoke.py EXTRA FOLDER``: uses what the extra is for; an exception is a failure.
"""

import json
import os
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pyarrow as pa

import memwal
from memwal.util.optional_deps import how_to_install

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
BINARIES = Path(sys.executable).parent
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def make(folder: Path, **options: Any) -> memwal.Table:
    """A table of ten rows that wait to be merged."""
    options.setdefault("region_spec", memwal.RegionSpec.bucket("id", 2))
    table = memwal.create(str(folder / "flights.lance"), SCHEMA, primary_key=["id"], **options)
    with table.writer() as writer:
        writer.upsert(pa.table({"id": range(11), "v": ["new"] * 11}, schema=SCHEMA))
        writer.delete(pa.array([10]))
        assert writer.scan().to_table().num_rows == 10
    return table


def program(*arguments: str, code: int = 0) -> str:
    """Run ``memwal`` and return what it printed."""
    done = subprocess.run([BINARIES / "memwal", *arguments], capture_output=True, text=True)
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done.stdout if code == 0 else done.stderr


def base(folder: Path) -> None:
    """A producer: writes, reads, and may merge; the program tells what it lacks."""
    table = make(folder, maintained_indexes=["id_idx"])
    assert table.scan(filter="id < 5").to_table().num_rows == 5
    table.checkpoint()
    assert table.base().dataset.count_rows() == 10
    assert table.lookup(pa.array([3])).to_pylist() == [{"id": 3, "v": "new"}]
    assert how_to_install("cli") in program("--version", code=2)


def expressions(folder: Path) -> None:
    """A table that is divided by an expression."""
    spec = memwal.RegionSpec.expression("col0 % 3", ["id"], pa.int64())
    assert len(make(folder, region_spec=spec).region_ids()) == 3


def cli(folder: Path) -> None:
    """The program, on a table that no catalog knows."""
    table = make(folder)
    assert f"memwal {memwal.__version__} (Python " in program("--version")
    assert (
        "memwal_completion"
        in subprocess.run(
            [BINARIES / "memwal"],
            env={**os.environ, "_MEMWAL_COMPLETE": "source_bash"},
            capture_output=True,
            text=True,
        ).stdout
    )
    program("merge", table.uri)
    os.chdir(folder)
    # A name could be one of a catalog, if there were catalogs here.
    assert json.loads(program("status", "flights.lance", "--json"))["regions"]
    assert table.base().dataset.count_rows() == 10
    assert how_to_install("catalog") in program("catalog", "list", code=2)
    assert how_to_install("catalog") in program("metrics", "serve", code=2)


def catalog(folder: Path, url: str | None = None) -> None:
    """A catalog, and the jobs that are due by it."""
    from memwal.catalog import Catalog, Policy
    from memwal.fleet import survey

    catalog = Catalog(url or f"sqlite:///{folder / 'catalog.db'}")
    catalog.migrate()
    policy = Policy(merge_at_generations=1)
    managed = catalog.register("flights", uri=make(folder).uri, policy=policy)
    assert survey(catalog, managed).due["merge"].reason
    catalog.close()


def postgres(folder: Path) -> None:
    """The same on PostgreSQL."""
    catalog(folder, os.environ["SMOKE_POSTGRES"])


def aws(folder: Path) -> None:
    """The keys of a profile."""
    from memwal.storage.credentials import credentials_for

    file = folder / "credentials"
    file.write_text("[lake]\naws_access_key_id = A\naws_secret_access_key = B\n")
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(file)
    found = credentials_for("s3", {"aws_profile": "lake"})
    assert found is not None
    assert found.current().options["aws_access_key_id"] == "A"


def spark(folder: Path) -> None:
    """A merge by spark-submit of the application that came with memwal, and a data frame."""
    table = make(folder)
    apps = subprocess.check_output(
        [sys.executable, "-I", "-m", "memwal.spark.application"], text=True
    ).strip()
    assert Path(apps).is_relative_to(sys.prefix), apps
    result = folder / "merge.json"
    submit = [BINARIES / "spark-submit", "--master", "local[1]", f"{apps}/merge.py"]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run([*submit, "--table", table.uri, "--result", result], env=env, check=True)
    assert json.loads(result.read_text())["metrics"]["rows_upserted"] == 10
    assert table.base().dataset.count_rows() == 10
    from memwal.spark import register
    from memwal.spark.session import spark_session

    session = spark_session("smoke", master="local[1]")
    register(session)
    assert session.read.format("memwal").load(table.uri).count() == 10
    session.stop()


def quality(folder: Path) -> None:
    """A suite that needs Great Expectations, held against the rows of a table."""
    from memwal.quality.evaluate import load_gx
    from memwal.quality.rules import QualityRules

    load_gx()
    table = make(folder)
    lengths = {
        "type": "expect_column_value_lengths_to_equal",
        "kwargs": {"column": "v", "value": 3},
    }
    table.merge(quality=QualityRules.from_dict({"mode": "skip", "suite": [lengths]}))
    assert table.base().dataset.count_rows() == 10


def metrics(folder: Path) -> None:
    """Metrics of jobs by the SDK of OpenTelemetry, as Prometheus reads them."""
    from opentelemetry import metrics as otel
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import generate_latest

    otel.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    make(folder).merge()
    assert b"memwal_" in generate_latest()


def airflow(folder: Path) -> None:
    """Airflow finds plugin, provider, DAGs and page, and merges a table that is registered."""
    (plugin,) = entry_points(group="airflow.plugins", name="memwal")
    assert plugin.value == "memwal_airflow.plugin:MemWalPlugin"
    # Behind everything else, so that memwal and its plugin come from the wheel. The components of
    # Airflow do not get this folder: they run with the folders of memwal and memwal_airflow.
    sys.path.append(str(EXAMPLES))
    from airflow_demo.standalone import AirflowStandalone

    from memwal.catalog import Catalog, Policy, RunState

    snapshot = folder / "tables.json"
    url = f"sqlite:///{folder / 'catalog.db'}?timeout=60"
    catalog = Catalog(url, snapshot_path=snapshot)
    catalog.migrate()
    table = make(folder)
    policy = Policy(schedule=None, merge_at_generations=1)
    catalog.register("flights", uri=table.uri, policy=policy)
    (folder / "no-dags").mkdir()
    classpath = "memwal_airflow.dag_bundle.MemWalDagBundle"
    bundle = {"name": "memwal", "classpath": classpath, "kwargs": {}}
    with AirflowStandalone(
        folder / "home",
        dags_folder=folder / "no-dags",
        env={"MEMWAL_CATALOG_URL": url, "MEMWAL_CATALOG_SNAPSHOT": str(snapshot)},
        settings={
            # There is no Spark here, so what is small enough is done without.
            "memwal": {"local_below_bytes": str(1 << 30), "fleet_schedule": "none"},
            "dag_processor": {"dag_bundle_config_list": json.dumps([bundle])},
        },
        parallelism=2,
    ) as running:
        client = running.client()
        errors = client.get("/api/v2/plugins/importErrors").json()
        assert errors["total_entries"] == 0, errors
        found = [one["name"] for one in client.get("/api/v2/plugins").json()["plugins"]]
        assert found.count("memwal") == 1, found
        page = client.get("/memwal/")
        assert page.status_code == 200
        assert "assets/index-" in page.text
        running.wait_dag("memwal__flights")
        running.wait_dag("memwal_fleet")
        running.trigger("memwal__flights", {"force": True})
        # Asked of the catalog: on a busy machine the API server can be late with an answer.
        deadline = time.monotonic() + 300
        while not catalog.runs(job="merge", state=RunState.SUCCEEDED):
            running.check()
            assert time.monotonic() < deadline, catalog.runs()
            time.sleep(1)
    assert table.base().dataset.count_rows() == 10
    catalog.close()


def kubernetes(folder: Path) -> None:
    """The parts that start drivers in a cluster are there, on the client that they ask for."""
    import kubernetes.client
    from memwal_airflow.kubernetes import cluster, driver_pod, pods

    assert kubernetes.client.CoreV1Api
    assert all(module.__doc__ for module in (cluster, driver_pod, pods))
    table = make(folder)
    table.merge()
    assert table.base().dataset.count_rows() == 10


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
    print("smoke", sys.argv[1], "ok")
