"""Progress of a job that runs in this process, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from memwal.maintenance.results import TaskRunner, run_in_process

if TYPE_CHECKING:
    from rich.progress import Progress

Show = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


@contextmanager
def progress(doing: str) -> Iterator[TaskRunner]:
    """Show a bar on stderr that counts tasks, as long as stderr is a terminal.

    Parameters
    ----------
    doing : str
        What the bar is called.

    Yields
    ------
    callable
        Runs tasks one after another, and moves the bar.
    """
    with _bars() as bars:
        bar = bars.add_task(doing, total=None)

        def run(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
            bars.reset(bar, total=len(tasks))

            def step(task: Any) -> Any:
                result = function(task)
                bars.advance(bar)
                return result

            return run_in_process(tasks, step)

        yield run


@contextmanager
def counter(doing: str) -> Iterator[Show]:
    """Show a bar on stderr that is told how far the job is, as long as stderr is a terminal.

    Yields
    ------
    callable
        Moves the bar.
    """
    with _bars() as bars:
        bar = bars.add_task(doing, total=None)

        def show(doing: str, done: int, total: int) -> None:
            bars.update(bar, description=doing, completed=done, total=total)

        yield show


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Elapsed(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
