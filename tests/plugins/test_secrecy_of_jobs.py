"""Credentials of a connection reach Spark's workers, and nothing that anybody keeps or shows.

A real Airflow and real Spark drivers, with every log at its most talkative. What is looked at: the
command lines and environments of all processes, the files that others could read, Spark's UI and
event log, Airflow's logs and database, and the catalog.
"""

import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
import pytest
from airflow_demo.processes import free_port
from airflow_demo.standalone import AirflowStandalone
from support.airflow.webhook_server import WebhookServer
from support.stores.s3_emulator import S3Emulator, running_emulator

import memwal
from memwal.catalog import Catalog

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).resolve().parents[2]
SECRETS = {
    "aws_access_key_id": "AKIDMARKERA1B2C3D4E5",
    "aws_secret_access_key": "marker-secret-8f1d/27ab+90c3",
    "aws_session_token": "marker-session-55d20a7e41",
}
WEBHOOK = "T0/marker-webhook-6b12f09c"
DAGS = """
from airflow.sdk import DAG
from memwal_airflow.operators.maintenance import MemWalMergeOperator

def dag(name, uri, conn_id):
    with DAG(name, schedule=None, is_paused_upon_creation=False):
        MemWalMergeOperator(
            task_id="merge", table_uri=uri, regions=REGIONS, retries=0, force=True,
            storage_options_ref="airflow:" + conn_id, spark_options={"conf": CONF},
        )

dag("works", URI, "lake")
dag("memwal__flights", URI, "broken")
"""


def needles() -> list[bytes]:
    """The secrets as they are, and as base64 would hide them, wherever it starts."""
    found = []
    for secret in (*SECRETS.values(), WEBHOOK):
        found.append(secret.encode())
        for shift in range(3):
            encoded = base64.b64encode(b"x" * shift + secret.encode())
            # Without the ends, which depend on what stands beside it.
            found.append(encoded[4 : len(encoded) - 6])
    return found


NEEDLES = needles()


def shown(content: bytes) -> bool:
    return any(needle in content for needle in NEEDLES)


@dataclass
class Watch:
    """What was seen while jobs ran.

    Attributes
    ----------
    processes, environments, pages, files : int
        How many were looked at.
    has_pages : bool
        True as soon as all pages of an application have answered.
    leaks : set of str
        Where secrets were.
    """

    ui: str
    folders: tuple[Path, ...]
    processes: int = 0
    environments: int = 0
    pages: dict[str, int] = field(default_factory=dict)
    has_pages: bool = False
    private: int = 0
    leaks: set[str] = field(default_factory=set)

    def look_at_files(self) -> None:
        """Look at everything that is in the folders now."""
        for folder in self.folders:
            # Folders go while they are looked at, which ``os.walk`` passes over.
            for above, _, names in os.walk(folder):
                for name in names:
                    self._file(Path(above, name))

    def look_at_processes(self) -> None:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                command = "\0".join(process.cmdline()).encode()
                self.processes += 1
                if shown(command):
                    self.leaks.add(f"command line: {process.name()}")
                if "spark" in command.decode(errors="replace").lower():
                    self.environments += 1
                    if shown(str(process.environ()).encode()):
                        self.leaks.add(f"environment: {process.name()}")

    def look_at_pages(self) -> None:
        with contextlib.suppress(httpx.HTTPError, LookupError, ValueError), self._driver_held():
            (app,) = httpx.get(f"{self.ui}/api/v1/applications", timeout=5).json()
            api = f"/api/v1/applications/{app['id']}"
            pages = ["/environment/"]
            pages += [f"{api}/{name}" for name in ("environment", "jobs", "stages", "allexecutors")]
            pages += ["/jobs/", "/stages/", "/executors/", "/SQL/", "/storage/"]
            for page in pages:
                answer = httpx.get(self.ui + page, timeout=5, follow_redirects=True)
                if answer.status_code == 200:
                    self.pages[page.replace(api, "api")] = len(answer.content)
                if shown(answer.content):
                    self.leaks.add(f"page: {page}")
            self.has_pages = True

    @contextlib.contextmanager
    def _driver_held(self) -> Iterator[None]:
        """Stop the Python process of a driver until all pages answered once.

        Its application may end before, on a busy machine.
        """
        held = []
        for process in () if self.has_pages else psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.name().startswith("python") and "merge.py" in str(process.cmdline()):
                    process.suspend()
                    held.append(process)
        try:
            yield
        finally:
            for process in held:
                with contextlib.suppress(psutil.Error):
                    process.resume()

    def _file(self, path: Path) -> None:
        """What is written meanwhile may hold secrets if nobody else can read it."""
        with contextlib.suppress(OSError):
            if not path.is_file() or not shown(path.read_bytes()):
                return
            self.private += 1
            above = [path, *path.parents]
            if not any(one.stat().st_mode & 0o077 == 0 for one in above[: len(above) - 2]):
                self.leaks.add(f"file that others can read: {path}")


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[S3Emulator]:
    (tmp_path / "s3").mkdir()
    with running_emulator(tmp_path / "s3") as running:
        yield running


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Return the folder of temporary files of everything that is started here."""
    # As in /tmp, others may look into it.
    path = tmp_path / "scratch"
    path.mkdir(mode=0o755)
    return path


def airflow_at(
    tmp_path: Path,
    scratch: Path,
    emulator: S3Emulator,
    webhook: WebhookServer,
    table: memwal.Table,
    ui_port: int,
) -> AirflowStandalone:
    (tmp_path / "events").mkdir()
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(ui_port),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{tmp_path / 'events'}",
        "spark.log.level": "DEBUG",
    }
    (tmp_path / "dags").mkdir()
    regions = [str(region) for region in table.region_ids()]
    head = f"URI = {table.uri!r}\nREGIONS = {regions!r}\nCONF = {conf!r}\n"
    (tmp_path / "dags" / "jobs.py").write_text(head + DAGS)
    airflow = AirflowStandalone(
        tmp_path / "airflow",
        dags_folder=tmp_path / "dags",
        env={
            "MEMWAL_CATALOG_URL": f"sqlite:///{tmp_path / 'catalog.db'}",
            "TMPDIR": str(scratch),
            "LANCE_LOG": "debug",
        },
        settings={
            # Airflow hides in its logs what it knows to be secret: here nothing may be hidden.
            "core": {"hide_sensitive_var_conn_fields": "False"},
            "logging": {"logging_level": "DEBUG"},
            "memwal": {
                "spark_master": "local[2]",
                "local_below_bytes": "0",
                "notify_conn_id": "ops",
            },
        },
    )
    airflow.start()
    good = {**emulator.storage_options, **SECRETS}
    bad = {
        **good,
        "aws_endpoint": f"http://127.0.0.1:{free_port()}",
        "secret_options": json.dumps({"client_max_retries": "0", "client_retry_timeout": "1"}),
    }
    connections = tmp_path / "connections.json"
    given = {
        "lake": {"conn_type": "memwal", "extra": good},
        "broken": {"conn_type": "memwal", "extra": bad},
        "ops": {"conn_type": "http", "host": f"{webhook.address}/services", "password": WEBHOOK},
    }
    connections.write_text(json.dumps(given))
    # Given on the command line, it would be seen by all.
    subprocess.run(
        [sys.executable, "-m", "airflow", "connections", "import", connections],
        env=airflow.environment(),
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    connections.unlink()
    airflow.wait_healthy()
    return airflow


def test_no_secret_is_seen_anywhere(
    tmp_path: Path, scratch: Path, emulator: S3Emulator, webhook_server: WebhookServer
) -> None:
    bucket = emulator.create_bucket()
    table = memwal.create(
        f"s3://{bucket}/flights.lance",
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())]),
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        storage_options={**emulator.storage_options, **SECRETS},
    )
    table.upsert(pa.table({"id": range(100), "v": ["new"] * 100}))
    catalog = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}")
    catalog.migrate()
    catalog.register("flights", uri=table.uri, storage_options_ref="airflow:lake")
    catalog.backoffs.record_failure("flights", "status", "no such bucket")

    ui_port = free_port()
    airflow = airflow_at(tmp_path, scratch, emulator, webhook_server, table, ui_port)
    # Beside the temporary files, the folders of jobs.
    watch = Watch(f"http://127.0.0.1:{ui_port}", (scratch, tmp_path / "airflow" / "memwal"))
    done = threading.Event()

    def keep_looking(look: Callable[[], None]) -> None:
        while not done.is_set():
            look()
            done.wait(0.1)

    # Each by itself: an application has its pages for a few seconds.
    looks = (watch.look_at_files, watch.look_at_processes, watch.look_at_pages)
    watchers = [threading.Thread(target=keep_looking, args=(look,)) for look in looks]
    try:
        # The commands that added the connections are over by now.
        for watcher in watchers:
            watcher.start()
        states = {}
        logs = {}
        for dag in ("works", "memwal__flights"):
            run = airflow.trigger(dag)
            states[dag] = airflow.wait_run(dag, run)
            logs[dag] = airflow.task_log(dag, run, "merge")
    finally:
        done.set()
        for watcher in watchers:
            watcher.join()
        airflow.stop()

    assert states == {"works": "success", "memwal__flights": "failed"}, logs
    # The listener told of what else is wrong with the table whose task failed.
    (told,) = webhook_server.received
    assert told["path"] == f"/services/{WEBHOOK}"
    assert "no such bucket" in told["body"]["text"]
    assert table.base().dataset.count_rows() == 100
    assert watch.leaks == set()
    # It was really looked at.
    assert watch.environments > 0
    assert watch.private > 0, "the handed over file was never seen"
    assert {"/environment/", "api/environment", "api/jobs", "api/stages"} <= set(watch.pages)
    assert "DEBUG" in logs["works"]

    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    places = {
        "logs": tmp_path / "airflow" / "logs",
        "event log": tmp_path / "events",
        "temporary files": scratch,
        "folders of jobs": tmp_path / "airflow" / "memwal",
    }
    for name, folder in places.items():
        found = [path for path in kept if path.is_relative_to(folder)]
        assert found or name not in ("logs", "event log"), name
        assert [str(path) for path in found if shown(path.read_bytes())] == [], name
    for name in ("airflow/airflow.db", "catalog.db"):
        for path in tmp_path.glob(f"{name}*"):
            assert not shown(path.read_bytes()), name
    catalog.close()
