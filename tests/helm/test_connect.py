"""The Spark Connect server of the chart: its arguments, its clients, and that it starts."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.kubernetes.chart import Object, Release, containers, named
from support.kubernetes.chart_values import CONNECT, MATRIX
from support.servers import free_port

from memwal.spark.session import ensure_java

CASES = [case for case in MATRIX if case.startswith("Spark Connect")]


def server(objects: list[Object]) -> Object:
    """The container of the server."""
    (found,) = containers(named(objects, "Deployment", "memwal-connect")["spec"]["template"])
    return found


@pytest.mark.parametrize("case", CASES)
def test_no_secret_is_in_its_arguments(case: str) -> None:
    objects = MATRIX[case].objects()
    container = server(objects)
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    for name, reference in MATRIX[case].values.get("objectStore", {}).get("secretEnv", {}).items():
        assert name in values
        assert values[name] is None
        assert reference["secret"] not in " ".join(container["args"])
    assert "MEMWAL_CATALOG_URL" not in values


@pytest.mark.slow
def test_it_starts_by_its_arguments_and_its_probes_succeed(tmp_path: Path) -> None:
    port = free_port()
    values = {"connect": {**CONNECT, "port": port}}
    container = server(Release(values=values).objects())
    assert container["readinessProbe"]["tcpSocket"]["port"] == "connect"
    assert container["ports"] == [{"containerPort": port, "name": "connect"}]
    submit, *words = container["args"]
    environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    # As in the image.
    environment["PYSPARK_PYTHON"] = sys.executable
    ensure_java(environment)
    # In a pod it listens on all addresses; a test does not.
    words += ["--conf", "spark.connect.grpc.binding.address=127.0.0.1"]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [Path(sys.executable).with_name(submit), *words],
            env=environment,
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert process.poll() is None, (tmp_path / "server.log").read_text()
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.2)
        pytest.fail("it takes no connections")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
