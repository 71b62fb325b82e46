"""``memwal quality``."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.data.quarantined import positive
from support.data.tables import base_state, collect_now, flush, flush_and_merge

import memwal
from memwal.catalog import Catalog
from memwal.fleet import SkipReason


@pytest.fixture
def managed(table: memwal.Table, catalog: Catalog) -> memwal.Table:
    """Return a table that the catalog knows as t."""
    catalog.register("t", uri=table.uri)
    return table


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Return a file with a suite."""
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({"name": "t", "expectations": [positive()]}))
    return path


def test_from_a_proposal_to_a_released_row(cli: Any, managed: memwal.Table, tmp_path: Path) -> None:
    flush_and_merge(managed, {key: key for key in range(50)})
    proposed = cli("quality", "propose", "t").json
    for one in proposed["expectations"]:
        one["severity"] = "critical"
    path = tmp_path / "proposed.json"
    path.write_text(json.dumps(proposed))
    found = cli("quality", "set", "t", path, "--mode", "quarantine", "--json").json
    assert found["mode"] == "quarantine"
    assert cli("quality", "rules", "t", "--json").json == found
    flush(managed, {1: -1, 2: 500, 3: 30})

    merged = cli("jobs", "run", "t", "merge", "--force", "--json").json

    assert merged["quality"]["quarantined_rows"] == 2
    rows = cli("quality", "list", "t", "--json").json
    assert [row["key"] for row in rows] == [{"id": 1}, {"id": 2}]
    assert "-1" not in json.dumps([row["reason"] for row in rows])
    assert rows[0]["origin"] in cli("quality", "list", "t").stdout.replace("\n", "")
    shown = cli("quality", "show", "t", rows[0]["origin"], "--json").json
    assert shown[0]["row"]["n"] == -1
    assert "-1" in cli("quality", "show", "t", "all").stdout
    still = cli("quality", "release", "t", rows[0]["origin"], "--json").json
    assert still["released"] == []
    assert "between" in still["failing"][rows[0]["origin"]][0]
    freed = cli("quality", "release", "t", rows[0]["origin"], "--force", "--json").json
    assert freed["released"] == [rows[0]["origin"]]
    assert cli("quality", "discard", "t", "all", "--json").json == {"discarded": 1}
    assert cli("quality", "list", "t", "--json").json == []
    purge = ("quality", "purge", "t", "--older-than-days", "0", "--json")
    # A verification compares the generation with the base table while it is stored.
    assert cli(*purge).json == {"deleted": 0}
    assert cli("verify", "t").code == 0
    managed.merge()
    assert base_state(managed)[1] == -1
    collect_now(managed)
    assert cli(*purge).json == {"deleted": 2}


def test_a_verification_knows_the_quarantine_of_the_rules(
    cli: Any, managed: memwal.Table, suite: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere.lance"
    setting = ("--mode", "quarantine", "--quarantine-uri", elsewhere)
    assert cli("quality", "set", "t", suite, *setting).code == 0
    flush(managed, {1: -1, 2: 2})
    cli("jobs", "run", "t", "merge", "--force")
    assert cli("verify", "t").code == 0
    assert cli("verify", managed.uri, "--quarantine", elsewhere).code == 0
    assert managed.verify(quarantine_uri=str(elsewhere)).clean
    assert [finding.code for finding in managed.verify().findings] == ["merged-row-lost"]


def test_a_check(cli: Any, managed: memwal.Table, suite: Path) -> None:
    flush_and_merge(managed, {1: -1, 2: 2})
    assert cli("quality", "check", "t").code != 0
    cli("quality", "set", "t", suite, "--check-seconds", 3600, "--sample-rows", 0)
    answer = cli("quality", "check", "t", "--if-due")
    assert answer.code == 0
    assert answer.stderr.startswith("warning: ")
    skipped = cli("quality", "check", "t", "--if-due", "--json").json
    assert skipped["skipped"] == SkipReason.NOT_DUE.value
    assert cli("quality", "check", "t", "--whole", "--json").json["metrics"]["failed_rows"] == 1


def test_a_suite_in_yaml(cli: Any, managed: memwal.Table, tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(
        "expectations:\n- type: expect_column_values_to_not_be_null\n  kwargs: {column: n}\n"
    )
    found = cli("quality", "set", "t", path, "--json").json
    assert found["mode"] == "warn"
    assert found["suite"][0]["kwargs"] == {"column": "n"}
    assert cli("quality", "set", "t", "--mode", "off", "--json").json["suite"] == found["suite"]
    assert "warn" not in cli("catalog", "policy", "show", "t").stdout


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "wrong.json"),
        ("[]", "error: "),
        ('[{"type": "expect_x"}]', "expect_x"),
        (json.dumps([positive() | {"kwargs": {"column": "gone", "min_value": 1}}]), "gone"),
    ],
)
def test_a_suite_that_is_wrong(
    cli: Any, managed: memwal.Table, tmp_path: Path, text: str, named: str
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    answer = cli("quality", "set", "t", path)
    assert answer.code != 0
    assert named in answer.stderr


def test_nothing_to_set(cli: Any, managed: memwal.Table, tmp_path: Path) -> None:
    for words, named in (
        (["set", "t"], "error: "),
        (["set", "t", tmp_path / "none.json"], "none.json"),
        (["discard", "t", "x"], "'x'"),
    ):
        answer = cli("quality", *words)
        assert answer.code == 2
        assert named in answer.stderr


@pytest.mark.slow
def test_data_docs(cli: Any, managed: memwal.Table, suite: Path, tmp_path: Path) -> None:
    flush(managed, {key: 987_654_000 + key for key in range(5)})
    cli("quality", "set", "t", suite)
    cli("jobs", "run", "t", "merge", "--force")
    cli("quality", "check", "t")
    folder = tmp_path / "docs"

    found = cli("quality", "docs", "t", folder, "--json").json

    assert found == {"page": str(folder / "index.html"), "runs": 2}
    pages = list(folder.glob("validations/**/*.html"))
    assert len(pages) == 2
    texts = [page.read_text() for page in pages]
    assert all("100% unexpected" in text or "100.0" in text for text in texts)
    # Keys, and no other values.
    assert not any("987654003" in text for text in texts)
    # Twice into the same folder.
    assert cli("quality", "docs", "t", folder).code == 0


@pytest.mark.parametrize("job", ["merge", "checkpoint"])
def test_jobs_by_hand_go_through_the_gate_of_a_named_table(
    cli: Any, managed: memwal.Table, suite: Path, job: str
) -> None:
    flush(managed, {1: -1, 2: 2})
    cli("quality", "set", "t", suite, "--mode", "quarantine")
    assert cli(job, "t").code == 0
    assert base_state(managed) == {2: 2}
    assert [row["key"] for row in cli("quality", "list", "t", "--json").json] == [{"id": 1}]
    flush(managed, {1: -1, 3: 3})
    # An address has no policy, and no gate.
    cli(job, managed.uri)
    assert base_state(managed) == {1: -1, 2: 2, 3: 3}


@pytest.mark.parametrize("job", ["merge", "checkpoint"])
def test_jobs_by_hand_take_rules_of_a_file(
    cli: Any, managed: memwal.Table, suite: Path, tmp_path: Path, job: str
) -> None:
    cli("quality", "set", "t", suite, "--mode", "quarantine")
    file = tmp_path / "rules.json"
    file.write_text(cli("quality", "rules", "t", "--json").stdout)
    flush(managed, {1: -1, 2: 2})
    assert cli(job, managed.uri, "--quality", file).code == 0
    assert base_state(managed) == {2: 2}
    answer = cli(job, managed.uri, "--quality", tmp_path / "none.json")
    assert answer.code == 2
    assert "none.json" in answer.stderr
