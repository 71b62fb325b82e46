"""Random worlds and plays of real processes for as long as you like: ``make soak MINUTES=60``.

Worlds, and plays of each kind, get the same share of the time: worlds on all cores, plays one after
the other, since each has five to seven processes. ``PLAY=moves`` runs plays of one kind, and
``SEED=1`` begins with that seed. It prints how many there were, what they did and which faults they
had, and of each that broke a promise its seed and how to run it again. The exit code is 1 when
there was one.
"""

import argparse
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

import histories.appends
import histories.plain
import histories.run_history
import simulation.explore
from histories.run_history import PLAYS, Played, run_history
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table
from simulation.explore import STEPS, Explored, explore

MOST_SHOWN = 5
# Plays whose notes tell only how many calls there were.
COUNTED = {"plain": histories.plain.run, "appends": histories.appends.run}

Result = TypeVar("Result")


def main() -> None:
    """Soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each world")
    parser.add_argument("--seconds", type=float, default=40, help="of each history")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--first-seed", type=int, default=secrets.randbits(40))
    parser.add_argument("--only", choices=["worlds", *PLAYS, *COUNTED])
    arguments = parser.parse_args()
    kinds = ["worlds", *PLAYS, *COUNTED] if arguments.only is None else [arguments.only]
    soak = partial(
        _soak, seconds=60 * arguments.minutes / len(kinds), first_seed=arguments.first_seed
    )
    console = Console()
    broken = 0
    if "worlds" in kinds:
        world = partial(_explore, steps=arguments.steps)
        explored, wrong = soak(console, "worlds", world, processes=arguments.processes)
        console.print(_table_of_worlds(explored, first=arguments.first_seed))
        broken += wrong
    for play in [kind for kind in kinds if kind in PLAYS]:
        history = partial(_play, seconds=arguments.seconds, play=play)
        played, wrong = soak(console, f"plays of {play}", history, processes=1)
        console.print(_table_of_plays(play, played, first=arguments.first_seed))
        console.print(_line(play, played, wrong), highlight=False, soft_wrap=True)
        broken += wrong
    for name in [kind for kind in kinds if kind in COUNTED]:
        counting = partial(_play_counted, seconds=arguments.seconds, name=name)
        counted, wrong = soak(console, f"plays of {name}", counting, processes=1)
        title = f"{len(counted):,} plays of {name} from seed {arguments.first_seed}"
        sums = sum(counted, Counter())
        console.print(_table(title, {name: f"{n:,}" for name, n in sums.items()}, Counter()))
        broken += wrong
    if broken:
        sys.exit(f"{broken} broke a promise; see above")


def _explore(seed: int, *, steps: int) -> Explored | str:
    try:
        return explore(seed, steps)
    except simulation.explore.BrokenPromise as broken:
        return str(broken)


def _play(seed: int, *, seconds: float, play: str) -> Played | str:
    try:
        return run_history(seed, seconds, play=play)
    except histories.run_history.BrokenPromise as broken:
        return str(broken)


def _play_counted(seed: int, *, seconds: float, name: str) -> Counter[str] | str:
    try:
        return COUNTED[name](seed, seconds)
    except histories.plain.BrokenPromise as broken:
        return f"{name}, seed {seed}: {broken}"


def _soak(
    console: Console,
    name: str,
    one: Callable[[int], Result | str],
    *,
    seconds: float,
    first_seed: int,
    processes: int,
) -> tuple[list[Result], int]:
    """Run one after another; returns the results, and how many broke a promise."""
    ended = time.monotonic() + seconds
    results: list[Result] = []
    broken = 0
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(name, total=seconds)
        for outcome in _outcomes(one, ended, first_seed=first_seed, processes=processes):
            if isinstance(outcome, str):
                broken += 1
                console.print(outcome, highlight=False, markup=False)
            else:
                results.append(outcome)
            left = max(ended - time.monotonic(), 0)
            told = f"{len(results):,} {name}, {broken} broken"
            bar.update(task, completed=seconds - left, description=told)
            if broken >= MOST_SHOWN:
                break
    return results, broken


def _outcomes(
    one: Callable[[int], Result | str], ended: float, *, first_seed: int, processes: int
) -> Iterator[Result | str]:
    seed = first_seed
    # Lance must not be forked once it has threads.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running: set[Future[Result | str]] = set()
        while running or time.monotonic() < ended:
            while len(running) < 2 * processes and time.monotonic() < ended:
                running.add(pool.submit(one, seed))
                seed += 1
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def _table_of_worlds(explored: list[Explored], *, first: int) -> Table:
    rows = {
        "worlds": f"{len(explored):,}",
        "steps": f"{sum(world.steps for world in explored):,}",
        "hours of their time": f"{sum(world.seconds for world in explored) / 3600:,.0f}",
        "acknowledged writes": f"{sum(world.acknowledged for world in explored):,}",
        "reads and looks checked": f"{sum(world.reads for world in explored):,}",
    }
    faults = sum((world.faults for world in explored), Counter())
    return _table(f"worlds from seed {first}", rows, faults)


def _table_of_plays(play: str, played: list[Played], *, first: int) -> Table:
    rows = {
        "plays": f"{len(played):,}",
        "acknowledged writes": f"{sum(one.acknowledged for one in played):,}",
        "writes of unknown outcome": f"{sum(one.unknown for one in played):,}",
        "reads of a key": f"{sum(one.reads for one in played):,}",
        "flushes and checkpoints": f"{sum(one.bounds for one in played):,}",
        "failed calls": f"{sum(one.failures.total() for one in played):,}",
    }
    jobs = sum((one.jobs for one in played), Counter())
    rows |= {f"jobs: {name}": f"{count:,}" for name, count in sorted(jobs.items())}
    faults = sum((one.done for one in played), Counter())
    return _table(f"plays of {play} from seed {first}", rows, faults)


def _line(play: str, played: list[Played], broken: int) -> str:
    """The sums that say how much a kind of play has shown."""
    done = sum((one.done + one.jobs for one in played), Counter())

    def count(word: str) -> int:
        return sum(number for name, number in done.items() if word in name)

    sums = {
        "acknowledged calls": sum(one.calls for one in played),
        "kills": count("kills"),
        "stops": count("stops"),
        "moves": count("moves of"),
        "merges": count("merging"),
        "reads of a key": sum(one.reads for one in played),
        "violations": broken,
    }
    return f"{play}: " + ", ".join(f"{number:,} {name}" for name, number in sums.items())


def _table(title: str, rows: Mapping[str, str], faults: Counter[str]) -> Table:
    table = Table("what", "how many", title=title)
    for name, number in rows.items():
        table.add_row(name, number)
    for name, count in sorted(faults.items()):
        table.add_row(f"faults: {name}", f"{count:,}")
    return table


if __name__ == "__main__":
    main()
