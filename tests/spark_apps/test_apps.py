"""What each application does with its command line, on real tables."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from support.data.quarantined import flush, rules
from support.data.tables import base_state, folder, generations, numbered, rows, state

import memwal
from memwal.catalog import ManagedTable, Policy
from memwal.fleet import Order
from memwal.jobs.gc import DEFAULT_GRACE, DEFAULT_INDEX_AGE, DEFAULT_ORPHAN_AGE, DEFAULT_RETENTION
from memwal.jobs.index.job import DEFAULT_PART_ROWS
from memwal.jobs.job import JobResult
from memwal.jobs.merge.job import DEFAULT_COMMIT_BYTES
from memwal.jobs.table.compact import DEFAULT_ATTEMPTS, DEFAULT_MIN_FRAGMENTS
from memwal.lsm.indexes.segments import DEFAULT_MAX_SEGMENTS
from memwal.spark.session import APPLICATION_LINE


@pytest.fixture
def result(capsys):
    """Return a function that reads what was printed last."""
    return lambda: json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def calls(monkeypatch, table):
    """Return a list of the options that a job of the table was called with."""
    seen = []

    def job(self, **options):
        options.pop("run")
        seen.append(options)
        return JobResult(job="x", table=self.uri, version=1)

    for name in ("merge", "build_indexes", "build_snapshot", "collect_garbage", "compact"):
        monkeypatch.setattr(memwal.Table, name, job)
    return seen


def test_merge(app, make_backlog, result):
    table, expected = make_backlog(3)
    assert app("merge", "--table", table.uri) == 0
    found = result()
    assert (found["job"], found["tasks"], found["problems"]) == ("merge", 1, [])
    assert found["figures"]["generations"] == 12
    assert base_state(table) == expected


def test_merge_some_regions(app, make_backlog, result):
    table, expected = make_backlog(2)
    first, second, *_ = table.region_ids()
    assert app("merge", "--table", table.uri, "--region", first, "--region", second) == 0
    assert result()["figures"]["generations"] == 4
    assert set(table.base().details.merged) == {first, second}
    assert state(table) == expected


def test_options_of_merge(app, table, calls):
    (region,) = table.region_ids()
    app("merge", "--table", table.uri)
    app("merge", "--table", table.uri, "--parallelism", 50)
    app("merge", "--table", table.uri, "--max-tasks", 20, "--commit-bytes", 7, "--region", region)
    app("merge", "--table", table.uri, "--run-bytes", 9, "--skip-region", region)
    plain = {
        "regions": None,
        "skip": (),
        "commit_bytes": DEFAULT_COMMIT_BYTES,
        "run_bytes": None,
        "quality": None,
        "max_tasks": 3,
    }
    assert calls == [
        plain,
        {**plain, "max_tasks": 8},
        {**plain, "regions": [region], "commit_bytes": 7, "max_tasks": 20},
        {**plain, "skip": [region], "run_bytes": 9},
    ]


def test_rules_of_quality_of_a_merge(app, table, calls, tmp_path):
    managed = ManagedTable(
        name="flights",
        uri=table.uri,
        storage_options_ref=None,
        policy=Policy(quality=rules("hold")),
        owner="data",
        enabled=True,
        created_at=datetime.now(UTC),
        updated_at=datetime.now(UTC),
    )
    arguments = Order(job="merge", table=managed).arguments()
    (tmp_path / "rules.json").write_text(arguments[-1])
    assert app("merge", "--table", table.uri, *arguments) == 0
    assert app("merge", "--table", table.uri, "--quality", f"@{tmp_path}/rules.json") == 0
    assert app("merge", "--table", table.uri, "--quality", "{") == 2
    assert [call["quality"] for call in calls] == [rules("hold")] * 2


def test_quality(app, table, result, capsys):
    flush(table, {1: 1, 2: -2})
    text = json.dumps(rules("off").to_dict())
    assert app("merge", "--table", table.uri) == 0
    assert app("quality", "--table", table.uri, "--quality", text) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]["failed_rows"] == 1
    flush(table, {2: 2})
    assert app("merge", "--table", table.uri) == 0
    assert app("quality", "--table", table.uri, "--quality", text, "--sample-rows", 9) == 0


@pytest.mark.parametrize("option", ["--region", "--skip-region"])
def test_merge_of_a_region_that_there_is_not(app, table, calls, capsys, option):
    nowhere = uuid4()
    assert app("merge", "--table", table.uri, option, nowhere) == 2
    assert calls == []
    assert str(nowhere) in capsys.readouterr().err


def test_options_of_compact_and_snapshot(app, table, calls):
    app("compact", "--table", table.uri)
    limits = ("--min-fragments", 2, "--commit-bytes", 7, "--max-commits", 1, "--attempts", 3)
    app("compact", "--table", table.uri, *limits)
    app("snapshot", "--table", table.uri)
    app("snapshot", "--table", table.uri, "--max-tasks", 7)
    assert calls == [
        {
            "min_fragments": DEFAULT_MIN_FRAGMENTS,
            "commit_bytes": DEFAULT_COMMIT_BYTES,
            "max_commits": None,
            "attempts": DEFAULT_ATTEMPTS,
        },
        {"min_fragments": 2, "commit_bytes": 7, "max_commits": 1, "attempts": 3},
        {"max_tasks": 3},
        {"max_tasks": 7},
    ]


def test_compact(app, table, result):
    for start in range(0, 60, 20):
        with table.writer() as writer:
            writer.upsert(numbered(start, 20))
        table.merge()
    assert app("compact", "--table", table.uri, "--min-fragments", 2) == 0
    assert result()["figures"] == {"fragments_removed": 3, "fragments_added": 1}


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
    assert app("verify", "--table", tmp_path / "none.lance") == 1
    assert "error: " in capsys.readouterr().err


def test_index_and_snapshot(app, make_backlog, result):
    table, _ = make_backlog(2)
    table.merge()
    assert app("index", "--table", table.uri) == 0
    assert result()["figures"] == {"indexes": 1}
    assert [index.generations for index in table.status().indexes] == [0]
    assert app("snapshot", "--table", table.uri) == 0
    assert result()["figures"]["regions"] == 4
    assert table.status().snapshot_age_seconds is not None


def test_gc(app, make_backlog, result):
    table, expected = make_backlog(2)
    table.checkpoint()
    arguments = ["--table", table.uri, "--grace-seconds", 0, "--retention-seconds", 0]
    assert app("gc", *arguments, "--dry-run") == 0
    assert result()["figures"]["generations_dropped"] == 8
    assert all(generations(table, region) for region in table.region_ids())
    assert app("gc", *arguments, "--execute") == 0
    assert result()["figures"]["generations_dropped"] == 8
    assert not any(generations(table, region) for region in table.region_ids())
    assert state(table) == expected


def test_options_of_gc(app, table, calls):
    app("gc", "--table", table.uri, "--dry-run")
    app(
        *("gc", "--table", table.uri, "--execute", "--grace-seconds", "1.5", "--parallelism", 2),
        *("--retention-seconds", 2, "--orphan-seconds", 3, "--index-seconds", 4),
        *("--base-versions", "--version-seconds", 5, "--explain"),
    )
    assert calls == [
        {
            "dry_run": True,
            "grace": DEFAULT_GRACE,
            "retention": DEFAULT_RETENTION,
            "orphan_age": DEFAULT_ORPHAN_AGE,
            "index_age": DEFAULT_INDEX_AGE,
            "base_versions": False,
            "version_age": None,
            "explain": False,
            "max_tasks": 3,
        },
        {
            "dry_run": False,
            "grace": timedelta(seconds=1.5),
            "retention": timedelta(seconds=2),
            "orphan_age": timedelta(seconds=3),
            "index_age": timedelta(seconds=4),
            "base_versions": True,
            "version_age": timedelta(seconds=5),
            "explain": True,
            "max_tasks": 2,
        },
    ]


@pytest.mark.parametrize("job", ["merge", "compact", "gc", "snapshot"])
def test_orders_are_command_lines(app, table, calls, job):
    """What the catalog's jobs hand to an application is what it takes."""
    now = datetime.now(UTC)
    managed = ManagedTable(
        name="flights",
        uri=table.uri,
        storage_options_ref=None,
        policy=Policy(version_retention_seconds=9.0, merge_run_bytes=1 << 21),
        owner="data",
        enabled=True,
        created_at=now,
        updated_at=now,
    )
    regions = tuple(table.region_ids())
    order = Order(job=job, table=managed, regions=regions, skip=regions, run_bytes=7)
    assert app(job, "--table", table.uri, *order.arguments()) == 0
    assert len(calls) == 1


def test_gc_with_a_negative_grace(app, table, capsys):
    with pytest.raises(SystemExit) as caught:
        app("gc", "--table", table.uri, "--execute", "--grace-seconds", -1)
    assert caught.value.code == 2
    assert "--grace-seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("merge", []),
        ("merge", ["--table", "t", "--region", "not-a-uuid"]),
        ("merge", ["--table", "t", "--commit-bytes", "0"]),
        ("merge", ["--table", "t", "--max-tasks", "x"]),
        ("merge", ["--table", "t", "--skip-region", "x"]),
        ("compact", ["--table", "t", "--min-fragments", "0"]),
        ("verify", ["--table", "t", "--quick", "--sample", "3"]),
        ("index", ["--table", "t", "--region", str(uuid4())]),
        ("snapshot", ["--table", "t", "--execute"]),
        ("gc", ["--table", "t"]),
        ("gc", ["--table", "t", "--dry-run", "--execute"]),
        ("gc", ["--table", "t", "--execute", "--grace-seconds", "soon"]),
        ("checkpoint", ["--table", "t", "--timeout-seconds", "soon"]),
    ],
)
def test_wrong_command_lines(app, name, arguments):
    with pytest.raises(SystemExit) as caught:
        app(name, *arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "name", ["merge", "index", "compact", "snapshot", "gc", "verify", "checkpoint"]
)
def test_help(app, name, capsys):
    with pytest.raises(SystemExit) as caught:
        app(name, "--help")
    assert caught.value.code == 0
    assert f"spark_apps/{name}.py" in capsys.readouterr().out


def test_an_index_is_built_in_parts(app, make_table, result):
    table = make_table(maintained_indexes=["n_idx"])
    for start in (0, 100, 200):
        with table.writer() as writer:
            writer.upsert(rows(dict.fromkeys(range(start, start + 50), start)))
            writer.flush()
        table.merge()
        if not start:
            table.build_indexes()

    assert app("index", "--table", table.uri, "--part-rows", 5) == 0

    assert result()["figures"] == {"indexes": 1, "parts": 2}
    assert [index.generations for index in table.status().indexes] == [0]


def test_options_of_index(app, table, calls):
    app("index", "--table", table.uri)
    app("index", "--table", table.uri, "--max-tasks", 2, "--part-rows", 7, "--max-segments", 5)
    app("index", "--table", table.uri, "--index", "a_idx", "--index", "b_idx")
    usual = {"max_tasks": 3, "part_rows": DEFAULT_PART_ROWS, "max_segments": DEFAULT_MAX_SEGMENTS}
    assert calls == [
        {"names": None, **usual},
        {"names": None, "max_tasks": 2, "part_rows": 7, "max_segments": 5},
        {"names": ["a_idx", "b_idx"], **usual},
    ]


def test_an_index_is_named(app, make_table, result, capsys):
    table = make_table(maintained_indexes=["n_idx", "id_idx"])
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        writer.flush()
    table.merge()

    assert app("index", "--table", table.uri, "--index", "n_idx") == 0
    assert result()["figures"] == {"indexes": 1}
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
    assert (found["job"], found["figures"]["generations"]) == ("checkpoint", 8)
    assert base_state(table) == expected
    assert [index.generations for index in table.status().indexes] == [0]

    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        writer.flush()
    assert app("checkpoint", "--table", table.uri, "--timeout-seconds", 0) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_an_application_introduces_itself_to_who_submitted_it(app, table, capsys, monkeypatch):
    assert app("snapshot", "--table", table.uri) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert app("snapshot", "--table", table.uri) == 0
    assert capsys.readouterr().err == f"{APPLICATION_LINE}local-1\n"
