"""``memwal gc`` on real tables."""

from dataclasses import replace

import pytest
from support.data.tables import generations, state

from memwal.jobs import gc
from memwal.jobs.gc import CollectionResult
from memwal.jobs.gc.decision import GarbageKind
from memwal.jobs.options import GcOptions
from memwal.region.manifest_store import read_manifests

COLLECT_NOW = ["--grace-seconds", "0", "--retention-seconds", "0"]


def test_gc_only_counts_unless_told(cli, backlog):
    backlog.checkpoint()
    answer = cli("gc", backlog.uri, *COLLECT_NOW)
    assert answer.stdout.startswith("gc: 6 ")
    assert "--yes" in answer.stdout
    assert all(generations(backlog, region) for region in backlog.region_ids())


@pytest.mark.parametrize("flag", ["--yes", "--no-dry-run"])
def test_gc_deletes(cli, backlog, expected, flag):
    backlog.checkpoint()
    # What is dropped from a manifest goes in the same run or, by a clock of milliseconds, the next.
    runs = [cli("gc", backlog.uri, flag, *COLLECT_NOW, "--json").json["metrics"] for _ in range(2)]
    assert [metrics["generations_dropped"] for metrics in runs] == [6, 0]
    assert sum(metrics["folders"] for metrics in runs) == 6
    assert not any(generations(backlog, region) for region in backlog.region_ids())
    assert state(backlog) == expected


def test_what_stays_is_told_with_the_reason(cli, backlog):
    answer = cli("gc", backlog.uri)
    assert "stays: " in answer.stdout
    assert "--version-retention-seconds" in answer.stdout
    assert "stays: " not in cli("gc", backlog.uri, "--yes").stdout


def test_gc_takes_its_times_in_seconds(cli, table, monkeypatch):
    seen = []

    def collect(location, options):
        seen.append(replace(options, progress=None))
        return CollectionResult(job="gc", table=table.uri, version=1)

    monkeypatch.setattr(gc, "collect_garbage", collect)
    cli("gc", table.uri)
    cli("gc", table.uri, "--grace-seconds", 90, "--retention-seconds", 0)
    cli("gc", table.uri, "--orphan-grace-seconds", 5, "--index-grace-seconds", 7, "--yes")
    cli("gc", table.uri, "--version-retention-seconds", 8, "--explain")
    assert seen == [
        GcOptions(explain=True),
        GcOptions(grace_seconds=90, retention_seconds=0, explain=True),
        GcOptions(orphan_grace_seconds=5, index_grace_seconds=7, dry_run=False),
        GcOptions(version_retention_seconds=8, explain=True),
    ]


def test_gc_explains_to_programs(cli, backlog):
    backlog.merge()
    found = cli("gc", backlog.uri, *COLLECT_NOW, "--explain", "--json").json
    named = [d for d in found["decisions"] if d["kind"] == "generation"]
    assert {d["what"] for d in named} == {
        flushed.path
        for manifest in read_manifests(backlog.location.store).values()
        for flushed in manifest.flushed
    }
    assert {(d["delete"], d["reason"]) for d in named} == {(False, "index_behind")}
    assert all(d["bytes"] > 0 and "id_idx" in d["message"] for d in named)
    assert {d["region_id"] for d in named} == {str(r) for r in backlog.region_ids()}
    assert cli("gc", backlog.uri, "--json").json["decisions"] == []


def test_gc_explains_to_people(cli, backlog):
    backlog.checkpoint()
    answer = cli("gc", backlog.uri, *COLLECT_NOW, "--explain").stdout
    assert answer.startswith("gc: 6 ")
    cells = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in answer.splitlines()
        if "│" in line
    ]
    found = cli("gc", backlog.uri, *COLLECT_NOW, "--explain", "--json").json["decisions"]
    assert {(one["kind"], one["delete"]) for one in found} >= {
        (GarbageKind.GENERATION, True),
        (GarbageKind.LOG, False),
    }
    # A row for each; a long cell takes several lines.
    assert sum(row[1] != "" for row in cells) == len(found)


def test_gc_cleans_base_versions_only_when_told(cli, backlog, expected):
    backlog.checkpoint()
    versions = len(backlog.base().dataset.versions())
    assert versions > 3
    cli("gc", backlog.uri, "--yes", *COLLECT_NOW)
    assert len(backlog.base().dataset.versions()) == versions
    told = cli("gc", backlog.uri, *COLLECT_NOW, "--version-retention-seconds", 0, "--json").json[
        "metrics"
    ]
    assert told["base_versions"] == versions - 1
    assert len(backlog.base().dataset.versions()) == versions
    kept = ("--version-retention-seconds", 3600)
    metrics = cli("gc", backlog.uri, *COLLECT_NOW, *kept, "--json").json["metrics"]
    assert metrics.get("base_versions", 0) == 0
    done = cli(
        "gc", backlog.uri, "--yes", *COLLECT_NOW, "--version-retention-seconds", 0, "--json"
    ).json
    assert done["metrics"]["base_versions"] == versions - 1
    assert done["metrics"]["bytes_base_versions"] > 0
    assert len(backlog.base().dataset.versions()) == 1
    assert state(backlog) == expected
