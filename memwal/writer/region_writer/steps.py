"""Steps of a source, each of which a region applies once (see docs/design/0008)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from memwal.format.wal_layout import AppliedSteps, newest_steps
from memwal.lsm.wal.applied_steps import Step, read_steps, write_empty_book
from memwal.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class AppliedStep:
    """What became of a step: it is in each of these regions, durably.

    Attributes
    ----------
    written : tuple of UUID
        Regions that took their rows now.
    known : tuple of UUID
        Regions that had this step, or a later one of the source, and took nothing.
    """

    written: tuple[UUID, ...] = ()
    known: tuple[UUID, ...] = ()


class StepSequencer:
    """The steps of one region, taken one after another by its writer.

    Parameters
    ----------
    store : ObjectStore
    region_id : UUID
    tip : callable
        First position of the log that this writer has not taken up.
    foreign : callable
        Steps of entries that others put where the writer's own were to go.
    verify : callable
        Raises RegionFencedError when somebody else claimed the region.
    """

    def __init__(
        self,
        store: ObjectStore,
        region_id: UUID,
        *,
        tip: Callable[[], int],
        foreign: Callable[[], AppliedSteps],
        verify: Callable[[], None],
    ) -> None:
        self._store = store
        self._region_id = region_id
        self._tip = tip
        self._foreign = foreign
        self._verify = verify
        self._turn = threading.Lock()
        self._applied: dict[str, int] | None = None

    def begin(self, step: Step) -> AppliedSteps | None:
        """Take the turn for a step; None, and no turn, if the region has it.

        Returns
        -------
        mapping of str to int or None
            What the entry has to tell. The turn lasts until :meth:`end`.
        """
        self._turn.acquire()
        try:
            applied = newest_steps(self._known(), self._foreign())
            if applied.get(step.source, -1) < step.version:
                return {**applied, step.source: step.version}
        except BaseException:
            self._turn.release()
            raise
        self._turn.release()
        return None

    def end(self, applied: AppliedSteps | None) -> None:
        """Give the turn back.

        Parameters
        ----------
        applied : mapping of str to int or None
            What :meth:`begin` gave, if the step is in the log. None: it may or may not be there,
            and the next one looks.
        """
        self._applied = None if applied is None else dict(applied)
        self._turn.release()

    def _known(self) -> AppliedSteps:
        if self._applied is None:
            # Entries behind the tip are none of this writer's: one that is there in spite of an
            # error is taken up, and counts, when the next entry finds it in its place.
            tip = self._tip()
            found = read_steps(self._store, self._region_id, tip=tip)
            if found is None:
                write_empty_book(self._store, self._region_id, tip=tip)
                # A writer that slept before this may find its place in the log free, since a
                # collector that knew of no book took what fenced it. Its entry would be a step
                # that nobody replays. From here on, the collector knows.
                self._verify()
            self._applied = {} if found is None else dict(found.steps)
        return self._applied
