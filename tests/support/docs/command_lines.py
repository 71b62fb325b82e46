"""The calls of ``memwal`` in shell code that is not run, and whether they could be."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer
from typer.main import get_command

from memwal.cli.commands.app import app

_COMMAND: Any = get_command(app)


def commands(group: Any = _COMMAND, above: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """The words of each command, and the command."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*above, name))
        else:
            yield (*above, name), command


def calls(code: str) -> Iterator[list[str]]:
    """Words after ``memwal`` of each call, up to whatever ends the command."""
    code = re.sub(r"\\\n", " ", code)
    for line in code.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>()")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            continue  # a string over several lines: no call of ours is written so
        for position, word in enumerate(words):
            starts = position == 0 or re.fullmatch(
                r"[;|&(]+|\$\(|do|then|!|if|until|while|sudo|--", words[position - 1]
            )
            if word == "memwal" and starts:
                rest = words[position + 1 :]
                end = next((i for i, w in enumerate(rest) if re.fullmatch(r"[;|&<>()]+", w)), None)
                yield rest[:end]


def fault(words: list[str]) -> str | None:
    """What ``memwal`` would say of a call that is written wrong; None when it is right."""
    command, context = _COMMAND, _COMMAND.make_context("memwal", [], resilient_parsing=True)
    rest = list(words)
    while (subcommands := getattr(command, "commands", None)) is not None:
        while rest and rest[0].startswith("-"):
            if rest.pop(0) in ("--help", "-h", "--version"):
                return None
        if not rest:
            return None
        name = rest.pop(0)
        if name not in subcommands:
            return f"there is no command {name!r} in memwal {' '.join(words)}"
        command = subcommands[name]
        context = type(context)(command, info_name=name, parent=context)
    try:
        command.make_context(words[0], rest, resilient_parsing=True)
    except typer.TyperException as error:
        return f"memwal {' '.join(words)}: {error}"
    return None
