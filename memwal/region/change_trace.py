"""Trace of changes: an object that tells by one request whether a region of a table changed.

A watcher of a table in an object store would otherwise need a request for each region. Each commit
of a region's manifest is followed by a put of :data:`~memwal.format.paths.CHANGE_TRACE_KEY` with
content that no other put has, so that the ETag of the object changes. On a local disk the times of
the folders tell as much, and no trace is left.

The put is never before the commit: a watcher reads the trace, then the manifests. A commit that it
does not see in them is followed by a put that it has not seen either, and the next look finds
another trace. Processes that pause, die or repeat:

* a process pauses before the put: the change is found when the put is made, or by a slower round
  of the watcher, which asks for every region. A trace that overwrites a newer one is one more
  change: the watcher reads once too often;
* a process dies before the put, or the put fails for good: the slower round finds the change, as it
  finds those of clients that leave no trace;
* a process repeats: one more change.

No commit waits for the put, or fails with it. A thread makes it at once, and again a second later
if further commits followed: regions that are flushed together leave one or two traces, and a store
that accepts one write a second to an object is not exceeded by one process.
"""

from __future__ import annotations

import atexit
import logging
import random
import threading
import time
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from memwal.errors import MemWalError, StoreUnavailableError
from memwal.format.paths import CHANGE_TRACE_KEY
from memwal.storage.object_store import ObjectStore
from memwal.util.concurrency import interpreter_is_ending
from memwal.util.log import safe_error_text, warn_once

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 1.0
"""Time between two puts of a process for one table; doubled after each that failed."""

_LONGEST_PAUSE_SECONDS: Final = 60.0
_EXIT_SECONDS: Final = 5.0

_lock = threading.Lock()
_active: dict[int, _TracePuts] = {}  # by the id of the store, which the value keeps alive
_ending = threading.Event()
# Of its own: a thread that draws from the common one would change the numbers that a seeded program
# draws.
_dice = random.Random()  # noqa: S311


def leave_trace(store: ObjectStore) -> None:
    """Have a trace put that a region of a table changed; returns at once, and never raises."""
    if store.is_local:
        return
    if _ending.is_set() or interpreter_is_ending():
        # No thread starts or outlives this any more.
        _TracePuts(store).put()
        return
    with _lock:
        puts = _active.get(id(store))
        if puts is not None:
            puts.is_wanted = True
            return
        puts = _active[id(store)] = _TracePuts(store)
        try:
            threading.Thread(target=puts.run, name="memwal-trace", daemon=True).start()
        except RuntimeError as error:
            del _active[id(store)]
            logger.info("no trace of a change of %s: %s", store.uri, error)


def wait_for_traces(seconds: float = _EXIT_SECONDS) -> bool:
    """Wait until no put is wanted or under way; return whether that is so."""
    deadline = time.monotonic() + seconds
    with _lock:
        waiting = list(_active.values())
    return all(puts.over.wait(max(0.0, deadline - time.monotonic())) for puts in waiting)


class _TracePuts:
    """Puts of the trace of one table, in one thread until none is wanted any more."""

    def __init__(self, store: ObjectStore) -> None:
        self.is_wanted = True
        self.over = threading.Event()
        self._store = store

    def run(self) -> None:
        try:
            pause = PAUSE_SECONDS
            while self._is_next():
                if self.put():
                    pause = PAUSE_SECONDS
                elif pause <= _LONGEST_PAUSE_SECONDS and not _ending.is_set():
                    self.is_wanted = True
                    pause *= 2
                _ending.wait(pause * _dice.uniform(1, 1.5))
        finally:
            with _lock:
                if _active.get(id(self._store)) is self:
                    del _active[id(self._store)]
            self.over.set()

    def _is_next(self) -> bool:
        """Return whether a put is wanted. After False, the next commit starts a thread anew."""
        with _lock:
            # Before the put: a commit that follows wants another one.
            wanted, self.is_wanted = self.is_wanted, False
            if not wanted:
                del _active[id(self._store)]
            return wanted

    def put(self) -> bool:
        """Put the trace; return False if it makes sense to try again."""
        content = f"{datetime.now(UTC).isoformat()} {uuid4()}"
        try:
            self._store.put(CHANGE_TRACE_KEY, content.encode())
        except StoreUnavailableError as error:
            logger.info("no trace of a change of %s: %s", self._store.uri, error)
            return False
        except MemWalError as error:
            warn_once(
                logger,
                "Watchers find changes of %s late, since %s was not stored: %s. Allow it: memwal "
                "rights shows what each role stores.",
                self._store.uri,
                CHANGE_TRACE_KEY,
                safe_error_text(error),
            )
        return True


def finish_traces() -> None:
    """Make the puts that are wanted now; those of later commits are made by the commit itself."""
    _ending.set()
    wait_for_traces()


atexit.register(finish_traces)
