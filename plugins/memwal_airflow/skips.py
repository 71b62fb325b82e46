"""The exceptions of tasks that skip something."""

from __future__ import annotations

from enum import StrEnum

from memwal_airflow.version_compat import AirflowFailException, AirflowSkipException


class TaskSkipReason(StrEnum):
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

    def __init__(self, message: str, *, reason: TaskSkipReason) -> None:
        super().__init__(message)
        self.reason = reason


class RegionsSkipped(AirflowFailException):
    """A merge merged nothing, since all regions that were due cannot be read.

    It fails without retries: the next try would leave these regions out, and succeed. The catalog
    has the regions and their next tries, so that it is not recorded as a failure of the merge,
    which would delay the merge of the other regions.
    """
