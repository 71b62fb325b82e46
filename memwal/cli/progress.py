"""Progress of a job that runs in this process, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from memwal.maintenance.results import TaskRunner, run_in_process


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
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Elapsed(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        bar = bars.add_task(doing, total=None)

        def run(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
            bars.reset(bar, total=len(tasks))

            def step(task: Any) -> Any:
                result = function(task)
                bars.advance(bar)
                return result

            return run_in_process(tasks, step)

        yield run
