"""Servers of the demo: ports of 127.0.0.1, and programs that end with the one that started them."""

from __future__ import annotations

import socket
from typing import Final

ENDS_WITH_CALLER: Final = (
    "import ctypes, signal\n"
    # PR_SET_PDEATHSIG: SIGTERM when the caller dies and cannot end it any more. Linux has it.
    "prctl = getattr(ctypes.CDLL(None), 'prctl', None)\n"
    "prctl and prctl(1, signal.SIGTERM)\n"
)
"""Start of a Python program that does not outlive the process that started it.

Without ``prctl`` it does, if that one is killed.
"""


def free_port() -> int:
    """A TCP port of 127.0.0.1 on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
