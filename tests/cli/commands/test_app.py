"""The program as a whole: help, version, how fast it starts."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from support.docs.command_lines import commands
from support.processes import run_python
from typer.main import get_command

import memwal
import memwal.errors
from memwal.cli.commands.app import app

PRINTED_AS_THEY_ARE = {"metrics rules", "metrics dashboard", "quality propose"}


def test_help_lists_every_command_and_the_exit_codes(cli):
    answer = cli("--help")
    assert answer.code == 0
    for command in get_command(app).commands:
        assert f"\n  {command} " in answer.stdout
    for code in range(5):
        assert f"\n    {code}  " in answer.stdout


def test_every_command_takes_json_and_options_of_a_store_or_a_catalog():
    for path, command in commands():
        words = " ".join(path)
        options = {option for parameter in command.params for option in parameter.opts}
        assert ("--json" in options) != (words in PRINTED_AS_THEY_ARE), words
        if words.startswith(("catalog ", "fleet ", "jobs ", "quality ", "metrics serve")):
            assert "--catalog" in options, words
        elif not words.startswith(("metrics ", "rights")):
            assert {"--storage-options-file", "-o", "--storage-option"} <= options, words


def test_version(cli):
    answer = cli("--version")
    assert answer.code == 0
    assert answer.stdout.startswith(f"memwal {memwal.__version__} (Python ")
    for package in ("pylance", "pyarrow"):
        assert f"{package} {version(package)}" in answer.stdout


def test_help_needs_nothing_heavy():
    # The front door of the package is left out: what it imports is its own affair.
    script = f"""
import sys, types
memwal = types.ModuleType("memwal")
memwal.__path__ = [{str(Path(memwal.errors.__file__).parent)!r}]
sys.modules["memwal"] = memwal
import memwal.cli.commands.app
heavy = {{"lance", "pyarrow", "numpy", "pyspark", "rich", "obstore", "google.protobuf"}}
print(sorted(heavy & set(sys.modules)))
"""
    assert run_python(script).stdout.strip() == "[]"


def test_the_installed_program_ends_with_the_exit_code(tmp_path):
    program = Path(sys.executable).with_name("memwal")
    done = subprocess.run(
        [program, "status", tmp_path / "none.lance"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert str(tmp_path / "none.lance") in done.stderr
    assert done.stderr.count("\n") == 1
