"""merge, index, snapshot and checkpoint on real tables."""

import re

import lance
import pytest
from support.data.tables import base_state, numbered, state

import memwal
from memwal.jobs.job import JobResult
from memwal.jobs.merge import job as merge_job
from memwal.jobs.merge.picker import PickReason


def test_merge(cli, backlog, expected):
    result = cli("merge", backlog.uri, "--json").json
    assert result["job"] == "merge"
    assert result["table"] == backlog.uri
    assert result["version"] == backlog.base().version
    for name in ("bytes", "bytes_read", "bytes_written"):
        assert result["metrics"].pop(name) > 0
    assert result["metrics"] == {"generations": 6, "rows_upserted": 28, "rows_deleted": 0}
    assert result["warnings"] == []
    assert base_state(backlog) == expected
    assert cli("merge", backlog.uri, "--json").json["metrics"]["generations"] == 0


def test_merge_one_region(cli, backlog):
    first, second = backlog.region_ids()
    assert (
        cli("merge", backlog.uri, "--region", first, "--json").json["metrics"]["generations"] == 3
    )
    assert set(backlog.base().details.merged) == {first}
    cli("merge", backlog.uri, "--region", first, "--region", second)
    assert set(backlog.base().details.merged) == {first, second}


def test_merge_in_small_commits(cli, backlog, expected):
    result = cli("merge", backlog.uri, "--commit-bytes", 1, "--json").json
    assert result["commits"] >= 6
    assert base_state(backlog) == expected


def test_merge_in_words(cli, backlog):
    answer = cli("merge", backlog.uri)
    assert answer.code == 0
    (line,) = answer.stdout.splitlines()
    version = backlog.base().version
    assert re.fullmatch(rf"merge: 6 .*\b28 .*\b0 .* KiB\b.*\b2 .*\b{version}\b.*", line)
    assert answer.stderr == ""


def test_snapshot(cli, backlog):
    result = cli("snapshot", backlog.uri, "--json").json
    assert result["metrics"]["regions"] == 2
    assert backlog.status().snapshot_age_seconds is not None


def test_checkpoint(cli, backlog, expected):
    assert cli("checkpoint", backlog.uri, "--json").json["job"] == "checkpoint"
    assert base_state(backlog) == expected
    status = backlog.status()
    assert status.backlog_generations == 0
    assert [index.generations for index in status.indexes] == [0]


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_problems_are_warnings(cli, table, monkeypatch, json):
    result = JobResult(
        job="merge", table=table.uri, version=1, metrics={"generations": 0}, warnings=("problem-1",)
    )
    monkeypatch.setattr(merge_job, "merge", lambda location, options: result)
    answer = cli("merge", table.uri, *json)
    assert answer.code == 0
    assert answer.stderr == "warning: problem-1\n"
    assert answer.stdout


def test_merge_of_a_region_that_there_is_not(cli, backlog):
    nowhere = "00000000-0000-0000-0000-000000000001"
    for option in ("--region", "--skip-region"):
        answer = cli("merge", backlog.uri, option, nowhere)
        assert answer.code == 2
        assert nowhere in answer.stderr
    assert backlog.base().details.merged == {}


def test_explain_merge(cli, backlog):
    first, second = sorted(region.region_id for region in backlog.status().regions)
    plan = cli("merge", backlog.uri, "--explain", "--skip-region", first, "--json").json
    assert (plan["candidates"], plan["selected"], plan["tasks"]) == (6, 3, 1)
    assert {(d["region_id"], d["reason"]) for d in plan["decisions"]} == {
        (first, "region_skipped"),
        (second, "selected"),
    }
    assert all(d["age_seconds"] is not None for d in plan["decisions"])
    assert backlog.base().details.merged == {}

    answer = cli("merge", backlog.uri, "--explain", "--run-bytes", 1)
    assert PickReason.OVERSIZED.text in answer.stdout
    assert answer.stdout.count(PickReason.RUN_BYTES.text) == 5
    assert backlog.base().details.merged == {}


def test_explain_merge_of_nothing(cli, backlog):
    backlog.merge()
    assert cli("merge", backlog.uri, "--explain", "--json").json["decisions"] == []
    assert len(cli("merge", backlog.uri, "--explain").stdout.splitlines()) == 1


def test_merge_of_some(cli, backlog):
    first, second = backlog.region_ids()
    cli("merge", backlog.uri, "--skip-region", first)
    assert set(backlog.base().details.merged) == {second}
    result = cli("merge", backlog.uri, "--run-bytes", 1, "--json").json
    assert result["metrics"]["generations"] == 1


def test_compact(cli, table):
    for start in range(0, 60, 20):
        table.upsert(numbered(start, 20))
        table.merge()
    assert cli("compact", table.uri, "--json").json["metrics"]["fragments_removed"] == 0
    none = ("--min-fragments", "none", "--deleted-percent", "none")
    assert cli("compact", table.uri, *none, "--json").json["metrics"]["fragments_removed"] == 0
    result = cli("compact", table.uri, "--min-fragments", 2, "--json").json
    assert result["metrics"] == {"fragments_removed": 3, "fragments_added": 1}


def test_checkpoint_in_time(cli, backlog, expected, monkeypatch):
    seen = []
    whole = memwal.Table.checkpoint
    monkeypatch.setattr(
        memwal.Table,
        "checkpoint",
        lambda self, **options: seen.append(options["flush"]) or whole(self, **options),
    )
    answer = cli("checkpoint", backlog.uri, "--timeout-seconds", 0)
    assert answer.code == 3
    assert cli("checkpoint", backlog.uri, "--timeout-seconds", 600, "--no-flush").code == 0
    assert seen == [True, False]
    assert base_state(backlog) == expected


@pytest.mark.parametrize("by_memwal", [True, False])
@pytest.mark.parametrize("merges_again", [True, False])
def test_restore(cli, table, by_memwal, merges_again):
    table.upsert(numbered(0, 5))
    table.merge()
    good = table.base().version
    table.upsert(numbered(0, 10, 1))
    table.merge()
    choice = "merge-again" if merges_again else "keep"
    wanted = state(table) if merges_again else dict.fromkeys(range(5), 0)
    if by_memwal:
        command = ["restore", table.uri, good, "--then", choice, "--json"]
    else:
        lance.dataset(table.uri, version=good).restore()
        assert "ProgressLostError" in cli("status", table.uri).stdout
        command = ["recover", table.uri, "--after-restore", choice, "--json"]
    version = table.base().version
    found = cli(*command).json
    assert (found["metrics"]["lost_generations"], found["version"]) == (1, version)
    assert table.base().version == version

    assert cli(*command, "--yes").json["commits"] >= 1

    table.merge()
    assert base_state(table) == wanted
