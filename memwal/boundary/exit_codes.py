"""Exit codes of the command line and of the Spark applications."""

from __future__ import annotations

from enum import IntEnum

from memwal.errors import (
    BackPressureError,
    ConflictError,
    InvalidInputError,
    MemWalError,
    MissingExtraError,
    NewerFormatError,
    NotRegisteredError,
    OutcomeUnknownError,
    ReadTimeoutError,
    SparkUnavailableError,
    StoreUnavailableError,
    TableSetupError,
    UnsupportedStoreError,
)


class ExitCode(IntEnum):
    """Exit code of a program."""

    DONE = 0
    FAILED = 1
    INPUT = 2
    CONFLICT = 3
    UNKNOWN = 4


EXIT_CODES_HELP = """\
  0  done; work that a job had to leave out is a warning on stderr
  1  failed: credentials, a full or damaged store, a bug
  2  wrong input: the command line, a file, a table that cannot be used this
     way, or a part of memwal that is not installed; nothing was changed
  3  another process was first, or a store or server did not answer: try again
  4  the outcome is unknown: check whether it was done, then try again
"""

_ERRORS: dict[ExitCode, tuple[type[MemWalError], ...]] = {
    ExitCode.INPUT: (
        InvalidInputError,
        TableSetupError,
        UnsupportedStoreError,
        MissingExtraError,
        NewerFormatError,
        NotRegisteredError,
    ),
    ExitCode.CONFLICT: (
        ConflictError,
        StoreUnavailableError,
        SparkUnavailableError,
        BackPressureError,
        ReadTimeoutError,
    ),
    ExitCode.UNKNOWN: (OutcomeUnknownError,),
}


def exit_code(error: MemWalError) -> ExitCode:
    """Return the exit code for an error."""
    return next((c for c, kinds in _ERRORS.items() if isinstance(error, kinds)), ExitCode.FAILED)
