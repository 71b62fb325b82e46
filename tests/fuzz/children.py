"""Playing in processes of their own, which foreign code may end.

Lance reads its files in Rust. Where that panics while rows are handed over to Arrow, or believes
a size and gets no memory, the process ends, which nothing in Python can prevent: it is counted, and
the play goes on behind the input.
Any other death, by a signal or by hand, is a finding.
"""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
_LANCE_GAVE_UP: Final = ("panic in a function that cannot unwind", "memory allocation of ")


@dataclass
class Ended:
    """How a play in other processes ended.

    Attributes
    ----------
    output : list of str
        What they printed.
    given_up : list of int
        Numbers of the inputs at which Lance ended the process.
    """

    output: list[str] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)


class Progress:
    """A number that is still there when the process is not.

    Parameters
    ----------
    path : str or None
        Where it stands; None for nowhere.
    """

    def __init__(self, path: str | None) -> None:
        self._memory: mmap | None = None
        if path is not None:
            with open(path, "r+b") as file:
                self._memory = mmap(file.fileno(), 8)

    def note(self, number: int) -> None:
        """Set it."""
        if self._memory is not None:
            self._memory[:] = number.to_bytes(8, "little")


def play_in_children(module: str, *words: str, count: int) -> Ended:
    """Run ``python -m MODULE WORDS COUNT --start N --progress FILE`` until all inputs are through.

    Raises
    ------
    AssertionError
        A process found something, or died of anything but a panic of Lance.
    """
    ended = Ended()
    start = 0
    with tempfile.NamedTemporaryFile() as progress:
        while start < count:
            Path(progress.name).write_bytes(bytes(8))
            options = ["--start", str(start), "--progress", progress.name]
            done = subprocess.run(
                [sys.executable, "-m", module, *words, str(count - start), *options],
                cwd=TESTS.parent,
                env={**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"},
                capture_output=True,
                text=True,
                check=False,
            )
            ended.output.append(done.stdout)
            if done.returncode == 0:
                return ended
            number = int.from_bytes(Path(progress.name).read_bytes(), "little")
            given_up = any(words in done.stderr for words in _LANCE_GAVE_UP)
            if done.returncode != -signal.SIGABRT or not given_up:
                raise AssertionError(
                    f"input {number} ended the process ({done.returncode}):\n"
                    f"{done.stdout[-2_000:]}\n{done.stderr[-4_000:]}"
                )
            ended.given_up.append(number)
            start = number + 1
    return ended
