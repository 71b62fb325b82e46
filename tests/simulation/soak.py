"""Random worlds for as long as you like, on all cores: ``make soak MINUTES=60``.

It prints how many worlds, steps, faults of each kind, acknowledged writes and checked reads there
were, and of each world that broke a promise its seed and how to explore it again. The exit code is
1 when there was one.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table
from simulation.explore import STEPS, BrokenPromise, Explored, explore

MOST_SHOWN = 5


def main() -> None:
    """Soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each world")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--first-seed", type=int, default=secrets.randbits(40))
    arguments = parser.parse_args()
    console = Console()
    ended = time.monotonic() + arguments.minutes * 60
    explored: list[Explored] = []
    broken: list[str] = []
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("worlds", total=arguments.minutes * 60)
        for outcome in _outcomes(arguments, ended):
            if isinstance(outcome, Explored):
                explored.append(outcome)
            else:
                broken.append(outcome)
                console.print(outcome, highlight=False, markup=False)
            left = max(ended - time.monotonic(), 0)
            name = f"{len(explored):,} worlds, {len(broken)} broken"
            bar.update(task, completed=arguments.minutes * 60 - left, description=name)
            if len(broken) >= MOST_SHOWN:
                break
    console.print(_table(explored, first=arguments.first_seed))
    if broken:
        sys.exit(f"{len(broken)} worlds broke a promise; see above")


def _outcomes(arguments: argparse.Namespace, ended: float) -> Iterator[Explored | str]:
    seed = arguments.first_seed
    with ProcessPoolExecutor(arguments.processes) as pool:
        running: set[Future[Explored | str]] = set()
        while running or time.monotonic() < ended:
            while len(running) < 2 * arguments.processes and time.monotonic() < ended:
                running.add(pool.submit(_one, seed, arguments.steps))
                seed += 1
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def _one(seed: int, steps: int) -> Explored | str:
    try:
        return explore(seed, steps)
    except BrokenPromise as broken:
        return str(broken)


def _table(explored: list[Explored], *, first: int) -> Table:
    faults: Counter[str] = Counter()
    for world in explored:
        faults += world.faults
    table = Table("what", "how many", title=f"worlds from seed {first}")
    table.add_row("worlds", f"{len(explored):,}")
    table.add_row("steps", f"{sum(world.steps for world in explored):,}")
    table.add_row("hours of their time", f"{sum(world.seconds for world in explored) / 3600:,.0f}")
    table.add_row("acknowledged writes", f"{sum(world.acknowledged for world in explored):,}")
    table.add_row("reads and looks checked", f"{sum(world.reads for world in explored):,}")
    for name, count in sorted(faults.items()):
        table.add_row(f"faults: {name}", f"{count:,}")
    return table


if __name__ == "__main__":
    main()
