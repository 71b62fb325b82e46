"""Output of commands: JSON or text on stdout, warnings on stderr, an error in one line.

With ``--json``, stdout has an error as a document, where a program expects the result.
"""

from __future__ import annotations

import json
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from uuid import UUID

import typer
from typer.core import TyperGroup

from memwal.boundary.exit_codes import ExitCode, exit_code
from memwal.boundary.text import timestamp
from memwal.errors import MemWalError
from memwal.jobs.job import JobResult, sentence
from memwal.util.safe_json import is_unicode

if TYPE_CHECKING:
    from memwal.fleet import Skipped

_PIPE_WIDTH = 160
_MAX_CELL = 40
_LONG_WORD = 12
_SHORT_ID = 8
_EMPTY = {"", "-"}
_REGION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Control characters except tabs and new lines, direction marks, and lone surrogates.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a command: ``value`` with ``--json``, else a line or the output of a function."""

    value: object
    text: str | Callable[[], None]
    warnings: Sequence[str] = ()
    failed: bool = False  # the command ends with an exit code for a failure

    def print(self, *, as_json: bool) -> None:
        """Print it on stdout and its warnings on stderr; raise ``typer.Exit`` if it failed."""
        if as_json:
            print_json(self.value)
        elif isinstance(self.text, str):
            print_line(self.text)
        else:
            self.text()
        for warning in self.warnings:
            warn(warning)
        if self.failed:
            raise typer.Exit(ExitCode.FAILED)


@runtime_checkable
class _Record(Protocol):
    def to_dict(self) -> object: ...


def plain(text: str) -> str:
    """Escape the characters of a text that control a terminal.

    Rows, owners and addresses can contain anything, such as a sequence that clears the screen, or
    that reverses the direction of writing.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def print_json(value: object) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(_json_value(value)) + "\n")


def print_line(text: str) -> None:
    """Print a line of text."""
    sys.stdout.write(plain(text) + "\n")


def warn(text: str) -> None:
    """Print a warning on stderr."""
    sys.stderr.write(f"warning: {plain(text)}\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. Numbers are aligned to the right; text that is too wide is folded.

    Where the terminal is too narrow, ids of regions are shortened to beginnings that are unique in
    the table, then lines and columns without a value are left out, and then each row is printed as
    names and values, one pair a line.
    """
    from rich.console import Console
    from rich.table import Table

    values = [list(row) for row in rows]
    lines = [list(columns), *([_cell(value) for value in row] for row in values)]
    # An empty cell says nothing about its column.
    numeric = [
        all(isinstance(row[n] or 0, int | float) for row in values) for n in range(len(columns))
    ]
    # A pipe has no width; rich would take 80.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
    room = console.width - 1 - 3 * len(columns)
    if sum(_widths(lines)) > room:
        _shorten_regions(lines)
    is_narrow = bool(values) and sum(_widths(lines, folded=True)) > room
    if is_narrow:
        shown = [n for n, cells in enumerate(zip(*lines, strict=True)) if {*cells[1:]} - _EMPTY]
        lines, numeric = [[line[n] for n in shown] for line in lines], [numeric[n] for n in shown]
        room = console.width - len(shown)
        if sum(_widths(lines, folded=True)) > room:
            for line in lines[1:]:
                print_fields(zip(lines[0], line, strict=True))
                print_line("")
            return
    table = Table(box=None, padding=(0, 1, 0, 0)) if is_narrow else Table()
    for name, is_numeric, width in zip(lines[0], numeric, _fitted(lines, room), strict=True):
        table.add_column(
            name, justify="right" if is_numeric else "left", width=width, overflow="fold"
        )
    for line in lines[1:]:
        table.add_row(*line)
    console.print(table)


def _widths(lines: Sequence[Sequence[str]], *, folded: bool = False) -> list[int]:
    """Return the width of each column, folded between words and within long words."""
    from rich.cells import cell_len

    def width(cell: str) -> int:
        if not folded:
            return cell_len(cell)
        return min(max(map(cell_len, cell.split()), default=0), _LONG_WORD)

    return [max(map(width, column)) for column in zip(*lines, strict=True)]


def _fitted(lines: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return widths of columns that fit, of which the widest are folded."""
    widths, least = [min(width, room) for width in _widths(lines)], _widths(lines, folded=True)
    while sum(widths) > room and (wide := [n for n, low in enumerate(least) if widths[n] > low]):
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _shorten_regions(lines: Sequence[list[str]]) -> None:
    if "region" not in lines[0]:
        return
    n = lines[0].index("region")
    ids = {line[n] for line in lines if _REGION_ID.fullmatch(line[n])}
    lengths = range(_SHORT_ID, len(str(UUID(int=0))) + 1)
    length = next(count for count in lengths if len({id[:count] for id in ids}) == len(ids))
    for line in lines:
        if line[n] in ids:
            line[n] = line[n][:length]


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Callable[[], None]:
    """Return a function that prints a table, for the text of an :class:`Output`."""
    return partial(print_table, columns, rows)


def records_output(
    records: Sequence[Any],
    columns: Sequence[str],
    attributes: Sequence[str | Callable[[Any], object]],
) -> Output:
    """Return the output for records, whose text is the table of :func:`print_records`."""
    return Output(records, partial(print_records, records, columns, attributes))


def print_records(
    records: Iterable[Any],
    columns: Sequence[str],
    attributes: Sequence[str | Callable[[Any], object]],
) -> None:
    """Print records as a table of attributes and of functions of a record."""
    getters = [attrgetter(item) if isinstance(item, str) else item for item in attributes]
    print_table(columns, [[_short(get(record)) for get in getters] for record in records])


def _short(value: object) -> object:
    """Shorten a time, and an enum member to its value."""
    if isinstance(value, Enum):
        return value.value
    return timestamp(value) if isinstance(value, datetime) else value


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line."""
    pairs = list(fields)
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print_line(f"{name:<{width}}  {_cell(value)}")


def job_output(outcome: JobResult | Skipped, note: str = "") -> Output:
    """Return the output for the result of a job, or for the reason why it was skipped."""
    if not isinstance(outcome, JobResult):
        return Output(outcome, str(outcome))
    text = sentence(outcome) + (f"\n{note}" if note else "")
    return Output(outcome, text, warnings=outcome.warnings)


def truncated(value: object) -> object:
    """Return a value, or the beginning of its text if that would make a wide cell."""
    text = str(value)
    return value if len(text) <= _MAX_CELL else f"{text[: _MAX_CELL - 3]}..."


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return str(value)
    return plain(str(_json_value(value)))


def _json_value(value: object) -> object:
    match value:
        case _Record():
            return _json_value(value.to_dict())
        case Mapping():
            return {str(key): _json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [_json_value(item) for item in value]
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


_AS_JSON = "memwal.json"


class ReportingGroup(TyperGroup):
    """Group of commands that prints an error in one line, and with ``--debug`` its traceback."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the command line, which must be Unicode."""
        for number, word in enumerate(args, start=1):
            if not is_unicode(word):
                raise typer.BadParameter(f"word {number} of the command line is no UTF-8")
        surplus = args[args.index("--") :] if "--" in args else []
        if any(word.startswith(("-o", "--storage-option")) for word in surplus):
            # An error message shows surplus arguments, and this one may be a secret.
            raise typer.BadParameter("storage options come in front of --, where they are read")
        ctx.meta[_AS_JSON] = "--json" in args[: len(args) - len(surplus)]
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        """Run the command, and convert an error to an exit code."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except typer.TyperException as error:
            _print_as_json(ctx, error, error.format_message(), error.exit_code)
            raise
        except MemWalError as error:
            raise _report(ctx, error, str(error), exit_code(error)) from error
        except Exception as error:
            # The last resort: no caller could report the error in one line.
            reason = f"{type(error).__name__}: {error}; memwal --debug shows where"
            raise _report(ctx, error, reason, ExitCode.FAILED) from error


def _print_as_json(ctx: typer.Context, error: Exception, reason: str, code: int) -> None:
    if ctx.meta.get(_AS_JSON):
        description = {"type": type(error).__name__, "message": reason, "exit_code": int(code)}
        print_json({"error": description})


def _report(ctx: typer.Context, error: Exception, reason: str, code: ExitCode) -> typer.Exit:
    _print_as_json(ctx, error, reason, code)
    if ctx.params.get("debug"):
        traceback.print_exception(error)
    sys.stderr.write(f"error: {plain(' '.join(reason.split()))}\n")
    return typer.Exit(code)
