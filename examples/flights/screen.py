"""Terminal output of the demo while it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from run import Progress
from upkeep import UpkeepRun
from watch import Sample, Scan

STYLES = {"success": "green", "failed": "bold red", "running": "cyan", "queued": "yellow"}
RECENT_RUNS = 6


class Screen:
    """Bars and tables that follow the run.

    Without a terminal, a line is printed when a tenth of all writes was sent, when the base table
    has a new version, and when a round of maintenance began or ended.
    """

    def __init__(self, console: Console, *, run_name: str) -> None:
        self._console = console
        self._run_name = run_name
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._told = False
        self._state: tuple[object, ...] = ()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(
        self,
        *,
        progress: Sequence[Progress],
        sample: Sample,
        runs: Sequence[UpkeepRun],
        scans: Sequence[Scan],
        where: str,
    ) -> None:
        """Show the newest state, and once the address of the maintenance."""
        if where and not self._told:
            self._told = True
            self._console.print(where, soft_wrap=True, markup=False)
        if self._console.is_terminal:
            parts = [_producers(progress), _regions(sample), _runs(runs, self._run_name)]
            self._live.update(Group(*parts, _scans(scans)))
            return
        done = sum(one.acknowledged for one in progress)
        total = max(sum(one.batches for one in progress), 1)
        state = (10 * done // total, sample.version, _count(runs))
        if state != self._state:
            self._state = state
            self._console.print(
                f"{sample.seconds:5.0f} s  {done / total:4.0%} sent, "
                f"{sample.writes:,} writes, backlog {sum(sample.backlog_rows):,} rows in "
                f"{sum(sample.backlog_generations)} generations, "
                f"{self._run_name}: {_count(runs)}, {len(scans)} scans",
                soft_wrap=True,
            )


def _producers(progress: Sequence[Progress]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for number, one in enumerate(progress):
        grid.add_row(
            f"producer {number}",
            ProgressBar(total=max(one.batches, 1), completed=one.acknowledged, width=40),
            f"{one.writes:,} writes",
            "flushed" if one.done else f"started {one.starts} times" if one.starts > 1 else "",
        )
    return grid


def _regions(sample: Sample) -> RenderableType:
    table = Table(title="backlog", title_justify="left", box=None, padding=(0, 2))
    table.add_column("region", justify="right")
    table.add_column("generations", justify="right")
    table.add_column("rows", justify="right")
    table.add_column("")
    longest = max(*sample.backlog_rows, 1)
    regions = zip(sample.backlog_generations, sample.backlog_rows, strict=True)
    for number, (generations, rows) in enumerate(regions):
        bar = Text("▇" * round(24 * rows / longest), style="magenta")
        table.add_row(str(number), str(generations), f"{rows:,}", bar)
    base = (
        f"base table: version {sample.version}, the key index is {sample.index_lag} generations "
        f"behind, {sample.retained} merged generations still stored"
    )
    return Group(table, base)


def _runs(runs: Sequence[UpkeepRun], name: str) -> RenderableType:
    line = Text(f"{name}: {_count(runs)}  ")
    for run in runs[-RECENT_RUNS:]:
        seconds = (run.ended or time.time()) - run.started
        line.append(f" {run.state} {seconds:.0f} s ", style=STYLES.get(run.state, ""))
    return line


def _scans(scans: Sequence[Scan]) -> RenderableType:
    problems = sum(len(scan.look.problems) for scan in scans)
    last = f", the last saw {scans[-1].look.rows:,} rows in {scans[-1].took:.1f} s" if scans else ""
    return Text(
        f"scans: {len(scans)}{last}; {problems or 'no'} problems",
        style="bold red" if problems else "",
    )


def _count(runs: Sequence[UpkeepRun]) -> str:
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.state] = counts.get(run.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "none yet"
