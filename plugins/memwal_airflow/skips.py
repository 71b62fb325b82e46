"""The exception of skipped tasks, with a reason code."""

from __future__ import annotations

from enum import StrEnum

from airflow.sdk.exceptions import AirflowSkipException


class SkipReason(StrEnum):
    """Reason for skipping a task. The first five are those of :class:`memwal.fleet.SkipReason`."""

    NOT_DUE = "not due"
    QUIET = "quiet hours"
    RUNNING = "running"
    BACKOFF = "backoff"
    DRY_RUN = "dry run"
    NOT_REQUESTED = "not requested"
    """The parameters of the run name other jobs or other regions."""

    NOTHING_TO_DO = "nothing to do"
    NO_SUITE = "no suite"


class TaskSkipped(AirflowSkipException):
    """A task of this package was skipped: ``message`` goes to its log, ``reason`` is the code."""

    def __init__(self, message: str, *, reason: SkipReason) -> None:
        super().__init__(message)
        self.reason = reason
