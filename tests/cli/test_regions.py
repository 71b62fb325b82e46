"""Regions on a command line: ids, or their first digits."""

from pathlib import Path
from uuid import UUID

import pytest
from support.data.tables import SCHEMA
from support.docs.command_lines import commands

import memwal
from memwal.catalog import Catalog
from memwal.cli.options import RegionName
from memwal.cli.output import print_table
from memwal.lsm.wal.claim import claim_region
from memwal.region.manifest_store import discover_regions

from .conftest import Cli

ALIKE = [UUID(f"8bbfeae7-9aba-4077-b693-{n:012x}") for n in (1, 2)]
"""Ids that differ in their last digits."""


@pytest.fixture
def alike(tmp_path: Path) -> memwal.Table:
    """Return a table with regions that have nearly the same id."""
    table = memwal.create(tmp_path / "alike", SCHEMA, primary_key=["id"], region_spec=None)
    for region in ALIKE:
        claim_region(table.location.store, region, merged=0, replay=False)
    return table


def test_every_command_takes_the_first_digits() -> None:
    found = {}
    for path, command in commands():
        for parameter in command.params:
            settings = getattr(getattr(parameter, "type_descriptor", None), "parameter_info", None)
            if getattr(settings, "metavar", None) == "REGION":
                assert settings.parser == RegionName.parse, path
                found[" ".join(path)] = settings
    assert {"status", "merge", "verify", "abandon", "inspect wal", "jobs run"} <= found.keys()


@pytest.mark.parametrize(
    "words", [("inspect", "manifest", "TABLE", "ID"), ("status", "TABLE", "--region", "ID")]
)
def test_digits_of_one_region(cli: Cli, backlog: memwal.Table, words: tuple[str, ...]) -> None:
    region = discover_regions(backlog.location.store)[0]
    answers = [
        cli(*(w.replace("TABLE", backlog.uri).replace("ID", id) for w in words), "--json").json
        for id in (str(region), region.hex, str(region)[:8], region.hex[:4].upper())
    ]
    assert [answer.get("regions", [answer])[0]["region_id"] for answer in answers] == (
        [str(region)] * len(answers)
    )


def test_jobs_of_one_region(cli: Cli, catalog: Catalog, backlog: memwal.Table) -> None:
    one, other = discover_regions(backlog.location.store)
    plan = cli("merge", backlog.uri, "--region", one.hex[:4], "--explain", "--json").json
    assert {item["region_id"] for item in plan["decisions"] if item["commit"]} == {str(one)}
    catalog.register("backlog", uri=backlog.uri)
    cli("jobs", "run", "backlog", "merge", "--force", "--region", other.hex[:4])
    regions = {region.region_id: region for region in backlog.status().regions}
    assert regions[str(other)].backlog_generations == 0
    assert regions[str(one)].backlog_generations > 0


@pytest.mark.parametrize("digits", ["8bb", "8bbfeae7-9aba-4077-b693", "9999", "xyzw"])
def test_digits_of_no_one_region(cli: Cli, alike: memwal.Table, digits: str) -> None:
    answer = cli("abandon", alike.uri, digits, "--yes")
    assert answer.code == 2
    several = alike.region_ids() if ALIKE[0].hex.startswith(digits.replace("-", "")) else []
    if len(digits) >= 4:
        assert all(str(region) in answer.stderr for region in several)


@pytest.mark.parametrize("columns", [50, 80, 160])
def test_a_table_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr("memwal.cli.output._PIPE_WIDTH", columns)
    names = "region,epoch,state,generations,rows,bytes,oldest,log entries,merged to,kept"
    ids = [
        UUID("8bbfeae7-9aba-4077-b693-c16562a7058b"),
        UUID("ef2289a0-bae6-4b12-be90-66e831df3f16"),
    ]
    print_table(names.split(","), [[id, *(["1.0 MiB"] * 8), None] for id in ids])
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= columns
    assert [str(id)[:8] in output for id in ids] == [True, True]
    assert (str(ids[0]) in output) == (columns == 160)


def test_the_shortest_ids_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memwal.cli.output._PIPE_WIDTH", 40)
    print_table(("region", "rows"), [(UUID(int=n << 90), 1) for n in range(3)])
    ids = [line.split()[1] for line in capsys.readouterr().out.splitlines()[3:-1]]
    assert len(set(ids)) == 3
    assert {len(id) for id in ids} == {11}
