"""Minimum ages that garbage collection applies: grace, retention, orphan age, index age."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from memwal.errors import InvalidInputError

DEFAULT_GRACE = timedelta(minutes=10)
DEFAULT_RETENTION = timedelta(hours=1)
DEFAULT_ORPHAN_AGE = timedelta(days=1)
# As long as Lance itself leaves index files alone that no version names.
DEFAULT_INDEX_AGE = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """The ages that one run goes by.

    Attributes
    ----------
    now : datetime
        When the job began, in UTC: every age is counted up to then.
    grace, retention, orphan_age, index_age : timedelta
        As of :func:`memwal.jobs.gc.collect_garbage`.

    Raises
    ------
    InvalidInputError
        One of them is negative.
    """

    now: datetime
    grace: timedelta = DEFAULT_GRACE
    retention: timedelta = DEFAULT_RETENTION
    orphan_age: timedelta = DEFAULT_ORPHAN_AGE
    index_age: timedelta = DEFAULT_INDEX_AGE

    def __post_init__(self) -> None:
        if min(self.grace, self.retention, self.orphan_age, self.index_age) < timedelta(0):
            raise InvalidInputError(
                "grace, retention, orphan_age and index_age must not be negative"
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
        return max(self.orphan_age, self.grace)


def moment(time: datetime) -> str:
    """A time as decisions tell it: in UTC, to the second."""
    return time.isoformat(timespec="seconds")
