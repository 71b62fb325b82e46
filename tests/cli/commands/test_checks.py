"""``memwal status`` and ``verify`` on real tables."""

import json
import re
import shutil
from uuid import uuid4

import pytest
from support.data.tables import folder, listing
from support.stores.faulty_store import skip_waits

from memwal.jobs.verify import job as verify_run


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once."""
    skip_waits(monkeypatch, verify_run)


def blooms(table):
    return sorted(folder(table).glob("_mem_wal/*/*/bloom_filter.bin"))


def test_a_clean_table(cli, backlog):
    before = listing(folder(backlog))
    answer = cli("verify", backlog.uri)
    assert answer.code == 0
    (line,) = answer.stdout.splitlines()
    assert re.fullmatch(rf"verify: 0 .*\b0 .*\b0 .*\b2 .*\b{backlog.base().version}\b.*", line)
    assert answer.stderr == ""
    result = cli("verify", backlog.uri, "--json").json
    assert (result["errors"], result["regions"], result["findings"]) == (0, 2, [])
    assert listing(folder(backlog)) == before


def test_errors_end_with_one(cli, backlog):
    blooms(backlog)[0].write_bytes(bytes(32_768))
    answer = cli("verify", backlog.uri)
    assert answer.code == 1
    assert "bloom-wrong" in answer.stdout
    assert answer.stderr == ""
    answer = cli("verify", backlog.uri, "--json")
    assert answer.code == 1
    (finding,) = json.loads(answer.stdout)["findings"]
    assert finding["severity"] == "error"
    assert finding["repair"] == "bloom"


def test_warnings_end_with_zero(cli, backlog):
    blooms(backlog)[0].unlink()
    assert cli("verify", backlog.uri, "--quick", "--json").json["warnings"] == 1


def test_less_can_be_read(cli, backlog):
    for path in blooms(backlog):
        path.write_bytes(bytes(32_768))
    assert cli("verify", backlog.uri, "--quick").code == 0
    first, _ = backlog.region_ids()
    found = json.loads(cli("verify", backlog.uri, "--region", first, "--json").stdout)
    assert {finding["region"] for finding in found["findings"]} == {str(first)}
    found = json.loads(cli("verify", backlog.uri, "--sample-generations", 1, "--json").stdout)
    assert found["errors"] == 2


def test_repairs_are_told_and_then_done(cli, backlog):
    blooms(backlog)[0].write_bytes(bytes(32_768))
    shutil.rmtree(blooms(backlog)[1].parent / "_pk_index")
    before = listing(folder(backlog))
    answer = cli("verify", backlog.uri, "--repair")
    assert answer.code == 1
    assert "--yes" in answer.stdout
    assert re.search(r"^│ bloom +│ would +│", answer.stdout, re.MULTILINE)
    assert listing(folder(backlog)) == before
    result = cli("verify", backlog.uri, "--repair", "--yes", "--json").json
    assert [action["state"] for action in result["repairs"]] == ["done", "done"]
    assert {action["repair"] for action in result["repairs"]} == {"bloom", "key-index"}
    assert result["findings"] == []
    assert cli("verify", backlog.uri).code == 0


def test_a_table_that_does_not_open_is_looked_at(cli, backlog):
    newest = min((folder(backlog) / "_versions").glob("*.manifest"))
    newest.write_bytes(b"")
    answer = cli("verify", backlog.uri)
    assert answer.code == 1
    assert "table-torn" in answer.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        ["--yes"],
        ["--quick", "--sample-generations", "1"],
        ["--sample-generations", "0"],
        ["--region", "x"],
    ],
)
def test_wrong_input(cli, backlog, wrong):
    assert cli("verify", backlog.uri, *wrong).code == 2


def test_rows_that_are_only_in_logs_are_told(cli, backlog):
    before = cli("status", backlog.uri).stdout.splitlines()
    with backlog.writer() as writer:
        writer.upsert(writer.scan().to_table().slice(0, 1))
        after = cli("status", backlog.uri).stdout.splitlines()
    (told,) = [line for line in after if line.startswith("log entries")]
    # The row, and the claim before it.
    assert re.search(r"\b2\b.*\b\d+ s\b", told)
    assert len(after) == len(before) + 1


def test_json_is_the_status(cli, backlog):
    found = cli("status", backlog.uri, "--json").json
    expected = backlog.status().to_dict()
    for status in (found, expected):
        assert status.pop("oldest_version_seconds") >= 0
        for ages in (status, *status["regions"]):
            assert ages.pop("oldest_backlog_seconds") >= 0
    assert found == {**expected, "regions": list(expected["regions"]), "indexes": found["indexes"]}
    assert found["backlog_generations"] == 6
    (index,) = found["indexes"]
    assert index == {
        "name": "id_idx",
        "generations": 0,
        "regions": 0,
        "rows": 0,
        "maintained": True,
        "stale": False,
        "damaged": False,
    }


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
    assert answer.stderr == ""
    assert not re.search(r"\d s ", answer.stdout.rpartition("│")[2])
    backlog.build_snapshot()
    assert re.search(r"\d s ", cli("status", backlog.uri).stdout.rpartition("│")[2])


def test_a_table_that_was_never_written(cli, table):
    assert cli("status", table.uri, "--json").json["regions"] == []
    assert "total" in cli("status", table.uri).stdout


def test_status_of_what_is_not_there(cli, backlog):
    region = str(uuid4())
    answer = cli("status", backlog.uri, "--region", region)
    assert (answer.code, region in answer.stderr) == (2, True)
    assert cli("status", backlog.uri, "--region", backlog.region_ids()[0]).code == 0
    assert cli("status", backlog.uri, "--catalog", "foo").code == 2
