"""What a shell is offered after Tab, as the shell asks for it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import memwal
from memwal.catalog import Catalog
from memwal.cli.commands.app import app


def offered(*words: str) -> list[str]:
    """What bash would be offered for the last word, which is incomplete."""
    line = " ".join(["memwal", *words])
    env = {"COMP_WORDS": line, "COMP_CWORD": str(len(words)), "_MEMWAL_COMPLETE": "complete_bash"}
    return CliRunner().invoke(app, [], prog_name="memwal", env=env).stdout.split()


@pytest.fixture
def tables(catalog: Catalog, backlog: memwal.Table) -> memwal.Table:
    catalog.register("flights", uri=backlog.uri)
    catalog.register("fares", uri="s3://lake/fares")
    catalog.register("trains", uri="s3://lake/trains")
    return backlog


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "before",
    [
        ["status"],
        ["merge"],
        ["catalog", "show"],
        ["catalog", "policy", "set"],
        ["jobs", "list", "--table"],
        ["jobs", "skipped", "--table"],
        ["fleet", "events", "--table"],
    ],
    ids=" ".join,
)
def test_names_of_tables_come_from_the_catalog(tables: memwal.Table, before: list[str]) -> None:
    assert offered(*before, "f") == ["fares", "flights"]


def test_names_come_from_the_snapshot_where_there_is_one(
    tables: memwal.Table, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "tables.json"
    catalog.export_snapshot(snapshot)
    monkeypatch.setenv("MEMWAL_CATALOG_SNAPSHOT", str(snapshot))
    monkeypatch.setenv("MEMWAL_CATALOG_URL", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    assert offered("status", "t") == ["trains"]


def test_regions_are_those_of_the_table_that_is_named(tables: memwal.Table) -> None:
    regions = sorted(str(region) for region in tables.region_ids())
    assert len(regions) == 2
    for named in (tables.uri, "flights"):
        assert offered("merge", named, "--region", "''") == regions
        for region in regions:
            assert offered("merge", named, "--region", region[:8]) == [region]
            assert offered("inspect", "manifest", tables.uri, region[:8]) == [region]
    assert offered("merge", "trains", "--region", regions[0][:8]) == []


@pytest.mark.parametrize("url", ["sqlite:////nowhere/at/all.db", "nonsense"])
def test_what_fails_offers_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMWAL_CATALOG_URL", url)
    assert offered("status", "f") == []


@pytest.mark.parametrize(
    ("shell", "mark"),
    [("bash", "complete -o"), ("zsh", "#compdef memwal"), ("fish", "complete --command memwal")],
)
def test_each_shell_has_its_script(shell: str, mark: str) -> None:
    script: Any = CliRunner().invoke(
        app, [], prog_name="memwal", env={"_MEMWAL_COMPLETE": f"source_{shell}"}
    )
    assert script.exit_code == 0
    assert mark in script.stdout


def test_bash_completes_a_table(tables: memwal.Table, tmp_path: Path) -> None:
    binaries = tmp_path / "bin"
    binaries.mkdir()
    program = binaries / "memwal"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m memwal "$@"\n')
    program.chmod(0o755)
    script = """
source <(_MEMWAL_COMPLETE=source_bash memwal)
COMP_WORDS=(memwal status fl) COMP_CWORD=2
_memwal_completion memwal
echo "${COMPREPLY[@]}"
"""
    path = os.pathsep.join([str(binaries), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["flights"], done.stderr
