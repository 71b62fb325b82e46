"""The command line, as Markdown: every command with its arguments and options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from typer.main import get_command

from memwal.boundary.exit_codes import EXIT_CODES_HELP
from memwal.cli.commands.app import app


@cache
def markdown() -> str:
    """A section for each command."""
    command: Any = get_command(app)
    return "\n".join(_sections(command.make_context("memwal", [], resilient_parsing=True), 2))


def exit_codes() -> str:
    """A table of the exit codes."""
    codes = re.findall(r"^  (\d)  (.+(?:\n     .+)*)", EXIT_CODES_HELP, flags=re.M)
    rows = [f"| {code} | {' '.join(text.split())} |" for code, text in codes]
    return "\n".join(["| code | meaning |", "|---|---|", *rows])


def _sections(context: Any, level: int) -> Iterator[str]:
    command = context.command
    help_text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    yield f"{'#' * level} {context.command_path}\n"
    yield f"{_escaped(help_text)}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```\n"
    rows = [record for one in command.params if (record := one.get_help_record(context))]
    if rows:
        yield "| argument or option | meaning |\n|---|---|"
        yield "\n".join(f"| `{_cell(name)}` | {_cell(_escaped(text))} |" for name, text in rows)
        yield ""
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _sections(
                type(context)(inner, info_name=name, parent=context), min(level + 1, 3)
            )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")
