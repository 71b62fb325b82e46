"""A process of a play: ``child.py ROLE TOLD``, where the second is what :class:`Told` makes."""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from collections.abc import Callable

import pyarrow as pa
from histories.others import collector, jobs, lance_jobs, reader
from histories.process import Process, Told
from histories.safeguards import SAFEGUARDS
from histories.writers import lances, ours

from memwal.reader.sources import log_tails, snapshot
from memwal.region import manifest_store

_PR_SET_PDEATHSIG = 1

ROLES: dict[str, Callable[[Process], None]] = {
    "writer": ours,
    "lance": lances,
    "reader": reader,
    "jobs": jobs,
    "lance_jobs": lance_jobs,
    "collector": collector,
}


def main() -> None:
    """Live until somebody ends the process."""
    # Whatever becomes of the play, nobody stays behind, not even who stands still.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    pa.set_cpu_count(1)
    told = Told(**json.loads(sys.argv[2]))
    # The collectors' grace is a few seconds here, and no minutes for which readers may believe
    # what they read. All processes read one clock, unless theirs jump: then nobody relies on it.
    manifest_store._REUSE_SECONDS = 0
    snapshot.MAX_CLOCK_SKEW_SECONDS = 0
    log_tails._PAUSED_SECONDS = told.grace / 2
    if told.without:
        SAFEGUARDS[told.without]()
    ROLES[sys.argv[1]](Process(told))


if __name__ == "__main__":
    main()
