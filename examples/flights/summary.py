"""Results of a run: summary.json and summary.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compare import Comparison
from run import Progress, Settings, write_json
from upkeep import UpkeepJob, UpkeepRun
from watch import Sample, Scan


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Results of one run.

    Attributes
    ----------
    settings : Settings
        Its settings.
    flights : int
        Flights of the year that took part.
    phases : dict of str to float
        Seconds of each phase, in order.
    producers : sequence of Progress
        What each producer wrote.
    written : int
        Writes since this start; fewer than all if the run was resumed.
    kills : int
        Producers ended with SIGKILL and restarted.
    generations : int
        MemTables that became generations, over all regions.
    commits : int
        Versions of the base table that the run made.
    runs, jobs, samples, scans, comparisons
        Maintenance of the table, and observations of it.
    run_name : str
        Word for rounds of maintenance.
    problems : tuple of str
        Reasons why the run failed.
    """

    settings: Settings
    flights: int
    phases: dict[str, float]
    producers: tuple[Progress, ...]
    written: int
    kills: int
    generations: int
    commits: int
    runs: tuple[UpkeepRun, ...]
    jobs: tuple[UpkeepJob, ...]
    run_name: str
    samples: tuple[Sample, ...]
    scans: tuple[Scan, ...]
    comparisons: tuple[Comparison, ...]
    problems: tuple[str, ...] = field(default=())

    @property
    def writes(self) -> int:
        """Return acknowledged upserts plus deletes."""
        return sum(one.writes for one in self.producers)

    @property
    def writes_per_second(self) -> float:
        """Return the rate over the whole time of the producers, with start and restart."""
        return self.written / self.phases["writing"]

    def figures(self) -> dict[str, Any]:
        """Return the figures of the run."""
        return {
            "flights": self.flights,
            "writes": self.writes,
            "upserts": sum(one.upserts for one in self.producers),
            "deletes": sum(one.deletes for one in self.producers),
            "durable_calls": sum(one.calls for one in self.producers),
            "writes_per_second": round(self.writes_per_second),
            "milliseconds_per_call": round(1000 * self._seconds_in_calls(), 2),
            "producers_killed": self.kills,
            "generations": self.generations,
            "base_table_commits": self.commits,
            "merge_jobs": sum(job.result.job == "merge" for job in self.jobs),
            "maintenance_runs": len(self.runs),
            "maintenance_runs_failed": sum(run.failed for run in self.runs),
            "scans": len(self.scans),
            "largest_backlog_rows": max(
                (sum(sample.backlog_rows) for sample in self.samples), default=0
            ),
        }

    def write(self, folder: Path) -> None:
        """Write summary.json and summary.md."""
        write_json(
            folder / "summary.json",
            {
                "problems": list(self.problems),
                "settings": asdict(self.settings),
                "figures": self.figures(),
                "seconds": {name: round(taken, 2) for name, taken in self.phases.items()},
                "comparisons": [comparison.to_dict() for comparison in self.comparisons],
                "producers": [asdict(one) for one in self.producers],
                "runs": [asdict(run) for run in self.runs],
                "jobs": [asdict(job) for job in self.jobs],
                "scans": [asdict(scan) for scan in self.scans],
                "samples": [asdict(sample) for sample in self.samples],
            },
        )
        (folder / "summary.md").write_text("\n".join(self._markdown()) + "\n")

    def _pace(self) -> str:
        seconds = self.settings.seconds
        return (
            f"written over {seconds:.0f} s" if seconds else "written as fast as the table took it"
        )

    def _seconds_in_calls(self) -> float:
        calls = sum(one.calls for one in self.producers)
        return sum(one.seconds for one in self.producers) / max(calls, 1)

    def _markdown(self) -> Iterator[str]:
        keeper = "Airflow" if self.settings.airflow else "a thread of the demo"
        yield "# A year of flights"
        yield ""
        yield (
            f"{self.flights:,} flights, {self.settings.producers} producers, "
            f"maintained by {keeper}, {self._pace()}. "
            f"Result: **{'differs' if self.problems else 'equal'}**."
        )
        yield ""
        yield "![backlog over time](backlog.png)"
        if self.problems:
            yield from ("", "## Problems", "")
            yield from (f"- {problem}" for problem in self.problems)
        yield from ("", "## Figures", "")
        figures = ((name.replace("_", " "), f"{value:,}") for name, value in self.figures().items())
        yield from _table(("what", "how much"), figures)
        yield from ("", "## Against the truth", "")
        yield from _table(
            ("reader", "rows", "missing", "unexpected", "twice", "columns that differ", "seconds"),
            (
                (
                    one.reader,
                    f"{one.rows:,}",
                    f"{one.missing:,}",
                    f"{one.unexpected:,}",
                    f"{one.duplicates:,}",
                    ", ".join(one.columns) or "none",
                    f"{one.seconds:.1f}",
                )
                for one in self.comparisons
            ),
        )
        yield from ("", "## Time", "")
        yield from _table(
            ("part", "seconds"), ((name, f"{taken:.1f}") for name, taken in self.phases.items())
        )
        yield from ("", "## Jobs", "")
        yield from _table(
            ("job", "runs", "seconds", "with their start", "commits", "counted"),
            self._jobs_by_kind(),
        )

    def _jobs_by_kind(self) -> Iterator[tuple[str, ...]]:
        for kind in dict.fromkeys(job.result.job for job in self.jobs):
            jobs = [job for job in self.jobs if job.result.job == kind]
            counted: dict[str, int] = {}
            for job in jobs:
                for name, value in job.result.metrics.items():
                    counted[name] = counted.get(name, 0) + value
            yield (
                kind,
                f"{len(jobs)}",
                f"{sum(job.result.seconds for job in jobs):.1f}",
                f"{sum(job.ended - job.started for job in jobs):.1f}",
                f"{sum(job.result.commits for job in jobs)}",
                ", ".join(f"{name} {value:,}" for name, value in counted.items()),
            )


def _table(names: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    header = list(names)
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
