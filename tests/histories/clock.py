"""Another time of day for a process, Lance in it included, that can jump while it runs."""

import mmap
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
"""Library that a process must have loaded, to have such a clock."""


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
        """What has to be in the environment of the process, besides :data:`SOURCE`."""
        return {"HISTORIES_CLOCK": str(self._path)}

    def jump(self, ahead: float) -> None:
        """Be so many seconds ahead of the machine from now on, or behind."""
        self._mapped[:8] = round(ahead * 1e9).to_bytes(8, "little", signed=True)
