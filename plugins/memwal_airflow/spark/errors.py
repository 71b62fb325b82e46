"""The error of a Spark application, as it said it itself."""

from __future__ import annotations

import re

from airflow.sdk.exceptions import AirflowException

from memwal import errors
from memwal.errors import MemWalError

_ERROR_LINE = re.compile(r"error: (?:(?P<type>\w+): )?(?P<text>.+)")


class SparkApplicationError(AirflowException):
    """A Spark application ended without a result, and not with an error of memwal."""


def error_of_line(line: str) -> Exception | None:
    """Return the error that an application reports in a line of its log, if it does.

    It has the type that it has in the application, so that wrong input is not tried again here
    either.
    """
    match = _ERROR_LINE.match(line.strip())
    if match is None:
        return None
    kind = getattr(errors, match["type"] or "", None)
    if isinstance(kind, type) and issubclass(kind, MemWalError):
        return kind(match["text"])
    return SparkApplicationError(match[0].removeprefix("error: "))
