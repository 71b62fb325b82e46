"""Pauses of a writer that claims its regions back from other producers.

Two producers that write to one region fence each other. If each claimed it back at once, a claim
could be fenced before it wrote a row. A producer therefore leaves the region to the other one for
some times as long as its own claim took, by chance more or less, and for longer while takeovers
follow each other. So most of the time is left to writes, and neither waits for long.

A claim starts the age of the rows that it replays anew. So that they are flushed all the same, a
producer flushes the rows that it replays when it has not done so for the maximum age of a MemTable.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from memwal.errors import RegionFencedError

if TYPE_CHECKING:
    from memwal.writer.region_writer.writer import RegionWriter

_MIN_SECONDS: Final = 0.02
_MAX_SECONDS: Final = 2.0
# A pause is this many claims long at most.
_MAX_CLAIMS: Final = 8
# A region that was held for this many pauses is not contended any more.
_CALM: Final = 8


def is_not_logged(error: BaseException | None) -> bool:
    """Return whether a write failed because of another claim, and is certainly not in the log."""
    return isinstance(error, RegionFencedError) and error.not_logged


@dataclass(slots=True)
class _Contention:
    """Takeovers of a region by this writer and others."""

    epoch: int = 0  # of this writer's last claim that was fenced
    times: int = 0  # claims that were fenced soon
    seconds: float = 0.0  # first pause: duration of a claim
    at: float = 0.0  # end of the last pause
    flushed_at: float | None = None  # when a takeover was last followed by a flush


class Takeovers:
    """Contention for the regions of a writer. Safe to use from many threads."""

    def __init__(self, max_age: float) -> None:
        self._max_age = max_age
        self._lock = threading.Lock()
        self._regions: dict[UUID, _Contention] = {}

    def pause(self, region_id: UUID, deadline: float, fenced: RegionWriter | None = None) -> None:
        """Wait before a region is claimed back. Threads of one fence wait at the same time."""
        now = time.monotonic()
        with self._lock:
            region = self._regions.setdefault(region_id, _Contention(at=now, flushed_at=now))
            if fenced is not None and fenced.epoch != region.epoch:
                region.epoch = fenced.epoch
                region.seconds = max(fenced.claimed_seconds, _MIN_SECONDS)
                region.times = 0 if now - region.at > _CALM * region.seconds else region.times + 1
            longest = min(region.seconds or _MIN_SECONDS, _MAX_SECONDS)
            longest = min(longest * min(2**region.times, _MAX_CLAIMS), _MAX_SECONDS)
            seconds = min(random.uniform(0.5, 1.0) * longest, max(deadline - now, 0.0))  # noqa: S311
            region.at = now + seconds
        time.sleep(seconds)

    def is_flush_due(self, region_id: UUID) -> bool:
        """Return whether the rows that a claim replayed are to be flushed now."""
        now = time.monotonic()
        with self._lock:
            region = self._regions.get(region_id)
            if region is None or region.flushed_at is None:
                return False
            due = now - region.flushed_at >= self._max_age
            if due:
                region.flushed_at = now
            return due
