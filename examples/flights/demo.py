"""A year of flights through a MemWAL table, with Airflow and Spark maintaining it.

    python examples/flights/demo.py [--rows N] [--no-airflow] ...

Producers write the life of every flight that left New York City in 2013: about a million upserts
and deletes in order of time. Meanwhile the table's DAG merges, indexes, snapshots and collects. At
the end three readers must agree with the truth in every row and column; else the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

# Lance logs an error about its own MemWAL index at every merge_insert, and reads this on import.
os.environ.setdefault("LANCE_LOG", "error,lance::index=off")

import chart
import pyarrow as pa
import readers
from compare import Comparison
from fleet import Fleet
from flightdata import KEY, SCHEMA, truth
from plausible import PlausibleStates
from rich.console import Console
from run import KEY_INDEX, REGION_SPEC, REGIONS, Progress, Settings, regions_of_flights
from screen import Screen
from summary import Summary
from upkeep import InProcessUpkeep, Upkeep
from watch import Watch

import memwal
from memwal.errors import TableSetupError

WHOLE_YEAR = 336_776
WRITES_PER_FLIGHT = 3
SAMPLE_SECONDS = 2.0
PAUSE_AT = 0.75
"""Part of the stream after which no new round of maintenance begins, so that the readers that are
compared at the end have generations to merge."""
STREAM_SECONDS = 200.0
"""Time for the stream of the whole year with Airflow, so that its DAG runs more than once."""
SHORTEST_STREAM_SECONDS = 60.0
"""The same for few flights: Airflow needs the first half to start."""
GENERATIONS = 25
"""Generations that each region flushes, about."""
KILL_AT = 0.4
"""Part of its stream after which a producer is killed."""


@dataclass(slots=True)
class Demo:
    """One run, from the first write to the last comparison.

    Parameters
    ----------
    folder : Path
        Where everything of the run lies.
    settings : Settings
        The settings in that folder.
    kill : bool
        Whether to kill the first producer on its way and start it again.
    console : Console
        Where to show what happens.
    """

    folder: Path
    settings: Settings
    kill: bool
    console: Console
    started: float = field(default_factory=time.time)
    phases: dict[str, float] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)

    def run(self) -> Summary:
        """Run it all, and write the summary into the folder."""
        with self._phase("reading the data set"):
            stream = self.settings.stream()
            expected = truth(stream.flights)
        with self._phase("creating the table"):
            table = open_or_create(self.settings)
            first_version = table.status().version
        self._tell(
            f"{len(stream.flights):,} flights, {len(stream):,} writes in {stream.batches:,} batches"
        )
        states = PlausibleStates(stream, regions_of_flights(stream))
        watch = Watch(table=table, states=states, started=self.started)
        fleet = Fleet(self.folder, self.settings)
        written_before = sum(one.writes for one in fleet.progress())
        upkeep = make_upkeep(self.folder, self.settings)
        try:
            with Screen(self.console, run_name=upkeep.run_name) as screen:
                self._write(fleet, upkeep, watch, screen)
            watch.sample(fleet.progress())
            self._compare(table, expected, "memwal, before the checkpoint", readers.with_memwal)
            self._compare(table, expected, "pylance, before the checkpoint", readers.with_pylance)
            watch.sample(fleet.progress())
            self._mark("checkpoint")
            with self._phase("checkpoint"):
                upkeep.checkpoint()
            watch.sample(fleet.progress())
            self._compare(table, expected, "memwal, after the checkpoint", readers.with_memwal)
            self._compare(table, expected, "base table alone", readers.base_alone)
            watch.finish_scan()
            runs, jobs = tuple(upkeep.runs()), tuple(upkeep.jobs())
        finally:
            fleet.stop()
            with self._phase("stopping"):
                upkeep.close()
        status = table.status()
        failed = [f"{run.name} of the {upkeep.run_name} failed" for run in runs if run.failed]
        summary = Summary(
            settings=self.settings,
            flights=len(stream.flights),
            phases=self.phases,
            producers=tuple(fleet.progress()),
            written=sum(one.writes for one in fleet.progress()) - written_before,
            kills=fleet.kills,
            generations=sum(region.current_generation - 1 for region in status.regions),
            commits=status.version - first_version,
            runs=runs,
            jobs=jobs,
            run_name=upkeep.run_name,
            samples=tuple(watch.samples),
            scans=tuple(watch.scans),
            comparisons=tuple(self.comparisons),
            problems=(*self._differences(), *watch.problems(), *failed),
        )
        summary.write(self.folder)
        chart.draw(
            self.folder / "backlog.png",
            title=f"{summary.writes:,} writes by {self.settings.producers} producers",
            samples=watch.samples,
            runs=runs,
            jobs=jobs,
            run_name=upkeep.run_name,
            started=self.started,
            marks=self.marks,
        )
        return summary

    def _write(self, fleet: Fleet, upkeep: Upkeep, watch: Watch, screen: Screen) -> None:
        """Let the producers write everything while the table is maintained and watched."""

        def look() -> list[Progress]:
            progress = fleet.progress()
            sample = watch.sample(progress)
            screen.show(
                progress=progress,
                sample=sample,
                runs=upkeep.runs(),
                scans=watch.scans,
                where=upkeep.where(),
            )
            return progress

        with self._phase("writing"):
            upkeep.start()
            fleet.start()
            while fleet.running():
                progress = look()
                batches = sum(one.batches for one in progress)
                if sum(one.acknowledged for one in progress) >= PAUSE_AT * batches > 0:
                    upkeep.pause()
                if self.kill and progress[0].acknowledged >= KILL_AT * progress[0].batches > 0:
                    self.kill = False
                    self._mark("producer killed")
                    fleet.kill(0)
                    fleet.start(0)
                time.sleep(SAMPLE_SECONDS)
        self._mark("all flushed")
        with self._phase(f"the last of the {upkeep.run_name}"):
            upkeep.pause()
            while not upkeep.idle():
                look()
                time.sleep(SAMPLE_SECONDS)

    def _compare(
        self,
        table: memwal.Table,
        expected: pa.Table,
        reader: str,
        read: Callable[[memwal.Table], pa.Table],
    ) -> None:
        with self._phase("comparing"):
            result = readers.read_and_compare(table, expected, reader=reader, read=read)
        self.comparisons.append(result)
        verdict = "equal" if result.equal else "DIFFERS"
        self._tell(f"{reader}: {result.rows:,} rows in {result.seconds:.1f} s, {verdict}")

    def _differences(self) -> list[str]:
        return [
            f"{comparison.reader}: {example}"
            for comparison in self.comparisons
            if not comparison.equal
            for example in comparison.examples or (f"{comparison.duplicates} keys twice",)
        ]

    def _tell(self, line: str) -> None:
        self.console.print(f"{time.time() - self.started:5.0f} s  {line}", soft_wrap=True)

    def _mark(self, name: str) -> None:
        self.marks[name] = time.time() - self.started

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - begin


def open_or_create(settings: Settings) -> memwal.Table:
    """Open the table; where there is none, make an empty one with an index on its key."""
    try:
        return settings.open_table()
    except TableSetupError:
        return memwal.create(
            settings.table,
            SCHEMA,
            primary_key=[KEY],
            region_spec=REGION_SPEC,
            maintained_indexes=[KEY_INDEX],
            storage_options=settings.storage_options(),
        )


def make_upkeep(folder: Path, settings: Settings) -> Upkeep:
    """Whoever maintains the table of this run."""
    if not settings.airflow:
        return InProcessUpkeep(settings.open_table())
    # Airflow's client is not needed for a run without it.
    from airflow_upkeep import AirflowUpkeep

    return AirflowUpkeep(settings, folder)


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
        f"(default: {STREAM_SECONDS:.0f} for the whole year, without Airflow 0)",
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
    """The folder and the settings of a new run, or of the one that goes on."""
    if options.resume:
        folder = options.resume.resolve()
        return folder, Settings.of(folder)
    folder = options.output or Path("demo-output", time.strftime("%Y-%m-%dT%H-%M-%S"))
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    flights = min(options.rows or WHOLE_YEAR, WHOLE_YEAR)
    seconds = max(SHORTEST_STREAM_SECONDS, STREAM_SECONDS * flights / WHOLE_YEAR)
    if options.no_airflow:
        seconds = 0.0
    settings = Settings(
        table=f"{(options.storage or str(folder)).rstrip('/')}/flights.lance",
        rows=options.rows,
        producers=options.producers,
        airflow=not options.no_airflow,
        seconds=seconds if options.seconds is None else options.seconds,
        memtable_rows=max(WRITES_PER_FLIGHT * flights // (REGIONS * GENERATIONS), 100),
        storage_options_file=str(options.storage_options.resolve())
        if options.storage_options
        else None,
    )
    settings.save(folder)
    return folder, settings


def main(arguments: list[str]) -> int:
    """Run the demo; 0 when everything agreed, 1 when not."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder, settings = prepare(options)
    console = Console()
    demo = Demo(folder=folder, settings=settings, kill=not options.no_kill, console=console)
    try:
        summary = demo.run()
    except (Exception, KeyboardInterrupt):
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
