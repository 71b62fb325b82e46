"""Tables that each version wrote are read, taken over and maintained by the code of today."""

import importlib.util
import json
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.tables import collect_now

import memwal
from memwal.jobs.verify import FindingSeverity

FOLDER = Path(__file__).resolve().parent
VERSIONS = sorted(path.name for path in FOLDER.iterdir() if (path / "tables.json").is_file())
MOST_BYTES = 300 << 10
"""Of one version in the repository."""


@cache
def maker() -> ModuleType:
    """What wrote them, which also says what is true of a table."""
    spec = importlib.util.spec_from_file_location("golden_make", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def told(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / version / "tables.json").read_text())
    return found


CASES = [(version, name) for version in VERSIONS for name in told(version)["tables"]]


@dataclass(frozen=True)
class Golden:
    """A golden table, the rows that it shows, and those that it shows to who takes it over."""

    table: memwal.Table
    rows: pa.Table
    replayed: pa.Table


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    """A golden table that may be written to, and the rows that it showed."""
    version, name = request.param
    rows = pq.read_table(FOLDER / version / f"{name}.parquet")
    replayed = FOLDER / version / f"{name}.replayed.parquet"
    with tarfile.open(FOLDER / version / "tables.tar.xz") as archive:
        members = [one for one in archive if one.name.split("/")[0].startswith(name)]
        archive.extractall(tmp_path, members=members, filter="data")
    return Golden(
        memwal.open(str(tmp_path / name)),
        rows,
        pq.read_table(replayed) if replayed.exists() else rows,
    )


def test_this_version_has_its_golden_tables() -> None:
    assert memwal.__version__ in VERSIONS, "make golden writes them; commit what it writes"
    assert list(told(memwal.__version__)["tables"]) == list(maker().TABLES)


@pytest.mark.parametrize("version", VERSIONS)
def test_they_are_small(version: str) -> None:
    assert sum(path.stat().st_size for path in (FOLDER / version).iterdir()) < MOST_BYTES


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("golden", "facts"),
    [(case, told(case[0])["tables"][case[1]]) for case in CASES],
    ids=["-".join(case) for case in CASES],
    indirect=["golden"],
)
def test_they_are_read(golden: Golden, facts: dict[str, Any]) -> None:
    assert maker().rows_of(golden.table) == golden.rows
    found = maker().facts_of(golden.table)
    # What a later version came to tell is not known of the tables of an earlier one.
    assert {key: found[key] for key in facts} == facts
    assert problems(golden.table) == []


def problems(table: memwal.Table) -> list[str]:
    """Findings of a verification that are more than information."""
    findings = table.verify().findings
    return [str(one) for one in findings if one.severity is not FindingSeverity.INFORMATION]


@pytest.mark.few(3)
@pytest.mark.parametrize("golden", CASES, ids="-".join, indirect=True)
def test_they_are_taken_over_and_maintained(golden: Golden) -> None:
    table, rows = golden.table, golden.replayed
    key = list(table.primary_key)
    # The first row takes the other columns of the second; the last one goes.
    fixed = {*key, *routed(table)}
    taken = {name: rows[name].slice(name not in fixed, 1) for name in rows.column_names}
    changed = pa.table(taken, schema=rows.schema)
    wanted = pa.concat_tables([changed, rows.slice(1, rows.num_rows - 2)])
    with table.writer() as writer:
        writer.upsert(changed.cast(table.schema))
        writer.delete(rows.slice(rows.num_rows - 1).select([*key, *routed(table)]))
        writer.claim()
        assert maker().by_key(table, writer.scan().to_table()) == wanted
    assert maker().rows_of(table) == wanted

    table.merge()
    table.build_indexes()
    table.build_snapshot()
    table.compact(min_fragments=2)
    table.build_indexes()
    collect_now(table, orphan_grace_seconds=0, index_grace_seconds=0, version_retention_seconds=0)
    assert maker().by_key(table, table.base().dataset.to_table()) == wanted
    assert maker().rows_of(memwal.open(table.uri)) == wanted
    status = table.status()
    assert status.backlog_generations == 0
    assert [one.name for one in status.indexes if one.generations] == []
    assert problems(table) == []


def routed(table: memwal.Table) -> list[str]:
    """Columns beside the key that decide where a row goes, and that never change."""
    _, spec = table.region_spec()
    return [name for name in spec.columns if name not in table.primary_key]
