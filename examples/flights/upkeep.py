"""Who merges, indexes, snapshots and collects while the producers write."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta

import memwal
from memwal.maintenance.results import JobResult


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
        ``running``, ``success``, ``failed``, or what else Airflow calls it.
    """

    name: str
    started: float
    ended: float | None = None
    state: str = "running"


class Upkeep(ABC):
    """Maintains one table from `start` to `pause`.

    Attributes
    ----------
    run_name : str
        What a round is called, in the plural.
    """

    run_name: str

    @abstractmethod
    def start(self) -> None:
        """Begin; returns before the first round."""

    @abstractmethod
    def runs(self) -> list[UpkeepRun]:
        """All rounds so far, oldest first.

        Raises
        ------
        Exception
            What ended the maintenance, if it ended by itself.
        """

    @abstractmethod
    def pause(self) -> None:
        """Begin no round any more; returns at once."""

    @abstractmethod
    def wait_idle(self) -> None:
        """Wait until the round that runs is over."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Bring everything that is flushed into the base table and its indexes."""

    @abstractmethod
    def close(self) -> None:
        """End everything that was started."""

    @abstractmethod
    def jobs(self) -> list[JobResult]:
        """What the jobs of all rounds did, oldest first."""


class InProcessUpkeep(Upkeep):
    """Runs the jobs one after another on a thread of this process.

    Parameters
    ----------
    table : memwal.Table
        The table.
    interval : float, default 3
        Seconds between the end of a round and the start of the next.
    grace : timedelta, default 20 s
        Age at which the collector takes what nothing names any more.
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
        self._jobs: list[JobResult] = []
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

    def wait_idle(self) -> None:
        self.pause()
        if self._work is not None:
            self._work.result()

    def checkpoint(self) -> None:
        self._jobs.append(self._table.checkpoint())

    def close(self) -> None:
        self.pause()
        self._pool.shutdown()

    def jobs(self) -> list[JobResult]:
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
        self._jobs.append(self._table.merge())
        self._jobs.append(self._table.build_indexes())
        self._jobs.append(self._table.build_snapshot())
        self._jobs.append(self._table.collect_garbage(dry_run=False, grace=self._grace))
