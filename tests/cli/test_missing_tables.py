"""A table that does not exist: one exit code and one text, whichever command asks for it."""

from pathlib import Path
from typing import Any

import pytest
from support.docs.command_lines import commands

from memwal.boundary.exit_codes import ExitCode
from memwal.catalog import Catalog

from .conftest import Cli

NEED_NONE = {"create", "doctor", "catalog register"}
"""Commands that take a table which does not exist yet."""
VALUES = {
    "REGION": "8bbfeae7-9aba-5077-b693-c16562a7058b",
    "SPEC": "unsharded",
    "VERSION": "1",
    "JOB": "merge",
}
"""Metavar to a valid value; others take any word."""
MORE = {"catalog update": ["--owner", "me"], "quality set": ["--mode", "warn"]}
"""What a command needs beside its required parameters."""


def required(command: Any) -> list[tuple[str | None, str]]:
    """Return the required parameters of a command: flag (None: an argument), and metavar."""
    return [
        (
            None if one.param_type_name == "argument" else one.opts[0],
            one.type_descriptor.parameter_info.metavar,
        )
        for one in command.params
        if one.required or (one.name in ("table", "name") and one.param_type_name == "argument")
    ]


COMMANDS = {" ".join(path): required(command) for path, command in commands()}


def of(metavar: str) -> list[str]:
    return [
        path
        for path, required in COMMANDS.items()
        if (None, metavar) in required and path not in NEED_NONE
    ]


def ask(cli: Cli, path: str, metavar: str, table: str) -> str:
    """Run a command with a table that does not exist; return its text."""
    words = []
    for flag, kind in COMMANDS[path]:
        value = table if (flag, kind) == (None, metavar) else VALUES.get(kind, "x")
        words += [value] if flag is None else [flag, value]
    answer = cli(*path.split(), *words, *MORE.get(path, []))
    assert (answer.code, answer.stdout) == (ExitCode.INPUT, "")
    return answer.stderr


@pytest.mark.parametrize("path", of("TABLE"))
def test_no_table_at_an_address(cli: Cli, catalog: Catalog, tmp_path: Path, path: str) -> None:
    table = str(tmp_path / "nothing")
    assert ask(cli, path, "TABLE", table) == ask(cli, "status", "TABLE", table)


@pytest.mark.parametrize("path", of("NAME"))
def test_no_table_of_a_name(cli: Cli, catalog: Catalog, path: str) -> None:
    assert ask(cli, path, "NAME", "nothing") == ask(cli, "catalog show", "NAME", "nothing")


def test_there_are_such_commands() -> None:
    assert len(of("TABLE")) > 20
    assert len(of("NAME")) > 10
