"""What the containers are told to do is what the command line knows, and it does it."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.data.tables import MakeTable
from support.kubernetes.chart import Release, airflow_values, containers, named, pods
from support.kubernetes.chart_values import MATRIX
from support.servers import free_port
from support.waiting import until
from typer.main import get_command
from typer.testing import CliRunner

from memwal.catalog import Catalog, Policy
from memwal.catalog.records import read_snapshot
from memwal.cli.commands.app import app


@cache
def command_line() -> Any:
    """The whole of ``memwal``."""
    return get_command(app)


def parsed(words: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Name and parameters of the command that a command line means."""
    found = command_line()
    rest = list(words)
    path = []
    while hasattr(found, "commands"):
        path.append(rest.pop(0))
        found = found.commands[path[-1]]
    with found.make_context(" ".join(path), rest) as context:
        return " ".join(path), dict(context.params)


def arguments(release: Release, name: str) -> list[str]:
    """The command line of the pods of an object."""
    (found,) = (pod for of, _, pod in pods(release.objects()) if of == name)
    (container,) = containers(found)
    assert "command" not in container, "the image's entrypoint is memwal"
    words: list[str] = container["args"]
    assert all(isinstance(word, str) for word in words)
    return words[1:] if words[0] == "memwal" else words


@pytest.mark.parametrize("case", MATRIX)
def test_every_command_line_is_understood(case: str) -> None:
    for name, _, pod in pods(MATRIX[case].objects()):
        if name not in {"driver", "executor"} and not name.endswith("-connect"):
            command, _ = parsed(arguments(MATRIX[case], name))
            assert command in {
                "catalog migrate",
                "catalog list",
                "fleet run",
                "metrics serve",
                "verify",
            }
            assert pod["spec"].get("restartPolicy", "Always") in {"Always", "Never"}


@pytest.mark.slow
def test_one_after_another(
    make_table: MakeTable, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an empty database to a merged table, by the commands of the chart alone."""
    monkeypatch.setenv("MEMWAL_CATALOG_URL", url)
    table = make_table()
    table.upsert(pa.table({"id": [1, 2], "n": [1, 2], "text": ["a", "b"]}))
    release = Release(
        values={
            "fleet": {"enabled": True, "schedule": "@hourly"},
            "tests": {"verify": {"table": table.uri}},
        }
    )

    def run(name: str) -> str:
        result = CliRunner().invoke(app, arguments(release, name))
        assert result.exit_code == 0, result.output
        return str(result.output)

    before = CliRunner().invoke(app, arguments(release, "memwal-test-catalog"))
    assert before.exit_code != 0
    run("memwal-migrate")
    run("memwal-test-catalog")
    catalog = Catalog(url)
    catalog.register("flights", uri=table.uri, policy=Policy(merge_at_generations=1))
    catalog.close()
    assert "flights" in run("memwal-test-catalog")
    assert "merge" in run("memwal-fleet")
    assert table.base().dataset.count_rows() == 2
    assert "0 errors" in run("memwal-test-verify")


@pytest.mark.slow
def test_the_file_that_dags_are_built_from(catalog: Catalog, url: str, tmp_path: Path) -> None:
    """The container beside Airflow's writes it, again and again; Airflow waits for the first."""
    catalog.register("flights", uri="s3://lake/flights.lance")
    objects = Release(values={"airflow": {"snapshot": {"everySeconds": 1}}}).objects()
    (container,) = airflow_values(objects)["dagProcessor"]["extraInitContainers"]
    path = named(objects, "ConfigMap", "memwal-airflow")["data"]["MEMWAL_CATALOG_SNAPSHOT"]
    here = tmp_path / "catalog.json"
    shell, option, script = container["args"]
    assert path in script
    process = subprocess.Popen(
        [shell, option, script.replace(path, str(here))],
        env={
            **os.environ,
            "MEMWAL_CATALOG_URL": url,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        ready = container["startupProbe"]["exec"]["command"]
        assert ready[-1] == path
        until(lambda: subprocess.run([*ready[:-1], here], check=False).returncode == 0)
        assert [table.name for table in read_snapshot(here)] == ["flights"]
        catalog.register("rides", uri="s3://lake/rides.lance")
        until(lambda: len(read_snapshot(here)) == 2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def serving(release: Release, name: str, url: str) -> Iterator[Callable[[str], str | None]]:
    """Run the command of a Deployment, and ask what its probes ask: None while it does not pass."""
    port = free_port()
    words = arguments(release, name)
    # In a pod it listens on all addresses; a test does not.
    place = words.index("--port" if "--port" in words else "--probe-address") + 1
    words[place] = str(port) if "--port" in words else f"127.0.0.1:{port}"
    words = ["127.0.0.1" if word == "0.0.0.0" else word for word in words]
    (container,) = containers(named(release.objects(), "Deployment", name)["spec"]["template"])

    def ask(kind: str) -> str | None:
        probe = f"http://127.0.0.1:{port}{container[kind]['httpGet']['path']}"
        try:
            with urllib.request.urlopen(probe) as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    process = subprocess.Popen(
        [Path(sys.executable).with_name("memwal"), *words],
        env={**os.environ, "MEMWAL_CATALOG_URL": url},
        stdout=subprocess.DEVNULL,
    )
    try:
        yield ask
    finally:
        process.terminate()
        assert process.wait(240) == 0


@pytest.mark.slow
def test_the_probes_of_the_metrics(catalog: Catalog, url: str) -> None:
    with serving(Release(), "memwal-metrics", url) as ask:
        until(lambda: "memwal_catalog_up 1.0" in (ask("readinessProbe") or ""))


@pytest.mark.slow
def test_the_probes_of_the_fleet(catalog: Catalog, url: str) -> None:
    with serving(Release(values={"fleet": {"enabled": True}}), "memwal-fleet", url) as ask:
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            until(lambda kind=kind: ask(kind) is not None)
