"""What each application does with its command line, on real tables."""

import json
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from support.data.quarantined import rules
from support.data.tables import base_state, flush, folder, generations, numbered, rows, state

import memwal
from memwal.catalog import ManagedTable, Policy
from memwal.jobs import gc
from memwal.jobs.arguments import to_arguments
from memwal.jobs.index import job as index_job
from memwal.jobs.job import JobResult, run_in_process
from memwal.jobs.merge import job as merge_job
from memwal.jobs.options import (
    CompactOptions,
    GcOptions,
    IndexOptions,
    MergeOptions,
    SnapshotOptions,
)
from memwal.jobs.table import compact as compact_job
from memwal.jobs.table import snapshot as snapshot_job
from memwal.spark.session import APPLICATION_LINE


@pytest.fixture
def result(capsys):
    """Return a function that reads what was printed last."""
    return lambda: json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def calls(monkeypatch, table):
    """Return a list of the options that a job of the table was called with."""
    seen = []

    def job(location, options):
        seen.append(replace(options, run=run_in_process))
        return JobResult(job="x", table=location.uri, version=1)

    for module, name in (
        (merge_job, "merge"),
        (index_job, "build_indexes"),
        (snapshot_job, "build_snapshot"),
        (gc, "collect_garbage"),
        (compact_job, "compact"),
    ):
        monkeypatch.setattr(module, name, job)
    return seen


def test_no_application_is_imported_for_a_module_of_python():
    # spark-submit puts their folder first on the path of the driver; built-in modules are before.
    apps = Path(__file__).resolve().parents[2] / "spark_apps"
    modules = sys.stdlib_module_names - set(sys.builtin_module_names)
    assert not {file.stem for file in apps.glob("*.py")} & modules


def test_merge(app, make_backlog, result):
    table, expected = make_backlog(3)
    assert app("merge", "--table", table.uri) == 0
    found = result()
    assert (found["job"], found["tasks"], found["warnings"]) == ("merge", 1, [])
    assert found["metrics"]["generations"] == 12
    assert base_state(table) == expected


def test_merge_some_regions(app, make_backlog, result):
    table, expected = make_backlog(2)
    first, second, *_ = table.region_ids()
    assert app("merge", "--table", table.uri, "--region", first, "--region", second) == 0
    assert result()["metrics"]["generations"] == 4
    assert set(table.base().details.merged) == {first, second}
    assert state(table) == expected


def test_options_of_merge(app, table, calls):
    (region,) = table.region_ids()
    app("merge", "--table", table.uri)
    app("merge", "--table", table.uri, "--max-tasks", 20, "--commit-bytes", 7, "--region", region)
    app("merge", "--table", table.uri, "--run-bytes", 9, "--skip-region", region)
    assert calls == [
        MergeOptions(),
        MergeOptions(max_tasks=20, commit_bytes=7, regions=(region,)),
        MergeOptions(run_bytes=9, skip_regions=(region,)),
    ]


def test_rules_of_quality_of_a_merge(app, table, calls, tmp_path):
    managed = ManagedTable(
        name="flights",
        uri=table.uri,
        storage_options_ref=None,
        policy=Policy(quality=rules("skip")),
        owner="data",
        enabled=True,
        created_at=datetime.now(UTC),
        updated_at=datetime.now(UTC),
    )
    arguments = to_arguments(managed.policy.merge_options())
    (tmp_path / "rules.json").write_text(arguments[-1])
    assert app("merge", "--table", table.uri, *arguments) == 0
    assert app("merge", "--table", table.uri, "--quality", f"@{tmp_path}/rules.json") == 0
    assert app("merge", "--table", table.uri, "--quality", "{") == 2
    assert [call.quality for call in calls] == [rules("skip")] * 2


def test_quality(app, table, result, capsys):
    flush(table, {1: 1, 2: -2})
    text = json.dumps(rules("off").to_dict())
    assert app("merge", "--table", table.uri) == 0
    assert app("quality", "--table", table.uri, "--quality", text) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"]["failed_rows"] == 1
    flush(table, {2: 2})
    assert app("merge", "--table", table.uri) == 0
    assert app("quality", "--table", table.uri, "--quality", text, "--sample-rows", 9) == 0


def test_copy(app, make_backlog, result, tmp_path):
    table, expected = make_backlog(2)
    (tmp_path / "options.json").write_text('{"timeout": "5s"}')
    where = ("--target", tmp_path / "copy", "--target-options-file", tmp_path / "options.json")
    assert app("copy_table", "--table", table.uri, *where) == 0
    assert result()["tasks"] == 1
    assert state(memwal.open(tmp_path / "copy")) == expected
    assert app("copy_table", "--table", table.uri, *where) == 2


@pytest.mark.parametrize("option", ["--region", "--skip-region"])
def test_merge_of_a_region_that_there_is_not(app, table, calls, capsys, option):
    nowhere = uuid4()
    assert app("merge", "--table", table.uri, option, nowhere) == 2
    assert calls == []
    assert str(nowhere) in capsys.readouterr().err


def test_compact(app, table, result):
    for start in range(0, 60, 20):
        table.upsert(numbered(start, 20))
        table.merge()
    assert app("compact", "--table", table.uri, "--min-fragments", 2) == 0
    assert result()["metrics"] == {"fragments_removed": 3, "fragments_added": 1}


def test_verify(app, make_backlog, result, capsys):
    table, _ = make_backlog(2)
    assert app("verify", "--table", table.uri) == 0
    found = result()
    assert (found["job"], found["regions"], found["repairs"]) == ("verify", 4, [])
    assert app("verify", "--table", table.uri, "--quick", "--region", table.region_ids()[0]) == 0
    assert result()["regions"] == 1
    first = next(folder(table).glob("_mem_wal/*/*_gen_1"))
    shutil.rmtree(first)
    assert app("verify", "--table", table.uri, "--repair") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["findings"]
    assert err.startswith("error: ")
    assert app("verify", "--table", table.uri, "--yes") == 2


def test_verify_of_what_is_no_table(app, tmp_path, capsys):
    assert app("verify", "--table", tmp_path / "none.lance") == 2
    assert "error: " in capsys.readouterr().err


def test_index_and_snapshot(app, make_backlog, result):
    table, _ = make_backlog(2)
    table.merge()
    assert app("index", "--table", table.uri) == 0
    assert result()["metrics"] == {"indexes": 1}
    assert [index.generations for index in table.status().indexes] == [0]
    assert app("snapshot", "--table", table.uri) == 0
    assert result()["metrics"]["regions"] == 4
    assert table.status().snapshot_age_seconds is not None


def test_gc(app, make_backlog, result):
    table, expected = make_backlog(2)
    table.checkpoint()
    arguments = ["--table", table.uri, "--grace-seconds", 0, "--retention-seconds", 0]
    assert app("gc", *arguments, "--dry-run") == 0
    assert result()["metrics"]["generations_dropped"] == 8
    assert all(generations(table, region) for region in table.region_ids())
    assert app("gc", *arguments, "--no-dry-run") == 0
    assert result()["metrics"]["generations_dropped"] == 8
    assert not any(generations(table, region) for region in table.region_ids())
    assert state(table) == expected


REGIONS = (uuid4(), uuid4())
OPTIONS = {
    "merge": MergeOptions(regions=REGIONS, run_bytes=7, max_tasks=2, quality=rules("skip")),
    "index": IndexOptions(indexes=("a_idx", "b_idx"), part_rows=2**62, max_tasks=2),
    "compact": CompactOptions(min_fragments=2, attempts=2, max_commits=1),
    "snapshot": SnapshotOptions(max_tasks=2, inline_regions=0),
    "gc": GcOptions(dry_run=False, index_grace_seconds=1_234_567.125, max_tasks=2),
    "gc dry run": GcOptions(grace_seconds=0.1, max_tasks=2),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_arrive_as_they_were(app, table, calls, name, monkeypatch):
    """What the catalog's jobs hand to an application is what it makes its options of."""
    monkeypatch.setattr("memwal.fleet.tables.check_regions", lambda table, regions: None)
    arguments = to_arguments(OPTIONS[name])
    assert app(name.split()[0], "--table", table.uri, *arguments) == 0
    assert calls == [OPTIONS[name]]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("gc", ["--grace-seconds", -1], "grace_seconds"),
        ("merge", ["--commit-bytes", 0], "commit_bytes"),
        ("compact", ["--min-fragments", 0], "min_fragments"),
        ("verify", ["--quick", "--sample-generations", 3], "sample_generations"),
    ],
)
def test_values_out_of_their_limits(app, table, capsys, name, arguments, told):
    assert app(name, "--table", table.uri, *arguments) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("merge", []),
        ("merge", ["--table", "t", "--region", "not-a-uuid"]),
        ("merge", ["--table", "t", "--max-tasks", "x"]),
        ("merge", ["--table", "t", "--skip-region", "x"]),
        ("index", ["--table", "t", "--region", str(uuid4())]),
        ("snapshot", ["--table", "t", "--no-dry-run"]),
        ("gc", ["--table", "t", "--no-dry-run", "--grace-seconds", "soon"]),
        ("checkpoint", ["--table", "t", "--timeout-seconds", "soon"]),
    ],
)
def test_wrong_command_lines(app, name, arguments):
    assert app(name, *arguments) == 2


def test_an_index_is_built_in_parts(app, make_table, result):
    table = make_table(maintained_indexes=["n_idx"])
    for start in (0, 100, 200):
        table.upsert(rows(dict.fromkeys(range(start, start + 50), start)))
        table.merge()
        if not start:
            table.build_indexes()

    assert app("index", "--table", table.uri, "--part-rows", 5) == 0

    assert result()["metrics"] == {"indexes": 1, "parts": 2}
    assert [index.generations for index in table.status().indexes] == [0]


def test_an_index_is_named(app, make_table, result, capsys):
    table = make_table(maintained_indexes=["n_idx", "id_idx"])
    table.upsert(rows({1: 1}))
    table.merge()

    assert app("index", "--table", table.uri, "--index", "n_idx") == 0
    assert result()["metrics"] == {"indexes": 1}
    assert {lag.name: lag.generations for lag in table.status().indexes} == {
        "n_idx": 0,
        "id_idx": 1,
    }

    assert app("index", "--table", table.uri, "--index", "other") == 2
    assert "other" in capsys.readouterr().err


def test_a_checkpoint(app, make_backlog, result, capsys):
    table, expected = make_backlog(2)
    assert app("checkpoint", "--table", table.uri, "--timeout-seconds", 60) == 0
    found = result()
    assert (found["job"], found["metrics"]["generations"]) == ("checkpoint", 8)
    assert base_state(table) == expected
    assert [index.generations for index in table.status().indexes] == [0]

    table.upsert(rows({1: 1}))
    assert app("checkpoint", "--table", table.uri, "--timeout-seconds", 0) == 3
    assert capsys.readouterr().err.startswith("error: ")


def test_an_application_introduces_itself_to_who_submitted_it(app, table, capsys, monkeypatch):
    assert app("snapshot", "--table", table.uri) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert app("snapshot", "--table", table.uri) == 0
    assert capsys.readouterr().err == f"{APPLICATION_LINE}local-1\n"
