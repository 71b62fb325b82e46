"""Maintenance while the producers write: merge, index, snapshot and collect."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import memwal
from memwal.jobs.job import JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepRun:
    """One round of maintenance.

    Attributes
    ----------
    name : str
        Id of the DAG run, or number of the round.
    started, ended : float
        Seconds since 1970; ``ended`` is None while it runs.
    state : str
        ``running``, ``success``, ``failed``, or another state of Airflow.
    """

    name: str
    started: float
    ended: float | None = None
    state: str = "running"

    @property
    def failed(self) -> bool:
        """Return whether it ended without success."""
        return self.state == "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepJob:
    """One job of a round that succeeded.

    Attributes
    ----------
    result : JobResult
        Result of the job.
    started, ended : float
        Seconds since 1970, including everything needed to run it.
    """

    result: JobResult
    started: float
    ended: float


class Upkeep(ABC):
    """Maintains one table from `start` to `pause`.

    Attributes
    ----------
    run_name : str
        Word for rounds, in the plural.
    """

    run_name: str

    @abstractmethod
    def start(self) -> None:
        """Start the maintenance; returns before the first round."""

    def where(self) -> str:
        """Return where a user can watch it, once there is something to see."""
        return ""

    @abstractmethod
    def runs(self) -> list[UpkeepRun]:
        """All rounds so far, oldest first.

        Raises
        ------
        Exception
            The error that ended the maintenance, if it ended by itself.
        """

    @abstractmethod
    def pause(self) -> None:
        """Start no further round; returns immediately."""

    @abstractmethod
    def idle(self) -> bool:
        """Return whether it is paused and the last round is over."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Merge everything that is flushed into the base table and its indexes."""

    @abstractmethod
    def close(self) -> None:
        """End everything that was started, without time to finish."""

    @abstractmethod
    def jobs(self) -> list[UpkeepJob]:
        """Return the jobs of all rounds, and the checkpoint, oldest first."""


class InProcessUpkeep(Upkeep):
    """Runs the jobs one after another on a thread of this process.

    Parameters
    ----------
    table : memwal.Table
        The table.
    interval : float, default 3
        Seconds between the end of a round and the start of the next.
    grace : timedelta, default 20 s
        Grace period and retention of collections.
    """

    run_name = "rounds of maintenance"

    def __init__(
        self,
        table: memwal.Table,
        *,
        interval: float = 3.0,
        grace: timedelta = timedelta(seconds=20),
    ) -> None:
        self._table = table
        self._interval = interval
        self._grace = grace
        self._runs: list[UpkeepRun] = []
        self._jobs: list[UpkeepJob] = []
        self._paused = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="upkeep")
        self._work: Future[None] | None = None

    def start(self) -> None:
        self._work = self._pool.submit(self._keep)

    def runs(self) -> list[UpkeepRun]:
        if self._work is not None and self._work.done():
            self._work.result()
        return list(self._runs)

    def pause(self) -> None:
        self._paused.set()

    def idle(self) -> bool:
        return self._work is None or self._work.done()

    def checkpoint(self) -> None:
        self._jobs.append(timed(self._table.checkpoint))

    def close(self) -> None:
        self.pause()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def jobs(self) -> list[UpkeepJob]:
        return list(self._jobs)

    def _keep(self) -> None:
        while not self._paused.wait(self._interval):
            run = UpkeepRun(name=str(len(self._runs) + 1), started=time.time())
            self._runs.append(run)
            state = "failed"
            try:
                self._round()
                state = "success"
            finally:
                self._runs[-1] = replace(run, ended=time.time(), state=state)

    def _round(self) -> None:
        grace = self._grace.total_seconds()
        collect = partial(
            self._table.collect_garbage,
            dry_run=False,
            grace_seconds=grace,
            retention_seconds=grace,
        )
        for job in (
            self._table.merge,
            self._table.build_indexes,
            self._table.build_snapshot,
            collect,
        ):
            self._jobs.append(timed(job))


def timed(job: Callable[[], JobResult]) -> UpkeepJob:
    """Run a job in this process."""
    started = time.time()
    result = job()
    return UpkeepJob(result=result, started=started, ended=time.time())
