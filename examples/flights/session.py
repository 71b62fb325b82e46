"""One run of the demo, from the first write to the last comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import chart
import pyarrow as pa
import readers
from compare import Comparison
from fleet import Fleet
from flightdata import KEY, SCHEMA, truth
from plausible import PlausibleStates
from rich.console import Console
from run import KEY_INDEX, REGION_SPEC, Progress, Settings, regions_of_flights
from screen import Screen
from summary import Summary
from upkeep import InProcessUpkeep, Upkeep
from watch import Watch

import memwal
from memwal.errors import TableSetupError

SAMPLE_SECONDS = 1.5
PAUSE_AT = 0.75
"""Part of the stream after which no new round of maintenance begins, so that the readers that are
compared at the end have generations to merge."""
KILL_AT = 0.4
"""Part of its stream after which a producer is killed."""


@dataclass(slots=True)
class Session:
    """One run, from the first write to the last comparison.

    Parameters
    ----------
    folder : Path
        Folder with all files of the run.
    settings : Settings
        The settings in that folder.
    kill : bool
        Whether to kill the first producer during the run and restart it.
    console : Console
        Output.
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
        """Run everything, and write the summary into the folder."""
        with self._phase("creating the table"):
            table = open_or_create(self.settings)
            first_version = table.status().version
        fleet = Fleet(self.folder, self.settings)
        written_before = sum(one.writes for one in fleet.progress())
        with ExitStack() as running:
            running.callback(fleet.stop)
            with self._phase("writing", text=""):
                # Airflow takes half a minute to start: until then the backlog grows.
                fleet.start()
                with self._phase("starting the maintenance"):
                    upkeep = make_upkeep(self.folder, self.settings)
                    running.callback(upkeep.close)
                    upkeep.start()
                with self._phase("reading the data set"):
                    stream = self.settings.stream()
                    expected = truth(stream.flights)
                    states = PlausibleStates(stream, regions_of_flights(stream))
            self._tell(
                f"{len(stream.flights):,} flights, {len(stream):,} writes in "
                f"{stream.batches:,} batches"
            )
            watch = Watch(table=table, states=states, started=self.started)
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
            with self._phase("the last scan"):
                watch.finish_scan()
            runs, jobs = tuple(upkeep.runs()), tuple(upkeep.jobs())
            with self._phase("stopping"):
                running.close()
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
        with self._phase("drawing the picture"):
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

        with self._phase("writing", text=""):
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
        last = f"the last of the {upkeep.run_name}"
        self._tell(f"all is written; waiting for {last}")
        with self._phase(last, text=""):
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
        with self._phase("comparing", text=f"comparing: {reader}"):
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
    def _phase(self, name: str, *, text: str | None = None) -> Iterator[None]:
        """Time a part of the run, and tell ``text``, by default its name; "" if a screen does."""
        begin = time.monotonic()
        text = name if text is None else text
        if text:
            self._tell(text)
        try:
            with self.console.status(text) if text else nullcontext():
                yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - begin


def open_or_create(settings: Settings) -> memwal.Table:
    """Open the table; if it does not exist, create it empty, with an index on its key."""
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
    """Create the maintenance of this run."""
    if not settings.airflow:
        return InProcessUpkeep(settings.open_table())
    # A run without Airflow needs no client of Airflow.
    from airflow_upkeep import AirflowUpkeep

    return AirflowUpkeep(settings, folder)
