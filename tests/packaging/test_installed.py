"""The built package in environments that hold one extra each and nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.data.postgres import PostgresServer
from support.data.sampled import drawn

from memwal.spark.session import find_java

pytestmark = pytest.mark.timeout(1200)
ROOT = Path(__file__).resolve().parents[2]
SMOKE = Path(__file__).with_name("_smoke.py")
UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"

CATALOG = {"sqlalchemy", "alembic"}
CLI = {"typer", "rich"}
BROUGHT = {
    "": set(),
    "expressions": {"datafusion"},
    "cli": CLI,
    "catalog": CATALOG,
    "postgres": CATALOG | {"psycopg"},
    "aws": {"boto3"},
    "spark": {"pyspark", "pandas"},
    "quality": CATALOG | {"great_expectations", "pandas", "yaml"},
    "metrics": {"opentelemetry.sdk", "prometheus_client"},
    "airflow": CATALOG | CLI | {"airflow", "airflow.providers.apache.spark", "boto3"},
    "kubernetes": CATALOG | CLI | {"airflow", "pyspark", "pandas", "boto3", "kubernetes"},
}
"""Extra to the heavy packages that it is there for."""
HEAVY = set.union(*BROUGHT.values()) - {"airflow.providers.apache.spark"}
# What those bring along themselves, besides what they are there for.
ALSO = {
    "airflow": {"opentelemetry.sdk", "yaml", "pandas", "psycopg", "prometheus_client"},
    "kubernetes": {"opentelemetry.sdk", "yaml", "prometheus_client"},
    "quality": {"typer", "rich"},
}


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the wheel and the sdist; ``make ui`` has built the page."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    server = PostgresServer()
    yield server.new_database()
    server.close()


@pytest.mark.slow
def test_every_extra_of_users_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) - {"demo", "dev", "docs"} == set(BROUGHT) - {""}


@pytest.mark.slow
def test_an_sdist_builds_the_same_wheel(dist: Path, wheel: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=source, check=True)
    (again,) = tmp_path.glob("*.whl")
    assert digest(again) == digest(wheel)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    static = [name for name in names if name.startswith("memwal_airflow/web/static/")]
    assert {Path(name).suffix for name in static} == {".html", ".svg", ".js", ".css"}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "extra", drawn(6, BROUGHT, seed="an extra", ids=lambda extra: extra or "none")
)
def test_each_extra_alone(
    wheel: Path, tmp_path: Path, extra: str, request: pytest.FixtureRequest
) -> None:
    python = installed(wheel, extra, tmp_path / "env")
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env |= {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    if extra == "postgres":
        env["SMOKE_POSTGRES"] = request.getfixturevalue("postgres_url")
    if extra == "spark":
        env["JAVA_HOME"] = str(find_java().home)
    done = subprocess.run(
        [python, "-I", SMOKE, extra or "base", tmp_path],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    probe = (
        "from importlib.util import find_spec\n"
        "def there(name):\n"
        "    try: return find_spec(name) is not None\n"
        "    except ModuleNotFoundError: return False\n"
        f"print(*[name for name in {sorted(HEAVY | BROUGHT[extra])!r} if there(name)])"
    )
    # Airflow may log before: what is asked for stands in the last line.
    answer = subprocess.check_output([python, "-I", "-c", probe], text=True, env=env)
    found = answer.splitlines()[-1].split()
    assert BROUGHT[extra] <= set(found)
    assert set(found) - BROUGHT[extra] <= ALSO.get(extra, set())


def installed(wheel: Path, extra: str, folder: Path) -> Path:
    """A new environment with the wheel, in the versions of the lock; its Python."""
    python = folder / "bin" / "python"
    wanted = f"memwal[{extra}]" if extra else "memwal"
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, folder], check=True)
    subprocess.run(
        [
            *(UV, "pip", "install", "-q", "--python", python),
            *("--constraints", ROOT / "requirements" / "dev.lock"),
            *("--overrides", ROOT / "requirements" / "overrides.txt"),
            f"{wanted} @ {wheel.as_uri()}",
        ],
        check=True,
    )
    return python
