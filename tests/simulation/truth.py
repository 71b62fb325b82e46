"""What users were told, and whether what they see agrees with it.

A write is acknowledged, refused without a trace, or nobody knows. What nobody knows may have
happened until somebody else has the region: behind his fence nothing of it can appear any more.

The checker of :mod:`histories` is not asked: its bounds of flushes are moments, since processes
know no more. Here the position of each write in the log is known. A moment that is before every row
that may have been in the log unflushed, also one without an answer, would allow reads to miss
writes that are flushed for certain.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

DELETED = 0
ABSENT = None


@dataclass(eq=False)
class Write:
    """One write of one key.

    Attributes
    ----------
    value : int
        Unique; ``DELETED`` for a delete.
    position : int or None
        Where it stands in the log, of an acknowledged one.
    begun, ended : float
        When it was made, and until when it can have taken effect.
    """

    region: UUID
    key: int
    value: int
    begun: float
    ended: float = math.inf
    acknowledged: bool = False
    position: int | None = None


class Truth:
    """All writes so far.

    Attributes
    ----------
    acknowledged, unknown, reads : int
        How many.
    """

    def __init__(self) -> None:
        self._writes: dict[int, list[Write]] = defaultdict(list)
        self._open: dict[UUID, list[Write]] = defaultdict(list)
        self.acknowledged = 0
        self.unknown = 0
        self.reads = 0

    @property
    def keys(self) -> list[int]:
        """Keys that were ever written."""
        return list(self._writes)

    def begin(self, region: UUID, rows: Mapping[int, int], now: float) -> list[Write]:
        """Rows are about to be written."""
        writes = [Write(region, key, value, now) for key, value in rows.items()]
        for write in writes:
            self._writes[write.key].append(write)
            self._open[region].append(write)
        self.unknown += len(writes)
        return writes

    def acknowledge(self, writes: Iterable[Write], position: int | None, now: float) -> None:
        """The user was told that rows are safe."""
        for write in writes:
            write.acknowledged, write.position, write.ended = True, position, now
            if write in self._open[write.region]:
                self._open[write.region].remove(write)
            self.acknowledged += 1
            self.unknown -= 1

    def fenced(self, region: UUID, now: float) -> None:
        """Somebody has a region from now on: of what was under way there, nothing more comes."""
        for write in self._open[region]:
            write.ended = now
        self._open[region].clear()

    def check(
        self,
        seen: Mapping[int, int],
        *,
        since: float,
        what: str,
        flushed: Mapping[UUID, int] | None = None,
        region: UUID | None = None,
    ) -> None:
        """Raise AssertionError when a reader saw what it must not.

        Parameters
        ----------
        seen : mapping
            Values by key; a key that is missing was seen as absent.
        since : float
            When the read began.
        flushed : mapping, optional
            Up to which position the log of each region was flushed then, for readers that see
            nothing else. None: they see everything.
        region : UUID, optional
            Of whose keys alone it is.
        """
        self.reads += 1
        for key, writes in list(self._writes.items()):
            if region is not None and writes[0].region != region:
                continue
            self._check_key(key, seen.get(key), since, what, flushed)

    def _check_key(
        self,
        key: int,
        value: int | None,
        since: float,
        what: str,
        flushed: Mapping[UUID, int] | None,
    ) -> None:
        writes = self._writes[key]
        sure = [
            write
            for write in writes
            if write.acknowledged
            and write.ended <= since
            and (flushed is None or (write.position or 0) <= flushed.get(write.region, 0))
        ]
        newest = max((write.begun for write in sure), default=-math.inf)
        if value is ABSENT:
            # Never written as far as is known, or deleted by a write that nothing sure is behind.
            if not sure or any(w.value == DELETED and w.ended >= newest for w in writes):
                return
        elif any(write.value == value and write.ended >= newest for write in writes):
            return
        last = max(sure, key=lambda write: write.begun, default=None)
        raise AssertionError(
            f"{what} saw {value} under key {key} at {since:.3f}; the newest write that is sure is "
            f"{last}; all of them: {writes[-6:]}"
        )
