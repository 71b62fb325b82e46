"""memwal fleet and metrics, memwal status of managed tables, memwal jobs run, skipped and retry."""

import json
import shutil
from dataclasses import replace
from uuid import UUID

import pytest
import yaml
from support.data.policies import spoil_policy
from support.data.tables import MakeTable, base_state, folder, manifest, merged, numbered

import memwal
from memwal.catalog import Catalog, Policy
from memwal.fleet import SkipReason
from memwal.format.paths import generation_dir
from memwal.jobs.due import JOBS
from memwal.region.router import bucket_region_id

BAD, GOOD = bucket_region_id(0), bucket_region_id(1)


@pytest.fixture
def flights(make_table: MakeTable, catalog: Catalog) -> memwal.Table:
    """Return a managed table of two regions with three generations each."""
    table = make_table(buckets=2, maintained_indexes=["id_idx"])
    with table.writer() as writer:
        for turn in range(3):
            writer.upsert(numbered(0, 20, n=turn))
            writer.flush()
    catalog.register("flights", uri=table.uri, policy=Policy(merge_at_generations=2))
    return table


def poison(table: memwal.Table):
    """Take the second generation of a region away; returns how to bring it back."""
    (flushed,) = (f for f in manifest(table, BAD).flushed if f.generation == 2)
    path = folder(table) / generation_dir(BAD, flushed.path)
    aside = folder(table).parent / "aside"
    path.rename(aside)

    def repair() -> None:
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)

    return repair


class TestFleet:
    def test_once(self, cli, flights, catalog):
        answer = cli("fleet", "run", "--once")
        assert answer.code == 0
        assert "flights: merge: " in answer.stdout
        # SkipReason it was due.
        assert any(str(region) in answer.stdout for region in (BAD, GOOD))
        assert base_state(flights) == dict.fromkeys(range(20), 2)
        # What the merge made due is done as well.
        assert "flights: index: " in answer.stdout
        assert cli("fleet", "run", "--once", "--json").json["outcomes"] == []
        assert cli("fleet", "run", "--once").code == 0

    def test_some_tables(self, cli, flights):
        assert cli("fleet", "run", "--once", "--table", "trains").code != 0
        assert merged(flights, GOOD) == 0
        cli("fleet", "run", "--once", "--table", "flights")
        assert merged(flights, GOOD) == 3

    def test_failed_jobs_are_warnings(self, cli, flights, catalog, tmp_path):
        catalog.register("gone", uri=str(tmp_path / "gone.lance"))
        answer = cli("fleet", "run", "--once")
        assert answer.code == 0
        assert "flights: merge:" in answer.stdout
        assert answer.stderr.startswith("warning: gone: ")
        answer = cli("fleet", "status")
        assert "gone" in answer.stdout
        (gone,) = (one for one in cli("fleet", "status", "--json").json if one["table"] == "gone")
        assert gone["backlog"] is None
        (failed,) = gone["failed_jobs"]
        assert (failed["job"], failed["attempts"]) == ("status", 1)
        assert "TableSetupError" in failed["reason"]

    def test_the_exit_code_tells_failures_on_request(self, cli, flights, catalog, tmp_path):
        assert cli("fleet", "run", "--once", "--fail").code == 0
        catalog.register("gone", uri=str(tmp_path / "gone.lance"))
        answer = cli("fleet", "run", "--once", "--fail", "--json")
        assert answer.code == 1
        outcomes = json.loads(answer.stdout)["outcomes"]
        failed = [one["table"] for one in outcomes if one["failed"]]
        assert failed == ["gone"]
        assert cli("fleet", "run", "--fail").code == 2

    def test_what_fails_is_shown_with_its_runbook(self, cli, flights, catalog):
        spoil_policy(catalog, "flights", "{")
        answer = cli("fleet", "status")
        assert answer.code == 0
        assert "failing" in answer.stdout
        assert "MemwalJobFailing.md#the-policy-cannot-be-read" in answer.stdout
        (found,) = cli("fleet", "status", "--json").json
        assert [one["job"] for one in found["errors"]] == ["policy"]
        assert cli("catalog", "show", "flights").code == 2
        assert cli("catalog", "policy", "set", "flights", "merge_at_generations=2").code == 0
        assert cli("catalog", "show", "flights").code == 0

    def test_status(self, cli, flights):
        (found,) = cli("fleet", "status", "--json").json
        assert (found["table"], found["backlog"], found["last_runs"]) == ("flights", None, {})
        cli("fleet", "run", "--once")
        (found,) = cli("fleet", "status", "--json").json
        assert found["backlog"]["generations"] == 0
        assert {"merge", "index", "snapshot", "gc"} <= set(found["last_runs"])
        assert (found["skipped_regions"], found["running"], found["failed_jobs"]) == (0, [], [])
        assert "flights" in cli("fleet", "status").stdout

    @pytest.mark.parametrize(
        "arguments",
        [["--once", "--every", 3], ["--every", 0], ["--jobs", 0], ["--bytes", 0]],
    )
    def test_wrong_options(self, cli, catalog, arguments):
        assert cli("fleet", "run", *arguments).code == 2


class TestStatus:
    def test_a_managed_table(self, cli, flights):
        answer = cli("status", "flights")
        assert answer.code == 0, answer.stderr
        assert str(GOOD) in answer.stdout
        found = cli("status", "flights", "--json").json
        assert found["due"]["merge"]["reason"] in answer.stdout
        assert found["due"]["snapshot"]["reason"] in answer.stdout
        assert found["table"] == "flights"
        assert found["backlog_generations"] == 6
        assert sorted(found["due"]) == sorted(JOBS)
        assert sorted(found["due"]["merge"]["regions"]) == sorted([str(BAD), str(GOOD)])

    def test_an_address_is_no_name(self, cli, flights, monkeypatch):
        assert "due" not in cli("status", flights.uri, "--json").json
        monkeypatch.chdir(folder(flights).parent)
        # The catalog does not know this name: a folder is meant.
        name = folder(flights).name
        assert cli("status", name, "--json").json["backlog_generations"] == 6

    def test_without_a_catalog(self, cli, make_table, monkeypatch, tmp_path):
        monkeypatch.setenv("MEMWAL_CATALOG_URL", f"sqlite:///{tmp_path / 'none.db'}")
        table = make_table()
        monkeypatch.chdir(folder(table).parent)
        assert cli("status", folder(table).name).code == 0
        assert not (tmp_path / "none.db").exists()

    def test_quiet_hours(self, cli, flights, catalog):
        windows = ("00:00-12:00 UTC", "12:00-00:00 UTC")
        policy = replace(catalog.get("flights").policy, quiet_hours=windows)
        catalog.update("flights", policy=policy)
        merge = cli("status", "flights", "--json").json["due"]["merge"]
        assert merge["reason"] is None
        assert merge["postponed"] in cli("status", "flights").stdout


class TestSkippedRegions:
    def test_from_end_to_end(self, cli, flights, catalog):
        repair = poison(flights)
        answer = cli("jobs", "run", "flights", "merge")
        assert answer.code == 0
        assert answer.stderr.startswith("warning: ")
        assert str(BAD) in answer.stderr
        (record,) = cli("jobs", "skipped", "--json").json
        assert (record["table"], record["region_id"], record["attempts"]) == (
            "flights",
            str(BAD),
            1,
        )
        assert str(BAD)[:8] in cli("jobs", "skipped", "--table", "flights").stdout
        assert cli("jobs", "skipped", "--table", "trains", "--json").json == []
        last = cli("status", "flights").stdout.splitlines()[-1]
        assert str(BAD) in last
        assert record["reason"] in last

        skipped = cli("jobs", "run", "flights", "merge", "--json").json
        assert skipped["skipped"] == SkipReason.BACKOFF.value
        assert (
            cli("jobs", "retry", "flights", "--json").json["skipped_regions"][0]["generation"] == 2
        )
        assert cli("jobs", "skipped", "--json").json[0]["attempts"] == 2
        repair()
        assert cli("jobs", "retry", "flights", "--region", BAD).code == 0
        assert merged(flights, BAD) == 3
        assert cli("jobs", "skipped", "--json").json == []
        assert cli("jobs", "retry", "flights", "--json").json == {"skipped_regions": []}
        assert cli("jobs", "retry", "flights").code == 0

    def test_retry_of_what_is_not_skipped(self, cli, flights):
        answer = cli("jobs", "retry", "flights", "--region", GOOD)
        assert answer.code == 2
        assert str(GOOD) in answer.stderr
        assert merged(flights, GOOD) == 0


class TestRun:
    def test_due_or_not(self, cli, flights):
        skipped = cli("jobs", "run", "flights", "index", "--json").json
        assert skipped["skipped"] == SkipReason.NOT_DUE.value
        assert skipped["reason"] in cli("jobs", "run", "flights", "index").stdout
        result = cli("jobs", "run", "flights", "merge", "--region", GOOD, "--json").json
        assert result["metrics"]["generations"] == 3
        assert cli("jobs", "run", "flights", "index", "--force", "--json").json["job"] == "index"

    def test_dry_run(self, cli, flights):
        found = cli("jobs", "run", "flights", "merge", "--dry-run", "--json").json
        assert found["skipped"] == SkipReason.DRY_RUN.value
        assert merged(flights, GOOD) == 0

    def test_wrong_names(self, cli, flights):
        assert cli("jobs", "run", "flights", "sweep").code == 2
        nowhere = str(UUID(int=1))
        answer = cli("jobs", "run", "flights", "merge", "--region", nowhere)
        assert answer.code == 2
        assert nowhere in answer.stderr


def test_rules_are_yaml(cli):
    answer = cli("metrics", "rules")
    assert answer.code == 0
    assert {group["name"] for group in yaml.safe_load(answer.stdout)["groups"]} >= {
        "memwal-tables",
        "memwal-writers",
    }


def test_the_dashboard_is_json(cli):
    answer = cli("metrics", "dashboard")
    assert answer.code == 0
    assert json.loads(answer.stdout)["uid"] == "memwal-fleet"


def test_a_port_that_cannot_be(cli, tmp_path):
    answer = cli("metrics", "serve", "--host", "no-such-host.invalid", "--port", 0)
    assert answer.code == 2
    assert "no-such-host.invalid" in answer.stderr
