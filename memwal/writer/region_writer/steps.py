"""Steps of a source, which a region applies once each (see docs/design/0008)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from memwal.format.wal_layout import AppliedSteps, newest_steps
from memwal.lsm.wal.appender import LogAppender
from memwal.lsm.wal.applied_steps import Step, read_steps, write_empty_book
from memwal.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class AppliedStep:
    """Result of a step, which is durable in all of these regions.

    Attributes
    ----------
    written : tuple of UUID
        Regions that wrote their rows now.
    skipped : tuple of UUID
        Regions that had this step or a later one of the source before, and wrote nothing.
    """

    written: tuple[UUID, ...] = ()
    skipped: tuple[UUID, ...] = ()


class StepSequencer:
    """Runs the steps of one region one after another, and remembers the newest of each source.

    ``log`` provides the tip of the log and the steps of foreign entries. ``verify`` raises
    RegionFencedError if another writer has claimed the region.
    """

    def __init__(
        self,
        store: ObjectStore,
        region_id: UUID,
        log: LogAppender,
        *,
        verify: Callable[[], None],
    ) -> None:
        self._store = store
        self._region_id = region_id
        self._log = log
        self._verify = verify
        self._lock = threading.Lock()
        self._applied: dict[str, int] | None = None

    def begin(self, step: Step) -> AppliedSteps | None:
        """Start a step unless the region has it, and return the steps that its entry records.

        Waits for the lock, which is then held until :meth:`end`. Returns None, without the lock, if
        the region has the step.
        """
        self._lock.acquire()
        try:
            applied = newest_steps(self._read_applied(), self._log.foreign_steps)
            if applied.get(step.source, -1) < step.version:
                return {**applied, step.source: step.version}
        except BaseException:
            self._lock.release()
            raise
        self._lock.release()
        return None

    def end(self, applied: AppliedSteps | None) -> None:
        """Release the lock.

        ``applied`` is the result of :meth:`begin` if the step is in the log. None if that is
        unknown: the next step then reads the log.
        """
        self._applied = None if applied is None else dict(applied)
        self._lock.release()

    def _read_applied(self) -> AppliedSteps:
        if self._applied is None:
            # Entries behind the tip are not this writer's: an entry that was stored in spite of an
            # error is taken over, and counts, when the next entry finds it at its position.
            tip = self._log.next_position
            newest = read_steps(self._store, self._region_id, tip=tip)
            if newest is None:
                write_empty_book(self._store, self._region_id, tip=tip)
                # A writer that was paused before this may find its position in the log free, since
                # a garbage collector that saw no book may have deleted the sentinel that fenced
                # the writer. Its entry would be a step that no writer replays. From here on, the
                # collector sees the book.
                self._verify()
            self._applied = {} if newest is None else dict(newest.steps)
        return self._applied
