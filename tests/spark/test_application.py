"""What every Spark application does around its job; Spark itself stands still here."""

import json
import os
import signal
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from memwal.errors import ConflictError, InvalidInputError, OutcomeUnknownError
from memwal.jobs.job import JobResult, run_in_process, task_limit
from memwal.jobs.options import MergeOptions
from memwal.spark import application
from memwal.spark.application import job_parser, run_application
from memwal.spark.result_store import read_result, write_result
from memwal.spark.runner import spark_runner

SECRET = "tell-nobody-0123456789"


class Session:
    """A session of six cores that counts how often it was stopped."""

    def __init__(self) -> None:
        context = SimpleNamespace(_jsc=object(), defaultParallelism=6)
        self.sparkContext, self.conf = context, {"spark.master": "local[6]"}
        self.names: list[str] = []
        self.runners: list[dict[str, object]] = []
        self.stopped = 0

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def session(monkeypatch):
    """The session that applications get; signal handlers are put back."""
    session = Session()

    def start(name):
        session.names.append(name)
        return session

    def runner(spark, **options):
        session.runners.append(options)
        return replace(spark_runner(spark, **options), run=run_in_process)

    monkeypatch.setattr(application, "spark_session", start)
    monkeypatch.setattr(application, "spark_runner", runner)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield session
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def start(session, monkeypatch):
    """Return a function that runs a job with a command line."""

    def run(job, *arguments):
        monkeypatch.setattr(sys, "argv", ["job.py", *(str(argument) for argument in arguments)])
        return run_application(job_parser("merge", "Merges."), MergeOptions, job)

    return run


def answer(context):
    return JobResult(job="merge", table=context.table.uri, version=3, warnings=("left out",))


def fail_with(error):
    def job(context):
        raise error

    return job


def test_the_result_is_a_line_and_a_file(start, session, table, tmp_path, capsys):
    file = tmp_path / "result.json"
    file.write_text("the one before, which was longer than the new one is" * 20)
    assert start(answer, "--table", table.uri, "--result", file) == 0
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    result = json.loads(line)
    assert (result["job"], result["table"], result["version"]) == ("merge", table.uri, 3)
    assert result["warnings"] == ["left out"]
    assert file.read_text() == line
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert session.names == [f"memwal merge {table.uri}"]
    assert session.runners == [
        {"max_parallelism": None, "description": f"memwal merge {table.uri}"}
    ]
    assert session.stopped == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((), [6, 8]), (("--parallelism", 2), [2, 2]), (("--max-tasks", 3), [3, 3])],
)
def test_tasks_are_as_many_as_run_at_once_when_they_are_planned(
    start, session, table, arguments, expected
):
    seen = []

    def job(context):
        seen.append(task_limit(context.options))
        session.sparkContext.defaultParallelism = 8
        seen.append(task_limit(context.options))
        return answer(context)

    assert start(job, "--table", table.uri, *arguments) == 0
    assert seen == expected


def test_a_result_that_cannot_be_written(start, table, tmp_path, capsys):
    assert start(answer, "--table", table.uri, "--result", tmp_path / "none" / "r.json") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["version"] == 3
    assert captured.err.startswith("error: ")
    assert str(tmp_path / "none" / "r.json") in captured.err


def test_a_result_in_an_object_store(start, table, tmp_path, capsys):
    address = f"file://{tmp_path}/results/run-1.json"
    options = tmp_path / "options.json"
    options.write_text('{"timeout": "5s"}')
    more = ("--result", address, "--result-options-file", options)
    assert start(answer, "--table", table.uri, *more) == 0
    assert json.loads(capsys.readouterr().out) == read_result(address)
    # The same once more is what it is; the name is taken for anything else.
    assert start(answer, "--table", table.uri, *more) == 0
    taken = f"file://{tmp_path}/results/run-2.json"
    write_result(taken, "{}")
    assert start(answer, "--table", table.uri, "--result", taken) == 1
    assert taken in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--result", "ftp://host/r.json"), "ftp://"),
        (("--result-options-file", "/nowhere.json"), "/nowhere.json"),
    ],
)
def test_where_a_result_goes_is_looked_at_before_the_job(
    start, session, table, capsys, more, named
):
    assert start(answer, "--table", table.uri, *more) == 2
    assert named in capsys.readouterr().err
    assert session.stopped == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConflictError("somebody was\nfirst; try again"), 3),
        (OutcomeUnknownError("look first"), 4),
        (InvalidInputError("grace must not be negative"), 2),
    ],
)
def test_a_job_that_fails(start, session, table, tmp_path, capsys, error, code):
    file = tmp_path / "result.json"
    assert start(fail_with(error), "--table", table.uri, "--result", file) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {type(error).__name__}: {' '.join(str(error).split())}\n"
    assert not file.exists()
    assert session.stopped == 1


def test_spark_fails(start, session, table, capsys):
    from py4j.protocol import Py4JNetworkError

    assert start(fail_with(Py4JNetworkError("Answer is empty")), "--table", table.uri) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert "Answer is empty" in captured.err
    assert captured.err.count("\n") == 1


def test_a_fault_is_not_hidden(start, session, table):
    with pytest.raises(KeyError):
        start(fail_with(KeyError("oops")), "--table", table.uri)
    assert session.stopped == 1


def test_no_table_is_told_before_spark_starts(start, session, tmp_path, capsys):
    assert start(answer, "--table", tmp_path / "none.lance") == 2
    assert "none.lance" in capsys.readouterr().err
    assert session.names == []


@pytest.mark.parametrize(
    "arguments", [[], ["--table"], ["--table", "t", "--parallelism", "0"], ["--table", "t", "x"]]
)
def test_a_wrong_command_line(start, session, arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        start(answer, *arguments)
    assert caught.value.code == 2
    assert session.names == []


@pytest.mark.parametrize("content", [f"{SECRET} {{", f'["{SECRET}"]', f'{{"a": ["{SECRET}"]}}'])
def test_wrong_storage_options_are_not_repeated(start, session, table, tmp_path, capsys, content):
    file = tmp_path / "options.json"
    file.write_text(content)
    assert start(answer, "--table", table.uri, "--storage-options-file", file) == 2
    captured = capsys.readouterr()
    assert str(file) in captured.err
    assert SECRET not in captured.out + captured.err
    assert session.names == []


def test_storage_options_reach_the_table_alone(start, session, table, tmp_path, capsys):
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"aws_secret_access_key": SECRET}))
    seen = []

    def job(context):
        seen.append(context.table.location.storage_options)
        return answer(context)

    assert start(job, "--table", table.uri, "--storage-options-file", file) == 0
    assert seen == [{"aws_secret_access_key": SECRET}]
    captured = capsys.readouterr()
    assert SECRET not in f"{captured}{session.names}{session.runners}{os.environ}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_job(start, session, table, capsys, number):
    def job(context):
        signal.raise_signal(number)
        raise AssertionError("the job went on")

    assert start(job, "--table", table.uri) == 128 + number
    assert session.stopped == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert number.name in captured.err


def test_a_second_signal_does_not_stop_the_clean_up(start, session, table):
    def stop():
        signal.raise_signal(signal.SIGTERM)
        session.stopped += 1

    session.stop = stop

    def job(context):
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the job went on")

    assert start(job, "--table", table.uri) == 143
    assert session.stopped == 1
