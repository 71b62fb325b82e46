"""Check whether the result of a scan during the run is possible.

Each region applies its writes in order. So if a scan shows one event of a batch in a region, it
must show everything that earlier batches did in that region: no flight may be older, missing, or
still present after its cancellation. This holds whatever was flushed, merged or collected during
the scan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from flightdata import KEY, MICROSECONDS
from stream import CANCELLED, DEPARTED, ENDED, SCHEDULED, EventStream, Integers

STATUS_STAGE = {"scheduled": SCHEDULED, "departed": DEPARTED, "arrived": ENDED, "diverted": ENDED}
COLUMNS = [KEY, "status", "updated_at"]
"""What `PlausibleStates.check` needs of a scan."""

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Result of the check of one scan.

    Attributes
    ----------
    rows : int
        Rows of the scan.
    newest_batch : int
        Newest batch with a visible event; -1 if the table is empty.
    problems : tuple of str
        Impossible results, as text.
    """

    rows: int
    newest_batch: int
    problems: tuple[str, ...] = ()


class PlausibleStates:
    """Checks successive scans against the stream of writes.

    Parameters
    ----------
    stream : EventStream
        All events.
    region_of : int64 array
        Number of each flight's region.
    """

    def __init__(self, stream: EventStream, region_of: Integers) -> None:
        self._keys = stream.flights.facts[KEY].combine_chunks()
        self._region_of = region_of
        self._batch = np.full((4, len(stream.flights)), NEVER)
        self._time = np.full((4, len(stream.flights)), -1)
        self._batch[stream.stage, stream.flight] = stream.batch_of
        self._time[stream.stage, stream.flight] = stream.time
        self._frontier = np.full(region_of.max(initial=0) + 1, -1)

    def check(self, scan: pa.Table) -> Look:
        """Check one scan; it must not show less than the scan before.

        Parameters
        ----------
        scan : pa.Table
            All rows, at least with `COLUMNS`.
        """
        flight = pc.index_in(scan[KEY].combine_chunks(), self._keys)
        stage = pc.index_in(scan["status"].combine_chunks(), pa.array(list(STATUS_STAGE)))
        if flight.null_count or stage.null_count:
            strangers = f"{flight.null_count} unknown keys, {stage.null_count} unknown statuses"
            return Look(rows=scan.num_rows, newest_batch=-1, problems=(strangers,))
        rows = flight.to_numpy()
        stages = np.array(list(STATUS_STAGE.values()))[stage.to_numpy()]
        minutes = scan["updated_at"].cast(pa.int64()).to_numpy() // MICROSECONDS

        seen = np.full(len(self._keys), -1)
        seen[rows] = stages
        frontier = np.full(len(self._frontier), -1)
        np.maximum.at(frontier, self._region_of[rows], self._batch[stages, rows])
        # Strictly earlier batches only: the newest one may be visible in part.
        due = self._batch < frontier[self._region_of]
        cancelled = due[CANCELLED]
        counts = {
            "keys twice": len(rows) - len(np.unique(rows)),
            "rows that no event wrote": int((self._time[stages, rows] != minutes).sum()),
            "flights there after their cancellation": int((cancelled & (seen >= 0)).sum()),
            "flights older than their region": int(self._behind(seen, due).sum()),
            "regions older than in the last scan": int((frontier < self._frontier).sum()),
        }
        self._frontier = np.maximum(frontier, self._frontier)
        return Look(
            rows=scan.num_rows,
            newest_batch=int(frontier.max(initial=-1)),
            problems=tuple(f"{count} {what}" for what, count in counts.items() if count),
        )

    def _behind(
        self, seen: Integers, due: np.typing.NDArray[np.bool_]
    ) -> np.typing.NDArray[np.bool_]:
        never_cancelled = self._batch[CANCELLED] == NEVER
        stage_due = due[: ENDED + 1].sum(axis=0) - 1
        # A flight that is cancelled in the newest visible batch may be gone already.
        behind: np.typing.NDArray[np.bool_] = never_cancelled & (seen < stage_due)
        return behind
