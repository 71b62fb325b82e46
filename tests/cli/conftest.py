"""Running the command line in this process, and a table with a backlog."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.data.copied import copy_of
from support.data.tables import SCHEMA, keys, rows
from typer.testing import CliRunner

import memwal
from memwal.catalog import Catalog
from memwal.cli.commands.app import app


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        assert self.code == 0, self.stderr
        return json.loads(self.stdout)


Cli = Callable[..., Answer]


@pytest.fixture
def catalog(catalog: Catalog, url: str, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """Return an empty catalog, which the command line finds."""
    monkeypatch.setenv("MEMWAL_CATALOG_URL", url)
    return catalog


@pytest.fixture
def cli() -> Cli:
    """Return a function that runs ``memwal`` with arguments."""

    def run(*arguments: object) -> Answer:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        return Answer(result.exit_code, result.stdout, result.stderr)

    return run


def _write_backlog(folder: Path) -> None:
    spec = memwal.RegionSpec.bucket("id", 2)
    indexes = ["id_idx"]
    table = memwal.create(
        folder / "backlog", SCHEMA, primary_key=["id"], region_spec=spec, maintained_indexes=indexes
    )
    with table.writer() as writer:
        for n in range(3):
            writer.upsert(rows(dict.fromkeys(range(30), n)))
            if n == 2:
                writer.delete(keys(5, 6))
            writer.flush()


@pytest.fixture
def backlog(tmp_path: Path) -> memwal.Table:
    """Return a table of two regions with six generations: keys 0 to 29 have the number 2, but 5
    and 6 are deleted."""
    copy_of("a table of the command line", tmp_path, _write_backlog, times=False)
    return memwal.open(tmp_path / "backlog")


@pytest.fixture
def expected() -> dict[int, int]:
    """Return what the table of ``backlog`` holds."""
    return {key: 2 for key in range(30) if key not in (5, 6)}
