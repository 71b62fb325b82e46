"""The Spark Connect server of the chart: its arguments, its clients, and that it starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from support.kubernetes.chart import Object, Release, containers, named, of_kind
from support.kubernetes.chart_values import CONNECT, FLEET, MATRIX, SECRETS

from memwal.spark.session import ensure_java

CASES = [case for case in MATRIX if case.startswith("Spark Connect")]


def server(objects: list[Object]) -> Object:
    """The container of the server."""
    (found,) = containers(named(objects, "Deployment", "memwal-connect")["spec"]["template"])
    return found


def properties(objects: list[Object]) -> dict[str, str]:
    """Spark's properties, which stand in the arguments."""
    words = server(objects)["args"]
    return dict(word.split("=", 1) for option, word in pairwise(words) if option == "--conf")


def test_it_is_off_by_default() -> None:
    objects = MATRIX["defaults"].objects()
    assert not [one for one in objects if one["metadata"]["name"].endswith("-connect")]


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


def test_what_the_values_say_of_it() -> None:
    found = properties(MATRIX["Spark Connect for all"].objects())
    assert found["spark.master"] == "local[4]"
    assert found["spark.default.parallelism"] == "4"
    assert found["spark.connect.grpc.binding.port"] == "15003"
    assert (found["spark.ui.enabled"], found["spark.ui.port"]) == ("true", "4041")


def test_its_image_and_user_are_those_of_spark() -> None:
    objects = MATRIX["Spark Connect"].objects()
    pod = named(objects, "Deployment", "memwal-connect")["spec"]["template"]
    assert server(objects)["image"].startswith("memwal-spark:")
    assert pod["spec"]["securityContext"]["runAsUser"] == 185


@pytest.mark.parametrize(
    ("case", "port"), [("Spark Connect", 15002), ("Spark Connect for all", 15003)]
)
def test_airflow_is_pointed_at_it(case: str, port: int) -> None:
    objects = MATRIX[case].objects()
    settings = named(objects, "ConfigMap", "memwal-airflow")["data"]
    (service,) = (one for one in of_kind(objects, "Service") if "connect" in str(one["metadata"]))
    address = f"sc://{service['metadata']['name']}:{port}"
    assert settings["AIRFLOW__MEMWAL__SPARK_MASTER"] == address
    assert [one["port"] for one in service["spec"]["ports"]] == [port]
    assert "AIRFLOW__MEMWAL__DEPLOY_MODE" not in settings


def test_a_fleet_without_it_has_no_spark() -> None:
    release = Release(values={"fleet": FLEET, "objectStore": SECRETS})
    (container,) = containers(
        named(release.objects(), "Deployment", "memwal-fleet")["spec"]["template"]
    )
    assert not [word for word in container["args"] if "spark" in word]


@pytest.mark.slow
def test_it_starts_by_its_arguments_and_its_probes_succeed(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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
