"""What each application does with its command line, on real tables."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import uuid4

import pytest
from support.tables import base_state, generations, rows, state

import memwal
from memwal.maintenance.garbage import DEFAULT_GRACE, DEFAULT_RETENTION
from memwal.maintenance.index_build import DEFAULT_PART_ROWS
from memwal.maintenance.index_segments import DEFAULT_MAX_SEGMENTS
from memwal.maintenance.merge import DEFAULT_COMMIT_BYTES
from memwal.maintenance.results import JobResult


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

    for name in ("merge", "build_indexes", "build_snapshot", "collect_garbage"):
        monkeypatch.setattr(memwal.Table, name, job)
    return seen


def test_merge(app, make_backlog, result):
    table, expected = make_backlog(3)
    assert app("merge", "--table", table.uri) == 0
    found = result()
    assert (found["job"], found["tasks"], found["problems"]) == ("merge", 3, [])
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
    region = uuid4()
    app("merge", "--table", table.uri)
    app("merge", "--table", table.uri, "--parallelism", 50)
    app("merge", "--table", table.uri, "--max-tasks", 20, "--commit-bytes", 7, "--region", region)
    assert calls == [
        {"regions": None, "commit_bytes": DEFAULT_COMMIT_BYTES, "max_tasks": 3},
        {"regions": None, "commit_bytes": DEFAULT_COMMIT_BYTES, "max_tasks": 8},
        {"regions": [region], "commit_bytes": 7, "max_tasks": 20},
    ]


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
    app("gc", "--table", table.uri, "--execute", "--grace-seconds", "1.5", "--parallelism", 2)
    assert calls == [
        {
            "dry_run": True,
            "grace": DEFAULT_GRACE,
            "retention": DEFAULT_RETENTION,
            "max_tasks": 3,
        },
        {
            "dry_run": False,
            "grace": timedelta(seconds=1.5),
            "retention": DEFAULT_RETENTION,
            "max_tasks": 2,
        },
    ]


def test_gc_with_a_negative_grace(app, table, capsys):
    assert app("gc", "--table", table.uri, "--execute", "--grace-seconds", -1) == 2
    assert "must not be negative" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("merge", []),
        ("merge", ["--table", "t", "--region", "not-a-uuid"]),
        ("merge", ["--table", "t", "--commit-bytes", "0"]),
        ("merge", ["--table", "t", "--max-tasks", "x"]),
        ("index", ["--table", "t", "--region", str(uuid4())]),
        ("snapshot", ["--table", "t", "--execute"]),
        ("gc", ["--table", "t"]),
        ("gc", ["--table", "t", "--dry-run", "--execute"]),
        ("gc", ["--table", "t", "--execute", "--grace-seconds", "soon"]),
    ],
)
def test_wrong_command_lines(app, name, arguments):
    with pytest.raises(SystemExit) as caught:
        app(name, *arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize("name", ["merge", "index", "snapshot", "gc"])
def test_help(app, name, capsys):
    with pytest.raises(SystemExit) as caught:
        app(name, "--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert f"spark-submit spark_apps/{name}.py --table" in text
    assert "exit codes: 0 done" in text


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
    assert calls == [
        {"max_tasks": 3, "part_rows": DEFAULT_PART_ROWS, "max_segments": DEFAULT_MAX_SEGMENTS},
        {"max_tasks": 2, "part_rows": 7, "max_segments": 5},
    ]
