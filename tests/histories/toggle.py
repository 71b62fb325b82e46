"""Times during which something lasts that processes have to know of, kept in a file."""

import os
import struct
import time
import weakref
from pathlib import Path

_MOMENT = struct.Struct("<q")


class Toggle:
    """Something that begins and ends, again and again, at moments of ``CLOCK_MONOTONIC``.

    Parameters
    ----------
    path : Path
        File with the moments. It stays open: a process may have no descriptor left when it asks.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b", buffering=0)
        weakref.finalize(self, self._file.close)

    def turn(self) -> None:
        """Note that it begins now, or ends now."""
        self._file.write(_MOMENT.pack(time.monotonic_ns()))

    @property
    def is_on(self) -> bool:
        """Whether it lasts."""
        return len(self._moments()) % 2 == 1

    def was_on(self, begin: float, end: float) -> bool:
        """Whether it lasted at some time from ``begin`` to ``end``, in nanoseconds."""
        moments = self._moments()
        starts, ends = moments[::2], [*moments[1::2], end]
        return any(s <= end and e >= begin for s, e in zip(starts, ends, strict=False))

    def _moments(self) -> list[int]:
        descriptor = self._file.fileno()
        size = os.fstat(descriptor).st_size
        return [moment for (moment,) in _MOMENT.iter_unpack(os.pread(descriptor, size, 0))]


def parts_missing(folder: Path) -> Toggle:
    """While a part of the table is away; ``folder`` is where processes write."""
    return Toggle(folder / "parts-missing")


def log_suspended(folder: Path) -> Toggle:
    """While MemWAL is taken away from the table, or its base table is an older one."""
    return Toggle(folder / "log-suspended")


def undecided(folder: Path) -> Toggle:
    """While the base table is behind generations that were merged into it.

    Lance's readers take these for pending.
    """
    return Toggle(folder / "undecided")
