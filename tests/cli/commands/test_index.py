"""index, and index migrate, on real tables."""

import re
from pathlib import Path
from typing import Any

import lance
import pytest
from support.data.indexed import SCHEMA, create_index, rows

import memwal

Cli = Any


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    """Return a table with a vector index, and with a generation that is merged."""
    uri = str(tmp_path / "table")
    create_index(lance.write_dataset(rows(0, 600), uri, schema=SCHEMA), "IVF_PQ", num_partitions=2)
    made = memwal.enable(uri, primary_key="id", region_spec="unsharded", maintained_indexes=["idx"])
    made.upsert(rows(600, 50))
    made.merge()
    return made


def test_a_build_of_all_indexes(cli: Cli, table: memwal.Table) -> None:
    found = cli("index", "build", table.uri, "--json").json
    assert (found["job"], found["commits"]) == ("index", 1)
    assert found["metrics"]["unevenness_percent"] >= 100
    assert cli("index", "build", table.uri, "--max-segments", 1).code == 0
    assert cli("index", "build", "--json", table.uri).json["commits"] == 0
    statistics = table.base().dataset.stats.index_stats("idx")
    assert statistics["num_segments"] == 1


def test_a_migration(cli: Cli, table: memwal.Table) -> None:
    def step(name: str, *more: object) -> Any:
        return cli("index", "migrate", name, table.uri, "--index", "idx", *more)

    assert step("status", "--json").json["step"] == "not started"
    assert step("start", "--partitions", 1, "--json").json["step"] == "started"
    cli("index", "build", table.uri)
    assert step("switch", "--json").json["step"] == "switched"
    shown = step("status").stdout
    assert "1 of " in shown
    refused = step("finish")
    assert refused.code == 3
    assert "idx_v2" in refused.stderr
    assert cli("gc", table.uri, "--yes", "--grace-seconds", 0, "--retention-seconds", 0).code == 0
    done = step("finish", "--json").json
    assert (done["step"], done["lacking"], done["missing"]) == ("finished", [], None)
    assert done["unevenness"]["old"] is None
    assert table.base().details.maintained_indexes == ("idx_v2",)


def test_a_migration_is_aborted(cli: Cli, table: memwal.Table) -> None:
    arguments = (table.uri, "--index", "idx", "--to", "other")
    assert cli("index", "migrate", "start", *arguments).code == 0
    assert table.base().details.maintained_indexes == ("idx", "other")
    assert cli("index", "migrate", "abort", *arguments, "--json").json["step"] == "not started"
    assert table.base().details.maintained_indexes == ("idx",)


def test_a_wrong_index_is_wrong_input(cli: Cli, table: memwal.Table) -> None:
    answer = cli("index", "migrate", "start", table.uri, "--index", "none")
    assert answer.code == 2
    assert re.search(r"\bnone\b", answer.stderr)


def test_which_indexes_are_maintained(cli: Cli, table: memwal.Table) -> None:
    table.base().dataset.create_scalar_index("n", "BTREE", name="n_idx")
    assert "idx" in cli("index", "maintain", table.uri).stdout

    added = cli("index", "maintain", table.uri, "--add", "n_idx", "--json").json
    assert added == {"table": table.uri, "maintained_indexes": ["idx", "n_idx"]}
    removed = cli("index", "maintain", table.uri, "--remove", "idx", "--json").json
    assert removed["maintained_indexes"] == ["n_idx"]
    refused = cli("index", "maintain", table.uri, "--add", "no_idx")
    assert refused.code == 2
    assert "no_idx" in refused.stderr
