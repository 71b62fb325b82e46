"""``memwal status``."""

from __future__ import annotations

import pytest


def test_json_is_the_status(cli, backlog):
    found = cli("status", backlog.uri, "--json").json
    expected = backlog.status().to_dict()
    for region in (found, expected, *found["regions"], *expected["regions"]):
        assert region.pop("oldest_backlog_seconds") >= 0
    assert found == {**expected, "regions": list(expected["regions"]), "indexes": found["indexes"]}
    assert found["backlog_generations"] == 6
    assert found["indexes"] == [{"name": "id_idx", "generations": 0, "regions": 0, "rows": 0}]


def test_text_shows_regions_sums_lag_and_snapshot(cli, backlog):
    backlog.merge()
    answer = cli("status", backlog.uri)
    assert answer.code == 0
    for region in backlog.region_ids():
        assert str(region) in answer.stdout
    cells = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in answer.stdout.splitlines()
        if "│" in line
    ]
    assert cells[2] == ["total", "", "", "0", "0", "0 B", "-", "0", "", "6"]
    assert cells[3] == ["id_idx", "6", "2", "28"]
    assert "0 s" not in answer.stdout.rpartition("│")[2]
    backlog.build_snapshot()
    assert "0 s" in cli("status", backlog.uri).stdout.rpartition("│")[2]


def test_one_region(cli, backlog):
    first, _ = backlog.region_ids()
    found = cli("status", backlog.uri, "--region", first, "--json").json
    assert [region["region_id"] for region in found["regions"]] == [str(first)]


def test_a_table_that_was_never_written(cli, table):
    assert cli("status", table.uri, "--json").json["regions"] == []
    assert "total" in cli("status", table.uri).stdout


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_nothing_on_stderr(cli, backlog, json):
    assert cli("status", backlog.uri, *json).stderr == ""
