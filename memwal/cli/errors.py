"""Error reporting of the command line: one line on stderr, and an exit code.

With ``--json``, stdout has the error as a document, where a program expects the result.
"""

from __future__ import annotations

import sys
import traceback

import typer
from typer.core import TyperGroup

from memwal.boundary.exit_codes import ExitCode, exit_code
from memwal.cli.output import plain, print_json
from memwal.errors import MemWalError
from memwal.util.safe_json import is_unicode

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
