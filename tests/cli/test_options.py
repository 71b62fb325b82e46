"""Storage options reach the store and are shown nowhere."""

import json

import pytest

from memwal.cli.options import storage_options

SECRET = "tell-nobody-0123456789"


@pytest.fixture
def options_file(tmp_path):
    path = tmp_path / "options.json"
    path.write_text(json.dumps({"aws_secret_access_key": SECRET, "aws_region": "r"}))
    return path


def test_pairs_win_over_the_file(options_file):
    options = storage_options(options_file, ["aws_region=eu", "aws_endpoint=http://h/?a=b"])
    assert options == {
        "aws_secret_access_key": SECRET,
        "aws_region": "eu",
        "aws_endpoint": "http://h/?a=b",
    }


@pytest.mark.parametrize("pair", [SECRET, f"={SECRET}"])
def test_a_bad_pair_is_not_repeated(cli, table, pair):
    answer = cli("status", table.uri, "-o", "aws_region=r", "-o", pair)
    assert answer.code == 2
    assert "(-o)" in answer.stderr
    assert SECRET not in answer.stdout + answer.stderr


@pytest.mark.parametrize("words", [["-o", SECRET], [f"--storage-option=a={SECRET}"]])
def test_one_that_is_no_option_is_not_repeated(cli, table, words):
    answer = cli("status", "--", table.uri, *words)
    assert answer.code == 2
    assert SECRET not in answer.stdout + answer.stderr


@pytest.mark.parametrize(
    "content", [f"{SECRET} {{", f'["{SECRET}"]', f'{{"{SECRET}": null}}', f'{{"{SECRET}": "\xff"}}']
)
@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_a_bad_file_is_not_repeated(cli, table, tmp_path, content, debug):
    path = tmp_path / "options.json"
    path.write_text(content, encoding="latin-1")
    answer = cli(*debug, "status", table.uri, "--storage-options-file", path)
    assert answer.code == 2
    assert str(path) in answer.stderr
    assert SECRET not in answer.stdout + answer.stderr


def test_a_missing_file(cli, table, tmp_path):
    answer = cli("status", table.uri, "--storage-options-file", tmp_path / "none.json")
    assert answer.code == 2
    assert str(tmp_path / "none.json") in answer.stderr


@pytest.mark.parametrize(
    "command", ["status", "merge", "index build", "snapshot", "gc", "checkpoint"]
)
def test_options_reach_the_table_and_are_not_shown(cli, table, monkeypatch, command, options_file):
    import memwal.table

    seen = []
    real = memwal.table.open

    def open_table(uri, *, storage_options):
        seen.append(storage_options)
        return real(uri, storage_options=storage_options)

    monkeypatch.setattr(memwal.table, "open", open_table)
    answer = cli(
        "--debug", *command.split(), table.uri, "--storage-options-file", options_file, "--json"
    )
    assert answer.code == 0
    assert seen == [{"aws_secret_access_key": SECRET, "aws_region": "r"}]
    assert SECRET not in answer.stdout + answer.stderr
