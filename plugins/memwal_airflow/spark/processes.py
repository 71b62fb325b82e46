"""Identify processes that outlive their parent, and end them with their whole session."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Self

import psutil

from memwal.util.records import JsonMapping

EXIT_SECONDS = 2.0
_POLL_SECONDS = 0.05
# The start of a process is counted from the boot, whose time is corrected with the clock.
_CLOCK_SLACK_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process of this machine; its start time tells it from a later one with the same pid."""

    pid: int
    created: float  # Start time in seconds since the epoch.

    @classmethod
    def of(cls, pid: int) -> Self:
        """Identify a process that exists."""
        return cls(pid=pid, created=psutil.Process(pid).create_time())

    @property
    def running(self) -> bool:
        """True while the process has not ended. A zombie has ended."""
        process = self._find()
        return process is not None and _is_alive(process)

    @property
    def replaced(self) -> bool:
        """True if the pid belongs to another process by now."""
        return psutil.pid_exists(self.pid) and self._find() is None

    @classmethod
    def from_dict(cls, values: JsonMapping) -> Self:
        """Build an id from the values of its fields."""
        return cls(pid=int(values["pid"]), created=float(values["created"]))

    def _find(self) -> psutil.Process | None:
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < _CLOCK_SLACK_SECONDS
        except psutil.NoSuchProcess:
            return None
        return process if same else None


def end_session(leader: ProcessId) -> None:
    """End a session leader, its descendants, and all processes of its session.

    Sends SIGTERM first, and SIGKILL to processes that still run after 2 s. When the leader is a
    child of this process, its exit code stays for the caller to fetch.
    """
    if leader.replaced:
        # The kernel does not reuse a pid while a session with that number exists.
        return
    processes = _session_processes(leader)
    for name in ("terminate", "kill"):
        with contextlib.suppress(psutil.NoSuchProcess):
            getattr(psutil.Process(leader.pid), name)()
        for member in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(member, name)()
        processes = _wait_for_exit(leader, processes)
        if not processes and not leader.running:
            return


def _wait_for_exit(leader: ProcessId, processes: list[psutil.Process]) -> list[psutil.Process]:
    """Wait up to 2 s for all to end, and return the processes that still run."""
    ends_at = time.monotonic() + EXIT_SECONDS
    while True:
        # Polled, not waited for: psutil would fetch the exit code of a child.
        processes = [process for process in processes if _is_alive(process)]
        if (not processes and not leader.running) or time.monotonic() >= ends_at:
            return processes
        time.sleep(_POLL_SECONDS)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _session_processes(leader: ProcessId) -> list[psutil.Process]:
    processes: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        processes = {p.pid: p for p in psutil.Process(leader.pid).children(recursive=True)}
    # Children whose parent died are no descendants any more; their session is that of the leader.
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process.pid != leader.pid and os.getsid(process.pid) == leader.pid:
                processes.setdefault(process.pid, process)
    return list(processes.values())
