"""Minimum ages that garbage collection applies, counted from the moment when the job began."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from memwal.jobs.options import GcOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """Ages of a :class:`~memwal.jobs.options.GcOptions`, and the moment they are counted up to."""

    now: datetime  # When the job began, in UTC
    grace: timedelta
    retention: timedelta
    orphan_grace: timedelta
    index_grace: timedelta

    @classmethod
    def of(cls, options: GcOptions, *, now: datetime) -> Self:
        """Return the ages of a job that began at ``now``."""
        return cls(
            now=now,
            grace=timedelta(seconds=options.grace_seconds),
            retention=timedelta(seconds=options.retention_seconds),
            orphan_grace=timedelta(seconds=options.orphan_grace_seconds),
            index_grace=timedelta(seconds=options.index_grace_seconds),
        )

    @property
    def expired(self) -> datetime:
        """What happened up to then is a grace period ago."""
        return self.now - self.grace

    @property
    def keep(self) -> timedelta:
        """How long a version of the base table keeps what it needs after it was replaced."""
        return max(self.grace, self.retention)

    @property
    def guard(self) -> timedelta:
        """Age of what no manifest names before it is taken for the rest of something that died."""
        return max(self.orphan_grace, self.grace)


def moment(time: datetime) -> str:
    """A time as decisions tell it: in UTC, to the second."""
    return time.isoformat(timespec="seconds")
