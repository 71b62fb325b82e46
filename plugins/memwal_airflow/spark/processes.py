"""Processes that outlive the one that started them: found again, and ended with all their kin."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import psutil

END_SECONDS = 2.0
_POLL_SECONDS = 0.05
# The start of a process is counted from the boot, whose time is corrected with the clock.
_CLOCK_SLACK_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process of this machine; its start tells it from a later one with the same number.

    Attributes
    ----------
    pid : int
    created : float
        When it was started, in seconds since the epoch.
    """

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> Self:
        """Identify a process that exists."""
        return cls(pid=pid, created=psutil.Process(pid).create_time())

    @property
    def running(self) -> bool:
        """Whether it has not ended. One that has and was not waited for does not run."""
        found = self._find()
        return found is not None and _is_alive(found)

    @property
    def replaced(self) -> bool:
        """Whether its number belongs to another process by now."""
        return psutil.pid_exists(self.pid) and self._find() is None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"pid": self.pid, "created": self.created}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make one of what :meth:`to_dict` gave."""
        return cls(pid=int(values["pid"]), created=float(values["created"]))

    def _find(self) -> psutil.Process | None:
        try:
            found = psutil.Process(self.pid)
            same = abs(found.create_time() - self.created) < _CLOCK_SLACK_SECONDS
        except psutil.NoSuchProcess:
            return None
        return found if same else None


def end_session(leader: ProcessId) -> None:
    """End a session leader, all that descend from it, and all of its session.

    They are asked first; what is left after 2 s is killed. When the leader is a child of this
    process, its exit code stays for the caller to fetch.
    """
    if leader.replaced:
        # A number is not given away while there is a session of that number.
        return
    kin = _kin(leader)
    for name in ("terminate", "kill"):
        with contextlib.suppress(psutil.NoSuchProcess):
            getattr(psutil.Process(leader.pid), name)()
        for member in kin:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(member, name)()
        kin = _left(leader, kin)
        if not kin and not leader.running:
            return


def _left(leader: ProcessId, kin: list[psutil.Process]) -> list[psutil.Process]:
    """Wait until all have ended, for 2 s at most; those of the kin that have not."""
    ends_at = time.monotonic() + END_SECONDS
    while True:
        # Only looked at, and not waited for: psutil would fetch the exit code of a child.
        kin = [process for process in kin if _is_alive(process)]
        if (not kin and not leader.running) or time.monotonic() >= ends_at:
            return kin
        time.sleep(_POLL_SECONDS)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _kin(leader: ProcessId) -> list[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        found = {p.pid: p for p in psutil.Process(leader.pid).children(recursive=True)}
    # Children whose parent died are not found as descendants; their session is that of the leader.
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process.pid != leader.pid and os.getsid(process.pid) == leader.pid:
                found.setdefault(process.pid, process)
    return list(found.values())
