"""How a command of ``memwal`` that ran in this process ended."""

import typer
from typer.testing import Result

from memwal.errors import MemWalError


def unexpected(result: Result) -> BaseException | None:
    """Return the error that ended a command and that nobody foresaw; None if there was none.

    What a command refuses is an error of ours or of the command line; anything else is a mistake,
    whatever the command printed of it.
    """
    error = result.exception
    if isinstance(error, SystemExit):
        error = error.__context__
    if isinstance(error, typer.Exit):
        error = error.__cause__
    expected = (MemWalError, typer.TyperException, typer.Abort)
    return None if isinstance(error, expected) else error
