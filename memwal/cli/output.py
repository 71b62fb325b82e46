"""Output of commands: JSON or text on stdout, warnings and progress on stderr."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from memwal.jobs.job import TaskRunner, run_in_process

if TYPE_CHECKING:
    from rich.progress import Progress

    from memwal.jobs.job import JobResult

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_PIPE_WIDTH = 160
# Control characters but for tabs and new lines, signs of direction, and halves of characters.
_COMMANDS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    """A text that does nothing to a terminal but to stand there; what would is written out.

    Rows, owners and addresses are whatever somebody wrote, such as a sequence that clears the
    screen, or turns the direction of writing.
    """
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(_plain(value)) + "\n")


def print_line(text: str) -> None:
    """Print a line of text."""
    sys.stdout.write(plain(text) + "\n")


def warn(text: str) -> None:
    """Tell something on stderr."""
    sys.stderr.write(f"warning: {plain(text)}\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table. Numbers stand to the right; what does not fit a column is folded."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    cells = [list(row) for row in rows]
    for position, name in enumerate(columns):
        # An empty cell says nothing about its column.
        numeric = all(isinstance(row[position] or 0, int | float) for row in cells)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(_cell(value) for value in row))
    # A pipe has no width; rich would take 80.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False).print(table)


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair a line."""
    pairs = list(fields)
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print_line(f"{name:<{width}}  {_cell(value)}")


def print_result(result: JobResult, *, as_json: bool, note: str = "") -> None:
    """Print what a job did, and warn of what it left out."""
    if as_json:
        print_json(result.to_dict())
    else:
        figures = ", ".join(
            size(number) if name == "bytes" else f"{number} {name.replace('_', ' ')}"
            for name, number in result.figures.items()
        )
        print_line(
            f"{result.job}: {figures or 'nothing to do'}; {_count(result.commits, 'commit')} in "
            f"{result.seconds:.1f} s; the table is at version {result.version}"
        )
        if note:
            print_line(note)
    for problem in result.problems:
        warn(problem)


def size(number: int) -> str:
    """A number of bytes, short."""
    if number < 1024:
        return f"{number} B"
    power = min((number.bit_length() - 1) // 10, len(_UNITS))
    return f"{number / 1024**power:.1f} {_UNITS[power - 1]}"


def age(seconds: float | None) -> str:
    """A time span, short."""
    if seconds is None:
        return "-"
    for limit, length, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain(str(_plain(value)))


def _plain(value: Any) -> Any:
    """The value in types that JSON has."""
    match value:
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float() if not math.isfinite(value):
            return None
        case bytes():
            return value.hex()
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID() | Decimal():
            return str(value)
        case _:
            return value


Show = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


@contextmanager
def progress(doing: str) -> Iterator[TaskRunner]:
    """Show a bar on stderr that counts tasks, as long as stderr is a terminal.

    Parameters
    ----------
    doing : str
        What the bar is called.

    Yields
    ------
    callable
        Runs tasks one after another, and moves the bar.
    """
    with _bars() as bars:
        bar = bars.add_task(doing, total=None)

        def run(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
            bars.reset(bar, total=len(tasks))

            def step(task: Any) -> Any:
                result = function(task)
                bars.advance(bar)
                return result

            return run_in_process(tasks, step)

        yield run


@contextmanager
def counter(doing: str) -> Iterator[Show]:
    """Show a bar on stderr that is told how far the job is, as long as stderr is a terminal.

    Yields
    ------
    callable
        Moves the bar.
    """
    with _bars() as bars:
        bar = bars.add_task(doing, total=None)

        def show(doing: str, done: int, total: int) -> None:
            bars.update(bar, description=doing, completed=done, total=total)

        yield show


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Elapsed(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
