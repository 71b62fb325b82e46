"""Exit codes, and one line on stderr."""

import json
from pathlib import Path

import lance
import pytest
from support.data.tables import rows

import memwal
from memwal import errors
from memwal.boundary.exit_codes import ExitCode, exit_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidInputError, ExitCode.INPUT),
        (errors.TableSetupError, ExitCode.INPUT),
        (errors.UnsupportedStoreError, ExitCode.INPUT),
        (errors.ConflictError, ExitCode.CONFLICT),
        (errors.StoreUnavailableError, ExitCode.CONFLICT),
        (errors.BackPressureError, ExitCode.CONFLICT),
        (errors.OutcomeUnknownError, ExitCode.UNKNOWN),
        (errors.CorruptDataError, ExitCode.FAILED),
        (errors.StoreAccessError, ExitCode.FAILED),
        (errors.StoreFullError, ExitCode.FAILED),
        (errors.MemWalError, ExitCode.FAILED),
    ],
)
def test_exit_codes(error, code):
    assert exit_code(error("x")) == code


def fail_with(monkeypatch, error):
    def status(self, **options):
        raise error

    monkeypatch.setattr(memwal.Table, "status", status)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("merge", "/nowhere/t.lance"), "TableSetupError"),
        (("status", "/nowhere/t.lance"), "TableSetupError"),
        (("gc", "/nowhere/t.lance", "--nonsense"), "NoSuchOption"),
    ],
)
def test_an_error_is_json_where_the_result_would_be(cli, words, kind):
    answer = cli(*words, "--json")
    assert answer.code == 2
    error = json.loads(answer.stdout)["error"]
    assert (error["type"], error["exit_code"]) == (kind, 2)
    assert answer.stderr


def test_an_error_is_one_line_and_a_code(cli, table, monkeypatch):
    fail_with(monkeypatch, errors.ConflictError("two\nlines"))
    answer = cli("status", table.uri)
    assert answer.code == 3
    assert answer.stdout == ""
    assert answer.stderr == "error: two lines\n"


def test_a_fault_is_one_line_too(cli, table, monkeypatch):
    fail_with(monkeypatch, KeyError("oops"))
    answer = cli("status", table.uri)
    assert answer.code == 1
    assert answer.stderr.startswith("error: KeyError: 'oops'")
    assert "--debug" in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("error", [errors.ConflictError("first"), KeyError("oops")])
def test_debug_tells_where(cli, table, monkeypatch, error):
    fail_with(monkeypatch, error)
    answer = cli("--debug", "status", table.uri)
    assert answer.code == cli("status", table.uri).code
    assert "Traceback" in answer.stderr
    assert Path(__file__).name in answer.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["status"],
        ["status", "table", "--nonsense"],
        ["merge", "table", "--region", "not-a-uuid"],
        ["merge", "table", "--commit-bytes", "0"],
        ["gc", "table", "--grace-seconds", "-1"],
    ],
)
def test_a_wrong_command_line(cli, arguments):
    answer = cli(*arguments)
    assert answer.code == 2
    assert answer.stdout == ""
    assert "Error: " in answer.stderr


def test_a_table_without_a_log_gets_one_by_a_command(cli, tmp_path):
    lance.write_dataset(rows({1: 1}), str(tmp_path / "plain"))
    answer = cli("merge", tmp_path / "plain")
    assert answer.code == ExitCode.INPUT
    assert "memwal enable" in answer.stderr
    assert "memwal enable" in cli("status", tmp_path / "plain").stdout


@pytest.mark.parametrize("command", ["status", "merge", "verify"])
def test_an_unknown_name_may_be_of_the_catalog(cli, catalog, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    answer = cli(command, "flights")
    assert answer.code == 2
    assert "memwal catalog list" in answer.stderr
    (tmp_path / "flights").mkdir()
    assert "memwal catalog list" not in cli(command, "flights").stderr
