"""A run that is going on: what it tells the catalog while it does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from memwal.errors import MemWalError
from memwal.maintenance.results import JobResult, run_in_process

logger = logging.getLogger(__name__)

BEAT_SECONDS = 15.0
"""How often a run says that its process lives."""

PROGRESS_SECONDS = 1.0
"""How often its progress is written, at most."""


class RunBook(Protocol):
    """Where the progress of runs is written down."""

    def update_run(
        self,
        run_id: int,
        *,
        done: int | None = None,
        total: int | None = None,
        rows: int | None = None,
        bytes: int | None = None,
    ) -> None:
        """Keep what is given, and that the run is alive."""


class ActiveRun:
    """A run that is going on; give it its result before the block of ``record_run`` ends.

    A thread writes its progress and that it is alive. When the catalog does not answer, the run
    goes on and the log says so.

    Attributes
    ----------
    run_id : int
        Number of the run in the catalog.
    result : JobResult or None
        What :meth:`finish` was given.
    """

    def __init__(self, book: RunBook, run_id: int) -> None:
        self.run_id = run_id
        self.result: JobResult | None = None
        self._book = book
        self._lock = threading.Lock()
        self._progress: dict[str, int] = {}
        self._changed = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name=f"run {run_id}", daemon=True)
        self._thread.start()

    def progress(
        self, *, done: int, total: int, rows: int | None = None, bytes: int | None = None
    ) -> None:
        """Say how far the run is; costs nothing, and may be called for every task.

        Parameters
        ----------
        done, total : int
            Tasks.
        rows, bytes : int, optional
            What went through them so far.
        """
        found = {"done": done, "total": total, "rows": rows, "bytes": bytes}
        with self._lock:
            self._progress |= {key: value for key, value in found.items() if value is not None}
            self._changed = True

    def run_tasks(self, tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        """Run tasks in this process and count them: the ``run`` of a job's methods."""
        self.progress(done=0, total=len(tasks))
        done = 0

        def step(task: Any) -> Any:
            nonlocal done
            result = function(task)
            done += 1
            self.progress(done=done, total=len(tasks))
            return result

        return run_in_process(tasks, step)

    def finish(self, result: JobResult) -> None:
        """Say what the job did."""
        self.result = result

    def stop(self) -> dict[str, int]:
        """Tell no more, and return the progress that was made."""
        self._over.set()
        self._thread.join()
        return dict(self._progress)

    def _tell(self) -> None:
        told_at = time.monotonic()
        while not self._over.wait(PROGRESS_SECONDS):
            with self._lock:
                changed, self._changed = self._changed, False
                progress = dict(self._progress)
            if not changed and time.monotonic() - told_at < BEAT_SECONDS:
                continue
            try:
                self._book.update_run(self.run_id, **progress)
                told_at = time.monotonic()
            except MemWalError as error:
                logger.warning("the progress of run %d was not written: %s", self.run_id, error)
