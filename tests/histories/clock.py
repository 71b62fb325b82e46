"""Another time of day for a process, Lance in it included, that can jump while it runs."""

from __future__ import annotations

import functools
import mmap
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """The time of day of a process, at first that of the machine.

    Parameters
    ----------
    path : Path
        Where a file is made by which the process is told.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), 8)

    def environment(self) -> dict[str, str]:
        """What has to be in the environment of the process."""
        return {"LD_PRELOAD": _library(), "HISTORIES_CLOCK": str(self._path)}

    def jump(self, ahead: float) -> None:
        """Be so many seconds ahead of the machine from now on, or behind."""
        self._mapped[:8] = round(ahead * 1e9).to_bytes(8, "little", signed=True)


def _library() -> str:
    return f"{_built().name}/clock.so"


@functools.cache
def _built() -> tempfile.TemporaryDirectory[str]:
    """Compile it, once a process, into a folder that goes with it."""
    compiler = shutil.which("cc")
    assert compiler is not None, "There is no C compiler; scripts/slow_tools.py brings one"
    folder = tempfile.TemporaryDirectory(prefix="memwal-histories-clock-")
    arguments = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", f"{folder.name}/clock.so"]
    subprocess.run([compiler, *arguments, str(SOURCE), "-ldl"], check=True)
    return folder
