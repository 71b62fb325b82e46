"""A year of flights through a MemWAL table, maintained by Airflow and Spark.

    python examples/flights/demo.py [--rows N] [--no-airflow] ...

Producers write the history of every flight that left New York City in 2013: about a million upserts
and deletes in order of time. Meanwhile the table's DAG merges, indexes, snapshots and collects. At
the end three readers must agree with the data set in every row and column; else the exit code is 1.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from itertools import count
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from fleet import ProducerFailedError
from rich.console import Console
from run import REGIONS, Settings
from session import Session

from memwal import MemWalError

WHOLE_YEAR = 336_776
WRITES_PER_FLIGHT = 3
STREAM_SECONDS = 45.0
"""Time for the stream with Airflow, which starts meanwhile, and then merges while rows arrive."""
INTERRUPTED = 130
"""Exit code after ^C or SIGTERM, as of a shell."""
GENERATIONS = 25
"""Generations that each region flushes of a whole year, about."""
SMALLEST_MEMTABLE = 1_000
"""Rows of a generation, at least: those of few flights would be tiny."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="A year of flights through a MemWAL table, compared with the truth at the end."
    )
    parser.add_argument(
        "--rows", type=int, help=f"flights, the earliest of 2013 (default: all {WHOLE_YEAR:,})"
    )
    parser.add_argument(
        "--producers", type=int, default=3, help="processes that write (default: 3, at most 8)"
    )
    parser.add_argument(
        "--output", type=Path, help="folder for the run (default: demo-output/ and the time)"
    )
    parser.add_argument(
        "--storage", help="where the table goes, as a URI (default: the folder of the run)"
    )
    parser.add_argument(
        "--storage-options", type=Path, help="JSON file with the options that reach the storage"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="spread the stream over this time; 0 for as fast as the table takes it "
        f"(default: {STREAM_SECONDS:.0f}, without Airflow 0)",
    )
    parser.add_argument(
        "--no-airflow",
        action="store_true",
        help="run the jobs on a thread of this process, without Airflow and Spark",
    )
    parser.add_argument(
        "--no-kill", action="store_true", help="do not kill and restart a producer on its way"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FOLDER", help="go on with an interrupted run"
    )
    options = parser.parse_args(arguments)
    if not 1 <= options.producers <= REGIONS:
        parser.error(f"--producers must be between 1 and {REGIONS}, not {options.producers}")
    if options.rows is not None and options.rows < 1:
        parser.error(f"--rows must be at least 1, not {options.rows}")
    if options.resume and not (options.resume / "settings.json").exists():
        parser.error(f"there is no run in {options.resume}: it has no settings.json")
    if options.output and (options.output / "settings.json").exists():
        parser.error(
            f"{options.output} holds a run already: go on with --resume, or choose another"
        )
    return options


def prepare(options: argparse.Namespace) -> tuple[Path, Settings]:
    """Return the folder and the settings of a new run, or of the run that is resumed."""
    if options.resume:
        folder = options.resume.resolve()
        return folder, Settings.of(folder)
    folder = options.output.resolve() if options.output else _new_folder()
    folder.mkdir(parents=True, exist_ok=True)
    flights = min(options.rows or WHOLE_YEAR, WHOLE_YEAR)
    seconds = 0.0 if options.no_airflow else STREAM_SECONDS
    settings = Settings(
        table=f"{(options.storage or str(folder)).rstrip('/')}/flights.lance",
        rows=options.rows,
        producers=options.producers,
        airflow=not options.no_airflow,
        seconds=seconds if options.seconds is None else options.seconds,
        memtable_rows=max(
            WRITES_PER_FLIGHT * flights // (REGIONS * GENERATIONS), SMALLEST_MEMTABLE
        ),
        storage_options_file=str(options.storage_options.resolve())
        if options.storage_options
        else None,
    )
    settings.save(folder)
    return folder, settings


def _new_folder() -> Path:
    """Make a folder that no other run has, also if one starts in the same second."""
    begun = Path("demo-output", time.strftime("%Y-%m-%dT%H-%M-%S")).resolve()
    folder, others = begun, count(2)
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            folder = begun.with_name(f"{begun.name}-{next(others)}")
        else:
            return folder


def main(arguments: list[str]) -> int:
    """Run the demo; returns 0 if everything agreed, 130 if it was interrupted, else 1."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    try:
        folder, settings = prepare(options)
    except OSError as error:
        console.print(f"cannot begin a run: {error}", markup=False, soft_wrap=True)
        return 1
    session = Session(folder=folder, settings=settings, kill=not options.no_kill, console=console)
    try:
        summary = session.run()
    except KeyboardInterrupt:
        console.print(f"interrupted; go on with --resume {folder}", markup=False, soft_wrap=True)
        return INTERRUPTED
    except (MemWalError, ProducerFailedError, OSError) as error:
        # Such as a full disk.
        console.print(f"stopped: {error}", style="red", markup=False, soft_wrap=True)
        console.print(f"go on with --resume {folder}", markup=False, soft_wrap=True)
        return 1
    except Exception:
        console.print(f"stopped; go on with --resume {folder}", markup=False, soft_wrap=True)
        raise
    for problem in summary.problems:
        console.print(problem, style="red", markup=False)
    console.print(
        f"{summary.writes:,} writes at {summary.writes_per_second:,.0f}/s, "
        f"{summary.generations} generations, {summary.commits} commits to the base table, "
        f"{summary.run_name}: {len(summary.runs)}",
        soft_wrap=True,
    )
    console.print(f"summary: {folder / 'summary.md'}", markup=False, soft_wrap=True)
    return 1 if summary.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
