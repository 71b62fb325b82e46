"""Observe the table while it is written and maintained."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from plausible import COLUMNS, Look, PlausibleStates
from run import REGION_IDS, Progress

import memwal


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The table's status at one time.

    Attributes
    ----------
    seconds : float
        Time since the start of the run.
    version : int
        Version of the base table.
    backlog_rows, backlog_generations : tuple of int
        Flushed and unmerged, by region number.
    index_lag : int
        Merged generations that an index does not cover yet.
    retained : int
        Merged generations that are still stored.
    writes : int
        Acknowledged upserts and deletes of all producers.
    """

    seconds: float
    version: int
    backlog_rows: tuple[int, ...]
    backlog_generations: tuple[int, ...]
    index_lag: int
    retained: int
    writes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One scan of the whole table, and its check.

    Attributes
    ----------
    seconds : float
        Time since the start of the run.
    took : float
        Duration of the scan in seconds.
    look : Look
        Result of the check.
    """

    seconds: float
    took: float
    look: Look


@dataclass(slots=True)
class Watch:
    """Takes samples, and regularly scans the table in the background.

    Parameters
    ----------
    table : memwal.Table
        The table.
    states : PlausibleStates
        Checks the scans.
    started : float
        Start of the run, in seconds since 1970.
    scan_interval : float, default 8
        Seconds between the end of a scan and the start of the next.
    """

    table: memwal.Table
    states: PlausibleStates
    started: float
    scan_interval: float = 8.0
    samples: list[Sample] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _pending: Future[Scan] | None = None
    _next_scan: float = 0.0

    def sample(self, progress: list[Progress]) -> Sample:
        """Read the table's status, and start a scan if one is due."""
        status = self.table.status()
        regions = {region.region_id: region for region in status.regions}
        ordered = [regions.get(str(region_id)) for region_id in REGION_IDS]
        sample = Sample(
            seconds=time.time() - self.started,
            version=status.version,
            backlog_rows=tuple(region.backlog_rows if region else 0 for region in ordered),
            backlog_generations=tuple(
                region.backlog_generations if region else 0 for region in ordered
            ),
            index_lag=sum(index.generations for index in status.indexes),
            retained=sum(region.retained_generations for region in status.regions),
            writes=sum(one.writes for one in progress),
        )
        self.samples.append(sample)
        self._take_scan()
        if self._pending is None and time.time() >= self._next_scan:
            self._pending = self._pool.submit(self._scan)
        return sample

    def finish_scan(self) -> None:
        """Wait for a running scan."""
        if self._pending is not None:
            wait([self._pending])
            self._take_scan()

    def problems(self) -> list[str]:
        """Return impossible results of scans."""
        return [
            f"scan at {scan.seconds:.0f} s: {problem}"
            for scan in self.scans
            for problem in scan.look.problems
        ]

    def _take_scan(self) -> None:
        if self._pending is not None and self._pending.done():
            self.scans.append(self._pending.result())
            self._pending = None
            self._next_scan = time.time() + self.scan_interval

    def _scan(self) -> Scan:
        begin = time.time()
        rows = self.table.scan(columns=COLUMNS).to_table()
        took = time.time() - begin
        return Scan(seconds=begin - self.started, took=took, look=self.states.check(rows))
