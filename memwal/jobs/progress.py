"""Progress of a job, for a callable of the caller or for a bar in the terminal.

A job counts the steps of its tasks in this process. Tasks that a task runner sends to other
machines count when the runner returns; Spark, for example, shows the progress of its tasks itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from memwal.boundary.text import size
from memwal.errors import ArgumentTypeError
from memwal.util.memory import bound_free_memory
from memwal.util.optional_deps import requires_extra

Task = TypeVar("Task")
Result = TypeVar("Result")


class Unit(StrEnum):
    """Unit of the progress of a step."""

    BYTES = "bytes"
    ROWS = "rows"
    REGIONS = "regions"
    GENERATIONS = "generations"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """Progress of one step of a job."""

    job: str
    """Name of the job, as in its result: ``merge``, ``index`` ..."""
    step: str
    """Name of the step: ``merging``, ``indexing`` ..."""
    done: int
    """Amount that is done; at most ``total``."""
    total: int
    """Amount of work; other processes that do a part of it can change it between two steps."""
    unit: Unit
    """Unit of both numbers. Bytes of a merge are those in memory, of a copy those on storage."""

    def __str__(self) -> str:
        if self.unit is Unit.BYTES:
            return f"{self.step} {size(self.done)} of {size(self.total)}"
        return f"{self.step} {self.done} of {self.total} {self.unit}"


Report = Callable[[JobProgress], None]
ProgressOption = Report | bool | None
"""Value of the option ``progress``: called at each step, or True for a bar on stderr."""


@contextmanager
def reporting(progress: ProgressOption) -> Iterator[Report]:
    """Yield the function that a job calls at each step.

    A bar is there while the block runs, on a terminal and in a notebook only. MissingExtraError is
    raised if it is requested and the package rich is not installed.
    """
    if callable(progress):
        yield progress
    elif progress is True:
        with _bar() as report:
            yield report
    elif progress is None or progress is False:
        yield lambda progress: None
    else:
        raise ArgumentTypeError(
            f"progress is a {type(progress).__name__}; pass True for a bar, or a function that "
            "takes a JobProgress"
        )


class Meter:
    """Counts the work done of one step. Thread-safe; a copy that is sent elsewhere counts nothing.

    ``report`` is called at once, and for each amount that is done.
    """

    def __init__(self, report: Report, *, job: str, step: str, unit: Unit, total: int) -> None:
        self._report = report
        self._progress = JobProgress(job=job, step=step, done=0, total=total, unit=unit)
        # Held during the report as well, so that reports never go back.
        self._lock = threading.Lock()
        self.advance(0)

    def advance(self, amount: int) -> None:
        """Add an amount; the surplus above the total does not count."""
        with self._lock:
            done = min(self._progress.done + amount, self._progress.total)
            self._progress = replace(self._progress, done=done)
            self._report(self._progress)

    def finish(self) -> None:
        """Count all as done, if it is not."""
        if self._progress.done < self._progress.total:
            self.advance(self._progress.total)

    def __reduce__(self) -> tuple[Callable[[], Meter], tuple[()]]:
        return (_no_meter, ())


def _no_meter() -> Meter:
    return NO_METER


NO_METER: Final = Meter(lambda progress: None, job="", step="", unit=Unit.ROWS, total=0)
"""Meter of tasks that run on another machine, whose reports are not shown."""


class _TaskOptions(Protocol):
    @property
    def run(self) -> Callable[[Sequence[Any], Callable[[Any], Any]], list[Any]]: ...

    @property
    def progress(self) -> ProgressOption: ...


def run_tasks(
    options: _TaskOptions,
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    *,
    job: str,
    step: str,
    unit: Unit,
) -> list[Result]:
    """Run tasks on the runner of the options, and report the rows or regions of each that is done.

    ``unit`` tells which of them the tasks have.
    """
    total = sum(_amount(task, unit) for task in tasks)
    with reporting(options.progress) as report:
        meter = Meter(report, job=job, step=step, unit=unit, total=total)
        results = options.run(tasks, partial(_metered, function, meter, unit)) if tasks else []
        meter.finish()
    return results


def _metered(function: Callable[[Task], Result], meter: Meter, unit: Unit, task: Task) -> Result:
    # In the process of the worker.
    bound_free_memory()
    result = function(task)
    meter.advance(_amount(task, unit))
    return result


def _amount(task: Any, unit: Unit) -> int:
    return int(task.rows) if unit is Unit.ROWS else len(task.regions)


@contextmanager
def _bar() -> Iterator[Report]:
    with requires_extra("cli"):
        from rich import progress as rich
        from rich.console import Console

    console = Console(stderr=True)
    bars = rich.Progress(
        rich.SpinnerColumn(),
        rich.BarColumn(),
        rich.TextColumn("{task.description}", markup=False),
        rich.TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (console.is_terminal or console.is_jupyter),
    )
    with bars:
        bar = bars.add_task("", total=None)

        def show(progress: JobProgress) -> None:
            bars.update(
                bar, description=str(progress), completed=progress.done, total=progress.total
            )

        yield show
