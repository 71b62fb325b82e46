import configparser
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from airflow_demo.home import write_settings
from airflow_demo.standalone import LAUNCHER, AirflowStandalone


@pytest.fixture
def airflow(tmp_path: Path) -> AirflowStandalone:
    return AirflowStandalone(
        tmp_path / "home",
        dags_folder=tmp_path / "dags",
        env={"MEMWAL_CATALOG_URL": "sqlite:////x.db"},
        settings={"core": {"parallelism": "2"}, "memwal": {"spark_master": "local[1]"}},
    )


def test_the_environment_is_the_callers_without_its_airflow(
    airflow: AirflowStandalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "hunter2")
    monkeypatch.setenv("JAVA_HOME", "/some/java")
    env = airflow.environment()
    assert [key for key in env if key.startswith("AIRFLOW")] == ["AIRFLOW_HOME"]
    assert env["AIRFLOW_HOME"] == str(airflow.home)
    assert env["JAVA_HOME"] == "/some/java"
    assert env["MEMWAL_CATALOG_URL"] == "sqlite:////x.db"
    assert env["PATH"].startswith(str(Path(sys.executable).parent))


def test_secrets_are_private_and_outlast_a_restart(tmp_path: Path) -> None:
    write_settings(tmp_path, {"core": {"dags_folder": "/a%b"}})
    path = tmp_path / "airflow.cfg"
    first = configparser.ConfigParser()
    first.read(path)
    assert first["core"]["dags_folder"] == "/a%b"
    assert len(first["api_auth"]["jwt_secret"]) > 64
    assert path.stat().st_mode & 0o077 == 0
    write_settings(tmp_path, {"core": {"dags_folder": "/c"}})
    second = configparser.ConfigParser()
    second.read(path)
    assert second["core"]["dags_folder"] == "/c"
    assert second["api_auth"] == first["api_auth"]
    assert second["core"]["fernet_key"] == first["core"]["fernet_key"]


def test_components_do_not_outlive_their_caller(tmp_path: Path) -> None:
    """The launcher with a stand-in for Airflow, started by a process that is then killed."""
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "__init__.py").touch()
    body = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    (tmp_path / "airflow" / "__main__.py").write_text(body)
    caller = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {LAUNCHER!r}], start_new_session=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", caller],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    component = psutil.Process(json.loads(process.stdout.readline()))
    assert component.is_running()
    process.kill()
    process.wait()
    process.stdout.close()
    gone, _ = psutil.wait_procs([component], timeout=30)
    assert gone
