"""Error reporting of the command line: one line on stderr, and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum

import typer
from typer.core import TyperGroup

from memwal.cli.output import plain
from memwal.errors import (
    BackPressureError,
    ConflictError,
    InvalidInputError,
    MemWalError,
    MissingExtraError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TableSetupError,
    UnsupportedStoreError,
)
from memwal.util.safe_json import is_unicode


class ExitCode(IntEnum):
    """Exit codes of the program."""

    DONE = 0
    FAILED = 1
    INPUT = 2
    CONFLICT = 3
    UNKNOWN = 4


EXIT_CODES_HELP = """\
Exit codes:

\b
  0  done; work that a job had to leave out is a warning on stderr
  1  failed: credentials, a full or damaged store, a bug
  2  wrong input: the command line, a file, a table that cannot be used this
     way, or a part of memwal that is not installed; nothing was changed
  3  another process was first, or the store did not answer: try again
  4  the outcome is unknown: check whether it was done, then try again
"""

_ERRORS: dict[ExitCode, tuple[type[MemWalError], ...]] = {
    ExitCode.INPUT: (InvalidInputError, TableSetupError, UnsupportedStoreError, MissingExtraError),
    ExitCode.CONFLICT: (ConflictError, StoreUnavailableError, BackPressureError),
    ExitCode.UNKNOWN: (OutcomeUnknownError,),
}


def exit_code(error: MemWalError) -> ExitCode:
    """Return the exit code for an error."""
    return next((c for c, kinds in _ERRORS.items() if isinstance(error, kinds)), ExitCode.FAILED)


class ReportingGroup(TyperGroup):
    """Group of commands that prints an error in one line, and with ``--debug`` its traceback."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the command line, which must be Unicode."""
        for number, word in enumerate(args, start=1):
            if not is_unicode(word):
                raise typer.BadParameter(f"word {number} of the command line is no UTF-8")
        if "--" in args and _has_storage_option(args[args.index("--") :]):
            # An error message shows surplus arguments, and this one may be a secret.
            raise typer.BadParameter("storage options come in front of --, where they are read")
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        """Run the command, and convert an error to an exit code."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.TyperException, BrokenPipeError):
            raise
        except MemWalError as error:
            raise _report(ctx, error, str(error), exit_code(error)) from error
        except Exception as error:
            # The last resort: no caller could report the error in one line.
            reason = f"{type(error).__name__}: {error}; memwal --debug shows where"
            raise _report(ctx, error, reason, ExitCode.FAILED) from error


def _has_storage_option(words: Sequence[str]) -> bool:
    return any(word.startswith(("-o", "--storage-option")) for word in words)


def _report(ctx: typer.Context, error: Exception, reason: str, code: ExitCode) -> typer.Exit:
    if ctx.params.get("debug"):
        traceback.print_exception(error)
    sys.stderr.write(f"error: {plain(' '.join(reason.split()))}\n")
    return typer.Exit(code)
