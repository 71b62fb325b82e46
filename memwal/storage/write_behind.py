"""Having the disk write large new files while they are still being made."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_PAUSE_SECONDS: Final = 0.03
_START_WRITING: Final = 2  # SYNC_FILE_RANGE_WRITE


@contextlib.contextmanager
def write_behind(folder: Path | None) -> Iterator[None]:
    """Have the disk begin with the files that others add to a folder while the block runs.

    This makes nothing durable. It only leaves less to do for the sync that follows, which would
    else begin with the first byte when the last one is there.

    Parameters
    ----------
    folder : Path or None
        Its own files only; None, and one that does not exist, does nothing.
    """
    start = sync_file_range()
    if folder is None or start is None or not folder.is_dir():
        yield
        return
    known = frozenset(os.listdir(folder))
    over = threading.Event()

    def watch() -> None:
        # A folder that is gone is for those to tell of who write into it.
        with contextlib.suppress(OSError):
            while not over.wait(_PAUSE_SECONDS):
                for name in os.listdir(folder):
                    if name not in known:
                        _begin(folder / name, start)

    watcher = threading.Thread(target=watch, name="memwal-write-behind", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _begin(path: Path, start: Callable[[int, int, int, int], int]) -> None:
    # A file that is gone again, or cannot be written ahead, is left to the sync.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            start(descriptor, 0, 0, _START_WRITING)
        finally:
            os.close(descriptor)


@functools.cache
def sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The system call ``sync_file_range(2)``; None where there is none."""
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
        function.restype = ctypes.c_int
    return function
