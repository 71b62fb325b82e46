"""Error reporting of the command line: one line on stderr, and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

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
    """What a shell script is told."""

    DONE = 0
    FAILED = 1
    INPUT = 2
    CONFLICT = 3
    UNKNOWN = 4


EXIT_CODES_HELP = """\
Exit codes:

\b
  0  done; what a job had to leave out is a warning on stderr
  1  failed: credentials, a full or damaged store, a fault
  2  wrong input: the command line, a file, a table that cannot be used this
     way, or a part of memwal that is not installed; nothing was changed
  3  somebody else was first, or the store did not answer: try again
  4  it is not known whether it happened: look, then try again
"""

_CODES: tuple[tuple[type[MemWalError], ExitCode], ...] = (
    (InvalidInputError, ExitCode.INPUT),
    (TableSetupError, ExitCode.INPUT),
    (UnsupportedStoreError, ExitCode.INPUT),
    (MissingExtraError, ExitCode.INPUT),
    (ConflictError, ExitCode.CONFLICT),
    (StoreUnavailableError, ExitCode.CONFLICT),
    (BackPressureError, ExitCode.CONFLICT),
    (OutcomeUnknownError, ExitCode.UNKNOWN),
)


def exit_code(error: MemWalError) -> ExitCode:
    """What the process ends with after this error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


class ReportingGroup(TyperGroup):
    """A group of commands whose errors are told in one line, and with ``--debug`` in full."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Read the command line, which has to be text."""
        for number, word in enumerate(args, start=1):
            if not is_unicode(word):
                raise typer.BadParameter(f"word {number} of the command line is no UTF-8")
        if "--" in args and _has_storage_option(args[args.index("--") :]):
            # Words that are too many are shown, and this one may be a secret.
            raise typer.BadParameter("storage options come in front of --, where they are read")
        found: list[str] = super().parse_args(ctx, args)
        return found

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.TyperException, BrokenPipeError):
            raise
        except MemWalError as error:
            raise _told(ctx, error, str(error), exit_code(error)) from error
        except Exception as error:
            # The last resort: nobody above could tell of it in one line.
            reason = f"{type(error).__name__}: {error}; memwal --debug tells where"
            raise _told(ctx, error, reason, ExitCode.FAILED) from error


def _has_storage_option(words: Sequence[str]) -> bool:
    return any(word.startswith(("-o", "--storage-option")) for word in words)


def _told(ctx: typer.Context, error: Exception, reason: str, code: ExitCode) -> typer.Exit:
    if ctx.params.get("debug"):
        traceback.print_exception(error)
    sys.stderr.write(f"error: {plain(' '.join(reason.split()))}\n")
    return typer.Exit(code)
