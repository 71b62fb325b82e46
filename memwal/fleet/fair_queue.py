"""Fair choice of the next job, when many tables share few workers.

The job with the highest pressure goes first, and a waiting job gains with every choice that passes
it over. Since pressure is capped, no job starves: after :data:`MAX_PASSED_OVER` choices no newer
job overtakes it, and each job that was already waiting overtakes it at most once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from memwal.jobs.due import JOBS, Due

_PRESSURE_CAP = 8.0
_CRITICAL = 1.0
_PRIORITIES = 100.0
# Difference between the lowest and the highest urgency.
_SPREAD = 1.0 + _CRITICAL + 1.0
_STEP = 0.1
# Less than this is not worth a commit.
_MIN_BYTES = 1 << 20
# Number of choices in which newer jobs can overtake a waiting job.
MAX_PASSED_OVER = round(_SPREAD / _STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueJob:
    """A job of a managed table that is due."""

    table: str
    job: str
    due: Due
    priority: int = 1  # of the table, 1 to 100
    bytes: int = 0  # bytes that a merge would take in; 0 for other jobs

    @property
    def urgency(self) -> float:
        """How hard it presses, from 0 to 3."""
        pressure = min(max(self.due.pressure, 0.0), _PRESSURE_CAP) / _PRESSURE_CAP
        return pressure + _CRITICAL * self.due.critical + self.priority / _PRIORITIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A job that is to run now."""

    due_job: DueJob
    run_bytes: int | None  # bytes that it may take in; None for any


@dataclass(slots=True)
class FairQueue:
    """Queue that counts for each job how many choices have passed it over."""

    _waited: dict[tuple[str, str], int] = field(default_factory=dict)

    def waited(self, table: str, job: str) -> int:
        """Return how many choices passed a job over since it became due or was last chosen."""
        return self._waited.get((table, job), 0)

    def choose(
        self, due_jobs: Collection[DueJob], *, slots: int, remaining_bytes: int | None = None
    ) -> list[Choice]:
        """Choose up to ``slots`` jobs to run now, at most one of each table.

        No job may be running on the tables of the due jobs. ``remaining_bytes`` limits what the
        chosen merges take in together: the first merge gets what it needs, the next one what
        remains.
        """
        chosen: list[Choice] = []
        tables: set[str] = set()
        remaining = remaining_bytes
        for due_job in sorted(due_jobs, key=self._order):
            if len(chosen) == slots:
                break
            if due_job.table in tables:
                continue
            run_bytes: int | None = None
            if due_job.job == "merge" and remaining is not None:
                if remaining < _MIN_BYTES:
                    continue
                run_bytes = remaining
                remaining -= min(max(due_job.bytes, _MIN_BYTES), remaining)
            tables.add(due_job.table)
            chosen.append(Choice(due_job=due_job, run_bytes=run_bytes))
        if chosen:
            self._age(due_jobs, chosen)
        return chosen

    def forget(self, table: str, jobs: Iterable[str]) -> None:
        """Reset the waiting count of jobs that are no longer due."""
        for job in jobs:
            self._waited.pop((table, job), None)

    def _order(self, due_job: DueJob) -> tuple[float, int, str]:
        waited = self.waited(due_job.table, due_job.job)
        score = due_job.urgency + _STEP * waited
        return -score, JOBS.index(due_job.job), due_job.table

    def _age(self, due_jobs: Iterable[DueJob], chosen: Iterable[Choice]) -> None:
        for due_job in due_jobs:
            key = due_job.table, due_job.job
            self._waited[key] = self._waited.get(key, 0) + 1
        for choice in chosen:
            self._waited.pop((choice.due_job.table, choice.due_job.job), None)
