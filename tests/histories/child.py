"""Processes of a play, forked from one that has imported Lance and memwal and used neither.

A life begins at once so, where a new interpreter would import for seconds. A fork of a process that
uses Lance may hang, therefore this one never opens a table: it reads orders from its standard
input, a line each, and answers with a process id.
"""

import ctypes
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from histories.foreign import foreign, settle
from histories.others import collector, jobs, lance_jobs, reader
from histories.process import Process, Told
from histories.writers import lance_contexts, lances, ours
from support.faults import safeguards

from memwal.reader.sources import log_tails, snapshot
from memwal.region import manifest_store

_PR_SET_PDEATHSIG = 1

ROLES: dict[str, Callable[[Process], None]] = {
    "writer": ours,
    "lance": lances,
    "lance_context": lance_contexts,
    "reader": reader,
    "jobs": jobs,
    "lance_jobs": lance_jobs,
    "collector": collector,
    "foreign": foreign,
}


def main() -> None:
    """Fork and reap for as long as the standard input is open."""
    _end_with_parent()
    warnings.simplefilter("ignore")  # LanceDB warns of forks while it is at work.
    for line in sys.stdin:
        order = json.loads(line)
        pid = order["reap"] if "reap" in order else os.fork()
        if pid == 0:
            _live(**order)
        if "reap" in order:
            os.waitpid(pid, 0)
        print(pid, flush=True)


def _end_with_parent() -> None:
    """Whatever becomes of the play, nobody stays behind, not even who stands still."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _live(role: str, told: str, environment: dict[str, str], errors: str) -> NoReturn:
    """Live until somebody ends the process."""
    try:
        _end_with_parent()
        _redirect(errors)
        os.environ.update(environment)
        # These libraries are loaded already; they look again at what they are told.
        loaded = ctypes.CDLL(None)
        loaded.histories_clock_begin()
        loaded.full_disk_begin()
        _play(ROLES[role], Told(**json.loads(told)))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _redirect(errors: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, instead in enumerate((nothing, written, written)):
        os.dup2(instead, descriptor)


def _play(role: Callable[[Process], Any], told: Told) -> None:
    pa.set_cpu_count(1)
    # The collectors' grace is a few seconds here, and no minutes for which readers may believe
    # what they read. All processes read one clock, unless theirs jump: then nobody relies on it.
    manifest_store._REUSE_SECONDS = 0
    snapshot.MAX_CLOCK_SKEW_SECONDS = 0
    log_tails._PAUSED_SECONDS = told.grace / 2
    if told.without:
        getattr(safeguards, told.without)(pytest.MonkeyPatch())
    if role is foreign:
        settle(told)
    role(Process(told))


if __name__ == "__main__":
    main()
