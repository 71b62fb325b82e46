"""The built package in environments that hold one extra each and nothing else."""

import contextlib
import hashlib
import os
import re
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
from support.docs.page_runs import PageRun
from support.docs.pages import read_page

from memwal.spark.session import find_java

pytestmark = pytest.mark.timeout(1200)
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
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
    assert set(PROJECT["optional-dependencies"]) - {"demo", "dev", "docs"} == set(BROUGHT) - {""}


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
        env["JAVA_HOME"] = str(find_java())
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


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_the_readme_runs_on_each_python(wheel: Path, tmp_path: Path, version: str) -> None:
    base = interpreter(version)
    if base is None:
        pytest.skip(f"there is no Python {version} here")
    python = installed(wheel, "cli", tmp_path / "env", base=base)
    run = PageRun(tmp_path / "home", processes=True, python=python)
    with contextlib.closing(run):
        run.run(read_page(ROOT / "README.md"), slow=True)
    ran = {path.parts[-2] for path in (tmp_path / "env").glob("lib/*/site-packages")}
    assert ran == {f"python{version}"}


def interpreter(version: str) -> Path | None:
    """A Python of this version: the one of the tests, else on the path, else of pyenv."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    candidates = [
        *([Path(on_path)] if on_path else []),
        *pyenv.glob(f"versions/{version}.*/bin/python"),
    ]
    # A shim of pyenv may be there for a version that is not.
    works = (
        path
        for path in candidates
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
    )
    return next(works, None)


@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize("source", drawn(2, ["wheel", "folder", "editable"], seed="sources"))
def test_the_command_for_a_missing_extra_works(
    wheel: Path, tmp_path: Path, source: str, installer: str
) -> None:
    env = tmp_path / "env"
    make = [sys.executable, "-m", "venv"] if installer == "pip" else [UV, "venv", "-q"]
    subprocess.run([*make, env], check=True)
    what = {"wheel": [wheel], "folder": [ROOT], "editable": ["-e", ROOT]}[source]
    tool = [env / "bin" / "pip"] if installer == "pip" else [UV, "pip"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environ["VIRTUAL_ENV"] = str(env)
    environ["PATH"] = os.pathsep.join([str(env / "bin"), str(Path(UV).parent), environ["PATH"]])
    subprocess.run([*tool, "install", "-q", "--no-deps", *what], env=environ, check=True)
    memwal = [env / "bin" / "memwal", "--version"]
    missing = subprocess.run(memwal, capture_output=True, text=True, env=environ, cwd=tmp_path)
    assert missing.returncode == 2
    command = missing.stderr.strip().rpartition(": ")[2]
    subprocess.run(command, shell=True, env=environ, cwd=tmp_path, check=True)
    subprocess.run(memwal, env=environ, cwd=tmp_path, check=True)


@pytest.mark.slow
def test_a_namesake_is_named_whoever_was_installed_first(wheel: Path, tmp_path: Path) -> None:
    env = tmp_path / "env"
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, env], check=True)
    python = env / "bin" / "python"

    def uv(command: str, *arguments: str | Path) -> None:
        uv = [UV, "pip", command, "-q", "--python", python]
        subprocess.run([*uv, *arguments], check=True)

    def run(*command: str) -> tuple[int, str]:
        done = subprocess.run(
            [env / "bin" / command[0], *command[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    wheels = {"theirs": namesake(tmp_path), "ours": wheel}
    for last, others in (("ours", "theirs"), ("theirs", "ours")):
        for each in (others, last):
            uv("install", "--no-deps", "--offline", wheels[each])
        if last == "ours":
            code, told = run("python", "-c", "import memwal; memwal.errors")
            assert code == 0
        else:
            code, told = run("memwal", "--version")
            assert code == 2
        assert "memwal 0.2.1" in told
        assert "pip uninstall memwal lance-memwal" in told
        uv("uninstall", "memwal", "lance-memwal")
        uv("install", "--no-deps", "--offline", wheel)
        assert run("python", "-W", "error", "-c", "import memwal; memwal.errors") == (0, "")
        uv("uninstall", "lance-memwal")


def namesake(folder: Path) -> Path:
    """A wheel of another project whose distribution and package are named ``memwal``."""
    path = folder / "memwal-0.2.1-py3-none-any.whl"
    info = "memwal-0.2.1.dist-info"
    files = {
        "memwal/__init__.py": "from memwal.client import Client\n",
        "memwal/client.py": "class Client: ...\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: memwal\nVersion: 0.2.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


def installed(wheel: Path, extra: str, folder: Path, *, base: Path = Path(sys.executable)) -> Path:
    """A new environment with the wheel, in the versions of the lock; its Python."""
    python = folder / "bin" / "python"
    wanted = f"lance-memwal[{extra}]" if extra else "lance-memwal"
    subprocess.run([UV, "venv", "-q", "--python", base, folder], check=True)
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
