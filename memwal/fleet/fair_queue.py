"""Fair choice of the next job, when many tables share few workers.

The job with the highest pressure goes first, and a waiting job gains with every choice that passes
it over. Since pressure is capped, no job waits for ever: after :data:`LONGEST_LEAD` choices no
newcomer gets past it, and each job that was already waiting goes past it once at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from memwal.jobs.due import JOBS, Due

_PRESSURE_CAP = 8.0
_CRITICAL = 1.0
_PRIORITIES = 100.0
# From what presses least to what presses most.
_SPREAD = 1.0 + _CRITICAL + 1.0
_STEP = 0.1
# Less than this is not worth a commit.
_LEAST_BYTES = 1 << 20

LONGEST_LEAD = round(_SPREAD / _STEP)
"""So many choices something can be passed over by what came later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A job that is due.

    Attributes
    ----------
    table, job : str
        Which job of which managed table.
    due : Due
        Why, and how hard it presses.
    priority : int, default 1
        Of the table: 1 to 100.
    bytes : int, default 0
        What it would take in; merges only.
    """

    table: str
    job: str
    due: Due
    priority: int = 1
    bytes: int = 0

    @property
    def urgency(self) -> float:
        """How hard it presses, from 0 to 3."""
        pressure = min(max(self.due.pressure, 0.0), _PRESSURE_CAP) / _PRESSURE_CAP
        return pressure + _CRITICAL * self.due.critical + self.priority / _PRIORITIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A job that is to be run now, and how many bytes it may take in; None for any."""

    candidate: Candidate
    run_bytes: int | None


@dataclass(slots=True)
class Queue:
    """How long each job has waited, in choices."""

    _waited: dict[tuple[str, str], int] = field(default_factory=dict)

    def waited(self, table: str, job: str) -> int:
        """How many choices have passed a job over since it was due, or chosen."""
        return self._waited.get((table, job), 0)

    def choose(
        self, candidates: Collection[Candidate], *, slots: int, bytes_left: int | None = None
    ) -> list[Choice]:
        """Choose what is run now: one job of a table at most.

        Parameters
        ----------
        candidates : collection of Candidate
            Of the tables that nothing is being done to.
        slots : int
            How many can be run.
        bytes_left : int, optional
            How many bytes merges may take in together; None for any. The first gets what it needs
            of it, the next what is left.
        """
        chosen: list[Choice] = []
        tables: set[str] = set()
        left = bytes_left
        for candidate in sorted(candidates, key=self._order):
            if len(chosen) == slots:
                break
            if candidate.table in tables:
                continue
            run_bytes: int | None = None
            if candidate.job == "merge" and left is not None:
                if left < _LEAST_BYTES:
                    continue
                run_bytes = left
                left -= min(max(candidate.bytes, _LEAST_BYTES), left)
            tables.add(candidate.table)
            chosen.append(Choice(candidate=candidate, run_bytes=run_bytes))
        if chosen:
            self._age(candidates, chosen)
        return chosen

    def forget(self, table: str, jobs: Iterable[str]) -> None:
        """Jobs that are not due any more have not waited."""
        for job in jobs:
            self._waited.pop((table, job), None)

    def _order(self, candidate: Candidate) -> tuple[float, int, str]:
        waited = self.waited(candidate.table, candidate.job)
        score = candidate.urgency + _STEP * waited
        return -score, JOBS.index(candidate.job), candidate.table

    def _age(self, candidates: Iterable[Candidate], chosen: Iterable[Choice]) -> None:
        for candidate in candidates:
            key = candidate.table, candidate.job
            self._waited[key] = self._waited.get(key, 0) + 1
        for choice in chosen:
            self._waited.pop((choice.candidate.table, choice.candidate.job), None)
