"""What containers start with: the arguments that Spark's and Airflow's pods come with."""

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from support.waiting import until

DOCKER = Path(__file__).resolve().parents[2] / "docker"
SPARK = DOCKER / "spark" / "entrypoint.sh"
AIRFLOW = DOCKER / "airflow" / "entrypoint"
CLEAN_LOGS = DOCKER / "airflow" / "clean-logs"
BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "2g",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "merge-exec-3",
}


@pytest.fixture
def spark(tmp_path: Path) -> dict[str, str]:
    """An environment in which tini, and all that Spark starts, tells its arguments."""
    for name in ("bin/tini", "java/bin/java", "spark/bin/spark-submit"):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        program.chmod(0o755)
    return {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "JAVA_HOME": f"{tmp_path}/java",
        "SPARK_HOME": f"{tmp_path}/spark",
    }


def started(environ: dict[str, str], *arguments: str) -> list[str]:
    """What tini is told to run."""
    done = subprocess.run(
        [SPARK, *arguments], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, *program = done.stdout.splitlines()
    assert (first, second) == ("-s", "--")
    return program


def test_a_driver_pod_submits_in_client_mode_at_its_own_address(spark: dict[str, str]) -> None:
    wanted = ["--properties-file", "/opt/spark/conf/spark.properties", "local:///a b.py", "--x"]
    assert started({**spark, "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.5"}, "driver", *wanted) == [
        f"{spark['SPARK_HOME']}/bin/spark-submit",
        "--conf",
        "spark.driver.bindAddress=10.0.0.5",
        "--deploy-mode",
        "client",
        *wanted,
    ]


def test_an_executor_pod_starts_sparks_backend(spark: dict[str, str]) -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number} of 12" for number in range(12)}
    java, *arguments = started({**spark, **EXECUTOR, **options}, "executor")

    assert java == f"{spark['JAVA_HOME']}/bin/java"
    assert arguments[:12] == list(options.values())
    assert arguments[12:16] == [
        "-Xms2g",
        "-Xmx2g",
        "-cp",
        f"/opt/spark/conf:{spark['SPARK_HOME']}/jars/*",
    ]
    assert arguments[16] == BACKEND
    given = dict(zip(arguments[17::2], arguments[18::2], strict=True))
    assert given == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "merge-exec-3",
    }


@pytest.mark.parametrize("missing", EXECUTOR)
def test_an_executor_without_what_spark_sets_names_it(spark: dict[str, str], missing: str) -> None:
    environ = {**spark, **{key: value for key, value in EXECUTOR.items() if key != missing}}
    done = subprocess.run([SPARK, "executor"], env=environ, capture_output=True, text=True)
    assert done.returncode != 0
    assert missing in done.stderr
    assert done.stdout == ""


def test_anything_else_is_run_as_it_is(spark: dict[str, str]) -> None:
    assert started(spark, "spark-submit", "a b", "driver") == ["spark-submit", "a b", "driver"]


def test_sparks_backend_takes_these_arguments() -> None:
    """Spark brings the class, and it knows every option that the entry point gives."""
    import pyspark

    jars = Path(str(pyspark.__file__)).parent / "jars"
    (jar,) = jars.glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        assert BACKEND.replace(".", "/") + ".class" in classes.namelist()
        parsed = b"".join(
            classes.read(name) for name in classes.namelist() if "KubernetesExecutorBackend" in name
        )
    for option in ("--driver-url", "--executor-id", "--cores", "--app-id", "--hostname",
                   "--resourceProfileId", "--podName"):  # fmt: skip
        assert option.encode() in parsed, option


def test_airflow_runs_what_it_is_given_and_lets_its_group_write(tmp_path: Path) -> None:
    script = f"umask; touch {tmp_path}/made; exit 7"
    done = subprocess.run([AIRFLOW, "bash", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "0002\n")
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o664


def test_old_logs_go_and_others_stay(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    old, empty = logs / "dag/old/attempt=1.log", logs / "empty"
    kept = [logs / "dag/new/attempt=1.log", logs / "lost+found/x.log", logs / "dag/old.json"]
    for path in (old, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    empty.mkdir()
    past = time.time() - 3 * 24 * 3600
    for path in (old, kept[1], kept[2], empty):
        os.utime(path, (past, past))
    environ = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__LOG_RETENTION_DAYS": "2"}

    process = subprocess.Popen([CLEAN_LOGS], env=environ)
    try:
        until(lambda: not old.exists() and not empty.exists())
        assert all(path.exists() for path in kept)
        assert process.poll() is None
    finally:
        process.terminate()
    assert process.wait(120) == 0


def test_health_is_what_the_api_server_says(tmp_path: Path) -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/api/v2/monitor/health"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(
                b'{"scheduler": {"status": "healthy"}, "triggerer": {"status": "unhealthy"}}'
            )

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/execution/"
        environ = {**os.environ, "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": url}
        script = DOCKER / "compose" / "healthy.py"
        codes = [
            subprocess.run([sys.executable, script, part], env=environ, capture_output=True)
            for part in ("scheduler", "triggerer", "nothing")
        ]
        server.shutdown()
    assert [done.returncode for done in codes] == [0, 1, 1]
    assert [done.stdout for done in codes] == [b"healthy\n", b"unhealthy\n", b""]
