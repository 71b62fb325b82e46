"""The process from which the processes of plays are forked, as the nemesis sees it."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from histories import child, clock
from support.faults import full_disk, lost_writes
from support.faults.preloaded import preload

import memwal

TESTS = Path(__file__).resolve().parents[1]
REPOSITORY = Path(memwal.__file__).resolve().parents[1]


class Zygote:
    """A process that runs :mod:`histories.child`. It ends with its parent, its children with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", child.__name__],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(TESTS)]),
                "LANCE_LOG": "error,lance::index=off",
                **preload([clock.SOURCE, lost_writes.SOURCE, full_disk.SOURCE]),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def fork(self, role: str, told: str, environment: Mapping[str, str], errors: Path) -> int:
        """Begin a life, and return its process id.

        Parameters
        ----------
        told : str
            What :class:`histories.process.Told` makes.
        environment : mapping
            Added to that of the zygote, before Lance is used.
        errors : Path
            Gets what the life prints.
        """
        return self._ask(role=role, told=told, environment=environment, errors=str(errors))

    def reap(self, pid: int) -> None:
        """Wait until a life has ended. Until then no other process gets its id."""
        self._ask(reap=pid)

    def _ask(self, **order: object) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@functools.cache
def shared() -> Zygote:
    """The zygote of all plays of this process."""
    return Zygote()
