"""Sync of a folder file by file, for systems that cannot sync a whole file system (``syncfs``).

A sync covers the writes of all processes before it began: Lance syncs nothing. Files come first,
then the names in folders from the deepest to the first, so that a name that became durable by this
sync leads to durable content. A process that dies in between leaves some of it durable, which is no
promise: the caller relies on a sync only when it returned.

Names that are in a folder all the time that it is listed are found by the listing. Names that come
or go during the listing were not there before the sync began, or are not needed after it.

A file or folder that was synced already, and has the same time of change since, is not synced
again. That time is believed only if it was over when the sync read it: a later change then has a
later one, unless the clock was set back, after which nothing is believed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from memwal.storage.folders.walk import is_broken, walk
from memwal.util import system

# The time stamp of a file is some milliseconds behind the clock, or up to a second.
_COARSE_SECONDS: Final = 1.0

_FILE: Final = os.O_RDONLY | system.O_CLOEXEC | system.O_NONBLOCK

# Device, inode, and time of the last change in nanoseconds.
_FileState = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One instant by the wall clock and by the monotonic clock."""

    wall: float
    monotonic: float

    @classmethod
    def now(cls) -> ClockReading:
        return cls(time.time(), time.monotonic())

    def is_after(self, changed: float) -> bool:
        """Return whether a file was changed before; False if the wall clock was set since then.

        Once the wall clock was set, file times cannot be compared with this reading.
        """
        return changed + _COARSE_SECONDS < self.wall and not self.was_clock_set()

    def was_clock_set(self) -> bool:
        """Return whether the wall clock was set since this reading."""
        now = ClockReading.now()
        drift = (now.monotonic - self.monotonic) - (now.wall - self.wall)
        return abs(drift) >= _COARSE_SECONDS / 2


class FolderSync:
    """Syncs folders again and again, and remembers the durable ones."""

    def __init__(self) -> None:
        # By folder: when its last sync began, and the state that was durable when that ended. A
        # value is replaced as a whole: no lock needed.
        self._synced: dict[str, tuple[ClockReading, frozenset[_FileState]]] = {}

    def sync(self, folder: str) -> None:
        """Make a folder durable as :func:`sync_folder` does, without the parts known as such."""
        started = ClockReading.now()
        known = self._known(folder)
        durable = sync_folder(folder, known)
        # A later change within the same tick would not show.
        settled = frozenset(
            state for state in durable if state in known or started.is_after(state[2] / 1e9)
        )
        self._synced[folder] = (started, settled)

    def _known(self, folder: str) -> frozenset[_FileState]:
        """Return the files that earlier syncs of the folder, or of one above it, made durable."""
        known: frozenset[_FileState] = frozenset()
        above = ""
        while folder != above:
            started, states = self._synced.get(folder, (None, known))
            if started is not None and not started.was_clock_set():
                known = known | states if known else states
            folder, above = os.path.dirname(folder), folder
        return known


def sync_folder(folder: str, known: Set[_FileState] = frozenset()) -> set[_FileState]:
    """Make everything below a folder durable, also behind links, and the names in the folder.

    Files and folders in one of the ``known`` states are left out. Returns the states of all. The
    drive empties its cache once for each file system. Raises FileNotFoundError if the folder does
    not exist.
    """
    os.stat(folder)
    durable: set[_FileState] = set()
    with _Drives() as drives:
        for path, state in _below(folder):
            if state in known:
                durable.add(state)
                continue
            with suppress(FileNotFoundError):
                durable.add(drives.write(path))
        drives.flush()
    return durable


def _below(folder: str) -> Iterator[tuple[str, _FileState]]:
    """Yield the files below a folder, then the folders, children first, with their states."""
    found = list(walk(folder))
    for entry, is_inner in found:
        with suppress(FileNotFoundError):
            if not is_inner and not is_broken(entry) and entry.is_file():
                yield entry.path, _state(entry.stat())
    for path in (*(entry.path for entry, is_inner in reversed(found) if is_inner), folder):
        with suppress(FileNotFoundError):
            yield path, _state(os.stat(path))


def _state(status: os.stat_result) -> _FileState:
    return (status.st_dev, status.st_ino, status.st_ctime_ns)


class _Drives:
    """Hands files to their drives one by one, and has each drive write them at the end.

    With F_FULLFSYNC alone a drive writes its cache, all of it (fcntl(2) where it exists): one call
    after all files were handed over is as good as one for each. Elsewhere fsync does both.
    """

    def __init__(self) -> None:
        # By device: any open file of it.
        self._opened: dict[int, int] = {}

    def __enter__(self) -> _Drives:
        return self

    def __exit__(self, *_error: object) -> None:
        for descriptor in self._opened.values():
            os.close(descriptor)

    def write(self, path: str) -> _FileState:
        """Hand a file or folder over; return the state that it had before."""
        descriptor = os.open(path, _FILE)
        try:
            status = os.fstat(descriptor)
            os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if status.st_dev in self._opened:
            os.close(descriptor)
        else:
            self._opened[status.st_dev] = descriptor
        return _state(status)

    def flush(self) -> None:
        """Make the submitted files durable."""
        if system.F_FULLFSYNC is not None:
            for descriptor in self._opened.values():
                system.fsync(descriptor)
