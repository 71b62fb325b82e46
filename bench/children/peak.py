"""Peak memory of this process, from Linux's ``/proc``."""

from __future__ import annotations

from pathlib import Path


def memory(key: str) -> int:
    """Return the bytes of a line of ``/proc/self/status``: ``VmRSS`` is now, ``VmHWM`` the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/self/status has no {key}")


def reset_peak() -> None:
    """Forget the peak memory of this process so far."""
    Path("/proc/self/clear_refs").write_text("5")
