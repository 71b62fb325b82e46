"""How fresh a read is: which unflushed rows it has to see, and how old its regions may be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from memwal.errors import InvalidInputError
from memwal.lsm.wal.position import WritePosition
from memwal.util.clock import Duration, duration

AT_LEAST_SECONDS: Final = 10.0
"""Default ``timeout`` of reads with ``at_least``, in seconds."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """Options of a read, as the caller gave them: see :meth:`memwal.Table.scan`."""

    max_staleness: Duration | None = None
    fresh: bool | None = None
    at_least: WritePosition | str | None = None
    timeout: Duration = AT_LEAST_SECONDS

    def resolve(self, *, fresh_by_default: bool, is_pinned: bool) -> ResolvedFreshness:
        """Check the options against each other, and fill in what the caller left open.

        ``is_pinned`` tells that the read is of a version. InvalidInputError is raised for a
        position that such a read, or a stale one, would have to see.
        """
        age = None if self.max_staleness is None else duration(self.max_staleness, "max_staleness")
        wanted = self.at_least
        if isinstance(wanted, str):
            wanted = WritePosition.parse(wanted)
        if wanted is not None and (age or is_pinned or self.fresh is False):
            raise InvalidInputError(
                "a read that sees a certain write is fresh; leave out at_least, or max_staleness, "
                "fresh=False and the version"
            )
        fresh = fresh_by_default and age is None if self.fresh is None else self.fresh
        timeout = duration(self.timeout, "timeout").total_seconds()
        return ResolvedFreshness(age, fresh or wanted is not None, wanted, timeout)


@dataclass(frozen=True, slots=True)
class ResolvedFreshness:
    """Freshness of one read."""

    max_staleness: timedelta | None
    fresh: bool
    at_least: WritePosition | None
    timeout: float  # seconds to wait for that write
