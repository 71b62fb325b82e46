"""The producers' processes: start, observe, kill and restart them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from run import Progress, Settings, progress_file

LOG_LINES = 15
"""Lines of a producer's log shown when it fails."""
LITTLE_SPACE = 1 << 20
"""Free bytes of a disk that is full: what is left may be too little for a line of a log."""


class ProducerFailedError(RuntimeError):
    """A producer ended by itself before its work was done."""


class Fleet:
    """All producers of one run.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    settings : Settings
        Settings of the run, which are also in `folder`.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._numbers = range(settings.producers)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.kills = 0

    def start(self, producer: int | None = None) -> None:
        """Start one producer, or all unfinished ones; each resumes from its progress file."""
        waiting = [number for number, one in enumerate(self.progress()) if not one.done]
        for number in waiting if producer is None else [producer]:
            with (self._folder / f"producer-{number}.log").open("ab") as log:
                self._processes[number] = subprocess.Popen(
                    [
                        sys.executable,
                        str(Path(__file__).with_name("producer.py")),
                        str(self._folder),
                        str(number),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # Reading the stream needs no threads besides the writer's.
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    start_new_session=True,
                )

    def progress(self) -> list[Progress]:
        """Read the progress of every producer from its file."""
        return [Progress.of(progress_file(self._folder, number)) for number in self._numbers]

    def kill(self, producer: int) -> None:
        """End a producer with SIGKILL and wait until it has ended."""
        self._processes[producer].kill()
        self._processes[producer].wait()
        self.kills += 1

    def running(self) -> bool:
        """Return whether a producer is still running.

        Raises
        ------
        ProducerFailedError
            One ended with an error; the message holds the end of its log.
        """
        codes = {number: process.poll() for number, process in self._processes.items()}
        for number, code in codes.items():
            if code:
                log = self._folder / f"producer-{number}.log"
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
                full = shutil.disk_usage(self._folder).free < LITTLE_SPACE
                reason = f" because no space is left on the disk of {self._folder}" if full else ""
                raise ProducerFailedError(
                    f"producer {number} ended with code {code}{reason}; the end of {log}:\n{tail}"
                )
        return any(code is None for code in codes.values())

    def stop(self) -> None:
        """End the processes that still run."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            process.wait()
