"""The processes of the load test: producers, fleets that do the jobs, and readers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common.processes import child_command, child_environment

from load_test.state import Control

# A fleet that dies holds its lease for so long; others do its jobs then.
_LEASE_SECONDS = 10
_PATIENCE = 600.0
_SHOWN = 1_500
KINDS = ("producers", "fleets", "readers")


@dataclass
class Member:
    """A process that is started again whenever it dies."""

    kind: str
    number: int
    lives: int = 0
    process: subprocess.Popen[bytes] = field(init=False, repr=False)

    @property
    def name(self) -> str:
        return f"{self.kind.removesuffix('s')}-{self.number}"


class LoadProcesses:
    """Starts the processes, restarts those that die, kills some on request, and ends them.

    Parameters
    ----------
    folder : Path
    counts : mapping of str to int
        How many of each kind.
    task : mapping
        What producers and readers are told.
    catalog : str
        Address of the fleets' catalog.
    """

    def __init__(
        self, folder: Path, counts: Mapping[str, int], task: Mapping[str, Any], catalog: str
    ) -> None:
        self._folder, self._task = folder, dict(task)
        self._environment = {**child_environment(), "MEMWAL_CATALOG_URL": catalog}
        self._members = [Member(kind, n) for kind in KINDS for n in range(counts[kind])]
        self._ended: set[str] = set()
        self.failures: list[str] = []
        self.kills: list[dict[str, Any]] = []

    def start(self) -> None:
        for member in self._members:
            self._start(member)

    def wait(self) -> None:
        """Wait until each producer has written and each reader has read."""
        waited_for = [
            self._folder / "events" / f"{member.name}.events"
            for member in self._members
            if member.kind != "fleets"
        ]
        until = time.monotonic() + _PATIENCE
        while not all(path.exists() and path.stat().st_size for path in waited_for):
            self.restart_dead()
            if self.failures or time.monotonic() > until:
                raise RuntimeError(f"the load did not begin: {self.failures or 'too slow'}")
            time.sleep(0.1)

    def pids(self) -> Iterator[tuple[str, int]]:
        """Kind and number of every process that should be alive."""
        for member in self._members:
            if member.kind not in self._ended:
                yield member.kind, member.process.pid

    def restart_dead(self) -> None:
        """Restart processes that died by themselves, and record each as a failure."""
        for member in self._members:
            if member.kind not in self._ended and member.process.poll() is not None:
                self._failed(member)
                self._start(member)

    def kill(self, random: np.random.Generator) -> None:
        """Kill a producer or a fleet, and start it again."""
        victims = [member for member in self._members if member.kind != "readers"]
        member = victims[int(random.integers(len(victims)))]
        member.process.kill()
        member.process.wait()
        self.kills.append({"at": time.time(), "who": member.name})
        self._start(member)

    def end(self, kind: str, control: Control) -> None:
        """Have all of a kind end as they should, and wait for it."""
        self.restart_dead()
        self._ended.add(kind)
        members = [member for member in self._members if member.kind == kind]
        if kind == "producers":
            control.end("writing")
        elif kind == "readers":
            control.end("reading")
        else:
            for member in members:
                member.process.terminate()
        for member in members:
            try:
                member.process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self.failures.append(f"{member.name} did not end")
                member.process.kill()
            else:
                # One that was just started may be told to end before it listens.
                if member.process.returncode not in (0, -signal.SIGTERM):
                    self._failed(member)

    def kill_all(self) -> None:
        """Kill all processes that still run."""
        for member in self._members:
            if "process" in vars(member) and member.process.poll() is None:
                member.process.kill()
                member.process.wait()

    def _start(self, member: Member) -> None:
        if member.kind == "fleets":
            every = ["--every", "1", "--lease-seconds", str(_LEASE_SECONDS), "--json"]
            command = [sys.executable, "-m", "memwal", "fleet", "run", *every]
        else:
            do = {"producers": "produce", "readers": "read"}[member.kind]
            task = {**self._task, "do": do, "number": member.number, "life": member.lives}
            command = child_command("load", task)
        member.lives += 1
        with self._output(member).open("ab") as output:
            member.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=self._environment
            )

    def _failed(self, member: Member) -> None:
        told = self._output(member).read_text(errors="replace")[-_SHOWN:]
        self.failures.append(f"{member.name} ended with {member.process.returncode}: {told}")

    def _output(self, member: Member) -> Path:
        return self._folder / f"{member.name}.txt"
