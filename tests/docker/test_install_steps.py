"""The steps that fill the images, carried out in a clean folder as the Dockerfile has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.kubernetes import dockerfile

ROOT = Path(__file__).resolve().parents[2]
# What comes from outside: where packages are, whom to trust, and the caches of this user.
HANDED_ON = ("HOME", "PATH", "TMPDIR", "PIP_CERT", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")
MERGE = """
import pyarrow as pa, sys
import memwal
schema = pa.schema([("id", pa.int64()), ("city", pa.string())])
table = memwal.create(sys.argv[1], schema, primary_key=["id"],
                      region_spec=memwal.RegionSpec.bucket("id", 2))
with table.writer() as writer:
    writer.upsert(pa.table({"id": range(100), "city": ["EWR"] * 100}))
    writer.delete(pa.array([7]))
"""

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def environ() -> dict[str, str]:
    return {key: os.environ[key] for key in HANDED_ON if key in os.environ}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> dockerfile.Bench:
    return dockerfile.Bench(
        dockerfile.read(ROOT / "docker" / "Dockerfile"),
        root=tmp_path_factory.mktemp("bench"),
        source=ROOT,
        files=dockerfile.context(ROOT, ROOT / ".dockerignore"),
        # Not the one of an environment: a link to it would find what is installed there.
        python=Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"),
    )


class Installed:
    """The environment of an image."""

    def __init__(self, bench: dockerfile.Bench, image: str, environ: dict[str, str]) -> None:
        self.folder = bench.environment_of(image, environ)
        self.environ = {
            **environ,
            "PATH": f"{self.folder}/bin:{environ['PATH']}",
            "SPARK_LOCAL_HOSTNAME": "localhost",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def run(self, *command: object, **more: str) -> str:
        done = subprocess.run(
            [self.folder / "bin" / str(command[0]), *map(str, command[1:])],
            # Python looks into this folder first: not into the project's.
            cwd=self.folder,
            env={**self.environ, **more},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.mark.parametrize(
    "image",
    [
        pytest.param("memwal", marks=pytest.mark.slow),
        pytest.param("memwal-spark", marks=pytest.mark.slow),
        pytest.param("memwal-airflow", marks=pytest.mark.soak),
    ],
)
def test_an_image_does_what_it_is_for(
    bench: dockerfile.Bench, environ: dict[str, str], tmp_path: Path, image: str
) -> None:
    installed = Installed(bench, image, environ)

    assert installed.run("memwal", "--version").startswith("memwal ")
    at = installed.run("python", "-c", "import memwal; print(memwal.__file__)")
    assert Path(at.strip()).is_relative_to(installed.folder)
    table = tmp_path / "flights.lance"
    installed.run("python", "-c", MERGE, table)
    catalog = {"MEMWAL_CATALOG_URL": f"sqlite:///{tmp_path}/catalog.db"}
    installed.run("memwal", "catalog", "migrate", **catalog)
    installed.run("memwal", "catalog", "register", "flights", table, **catalog)
    installed.run("python", "-c", "import prometheus_client, opentelemetry.sdk, psycopg")

    if image == "memwal":
        installed.run("memwal", "merge", table)
    else:
        result = tmp_path / "result.json"
        installed.run(
            "spark-submit", "--master", "local[2]", ROOT / "spark_apps" / "merge.py",
            "--table", table, "--result", result,
            PYSPARK_PYTHON=f"{installed.folder}/bin/python",
        )  # fmt: skip
        assert json.loads(result.read_text())["metrics"]["rows_deleted"] in {0, 1}
        installed.run("python", "-c", "import great_expectations")
    status = json.loads(installed.run("memwal", "status", table, "--json"))
    assert status["backlog_generations"] == 0

    if image == "memwal-airflow":
        home = {"AIRFLOW_HOME": str(tmp_path / "airflow"), **catalog}
        found = json.loads(installed.run("airflow", "plugins", "--output=json", **home))
        # Providers may bring plugins of their own.
        (plugin,) = (plugin for plugin in found if plugin["name"] == "memwal")
        assert plugin["fastapi_apps"]
        providers = installed.run("airflow", "providers", "list", "--output=plain", **home)
        for name in ("celery", "cncf-kubernetes", "fab", "postgres", "apache-spark"):
            assert f"apache-airflow-providers-{name} " in providers
        page = installed.run(
            "python", "-c",
            "from importlib.resources import files as f;"
            "print(f('memwal_airflow').joinpath('web/static/index.html').read_text())",
        )  # fmt: skip
        assert "<script" in page
