"""Shared parts of the jobs: results, runs, task runners, and the lease check (guard).

A job calls its guard right before each commit and each deletion. A job that runs under a lease gets
a guard that raises when the lease is lost. The guard is not a fence: a process can be paused
between the check and the commit, and then the commit's compare-and-swap refuses it. The check only
stops a replaced job from wasting more work. A guard does nothing where it is unpickled: only the
process that holds a lease can check it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, TypeVar
from uuid import UUID

from memwal.boundary.text import html_table, plural, size
from memwal.errors import InvalidInputError
from memwal.util.records import JsonMapping, JsonObject, JsonRecord

if TYPE_CHECKING:
    from memwal.jobs.status import TableStatus
    from memwal.storage.location import TableLocation

Task = TypeVar("Task")
Result = TypeVar("Result")


class TaskRunner(Protocol):
    """Runs one function over every task and returns the results in the order of the tasks.

    Tasks, results and the function can be pickled, so that a runner may send them to other
    machines.
    """

    def __call__(
        self, tasks: Sequence[Task], function: Callable[[Task], Result], /
    ) -> list[Result]:
        """Run the tasks."""


@dataclass(frozen=True, slots=True)
class ParallelRunner:
    """A task runner that tells how many tasks it runs at once."""

    run: TaskRunner
    parallelism: Callable[[], int]
    """Number of tasks that run at once as of the call: a cluster can grow while a job runs."""

    def __call__(self, tasks: Sequence[Task], function: Callable[[Task], Result]) -> list[Result]:
        """Run the tasks."""
        return self.run(tasks, function)


def wrap_runner(run: TaskRunner, wrapper: TaskRunner) -> TaskRunner:
    """Return ``wrapper``, which calls ``run``, as a runner of the same parallelism."""
    return replace(run, run=wrapper) if isinstance(run, ParallelRunner) else wrapper


class DividedOptions(Protocol):
    """Options of a job that is divided into tasks."""

    @property
    def max_tasks(self) -> int | None:
        """Tasks at most; None for as many as the runner runs at once."""

    @property
    def run(self) -> TaskRunner:
        """Runs the tasks."""


def task_limit(options: DividedOptions) -> int:
    """Return into how many tasks a step is divided at most. Call it when the step is planned."""
    if options.max_tasks is not None:
        return options.max_tasks
    return options.run.parallelism() if isinstance(options.run, ParallelRunner) else 1


def run_in_process(tasks: Sequence[Task], function: Callable[[Task], Result]) -> list[Result]:
    """Run the tasks one after another in this process."""
    return [function(task) for task in tasks]


@dataclass(frozen=True, slots=True)
class RegionsTask:
    """Regions of a table that one worker looks after."""

    location: TableLocation
    regions: tuple[UUID, ...]


def shares(regions: Sequence[UUID], max_tasks: int) -> list[tuple[UUID, ...]]:
    """Divide regions into one share for each of up to ``max_tasks`` tasks; none without regions."""
    count = min(max_tasks, len(regions))
    return [tuple(regions[number::count]) for number in range(count)]


class ReasonCode(StrEnum):
    """Base of reasons: the value of a member is for programs, and its ``text`` for people."""

    text: str

    def __new__(cls, value: str, text: str) -> Self:
        """Make a member of its value and its text."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.text = text
        return member


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRegion:
    """A region that a merge did not merge to the end."""

    region_id: str
    """UUID as text."""
    generation: int
    """The first generation that cannot be merged; it and all later ones stay pending."""
    reason: str
    """Why, and what to do."""

    def __str__(self) -> str:
        return (
            f"region {self.region_id} is skipped from generation {self.generation}: {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnindexableRow:
    """A row of the base table that an index cannot hold, and is built without."""

    index: str
    """Name of the index."""
    key: JsonObject
    """Key columns with their values."""
    region_id: str | None
    """UUID of its region as text; None if the regions of the table are named by hand."""
    reason: str
    """Reason of the index for refusing it."""

    def __str__(self) -> str:
        region = "" if self.region_id is None else f" of region {self.region_id}"
        return (
            f"index {self.index} is without the row {self.key}{region}: {self.reason}; scans and "
            "lookups find it: write the row with another value, or delete it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(JsonRecord):
    """Result of one run of one maintenance job."""

    job: str
    """``merge``, ``index``, ``compact``, ``snapshot``, ``gc``, ``quality``, ``copy`` or
    ``restore``."""
    table: str
    """URI of the table."""
    version: int
    """Version of the base table after the job."""
    tasks: int = 0
    """Tasks that ran."""
    commits: int = 0
    """Commits to the base table."""
    seconds: float = 0.0
    """Wall time."""
    metrics: dict[str, int] = field(default_factory=dict)
    """Metrics of this kind of job, by name (``generations``, ``rows_upserted``, ``bytes`` ...)."""
    warnings: tuple[str, ...] = ()
    """The work that was left undone, and the reason; a job that skips a region says so here."""
    skipped_regions: tuple[SkippedRegion, ...] = ()
    """Regions that a merge did not merge to the end. Each is among the warnings as well."""
    unindexable_rows: tuple[UnindexableRow, ...] = ()
    """Rows that an index is without, the first hundred. Each is among the warnings as well."""
    quality: JsonObject | None = None
    """:class:`memwal.quality.report.QualityReport` of a gate or a check as plain values; None if no
    row was checked. It contains keys of rows, and no other values."""

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name}={value}" for name, value in self.metrics.items() if value)
        warnings = f", {len(self.warnings)} warnings" if self.warnings else ""
        return (
            f"JobResult({self.job} of {self.table!r}, {metrics or 'nothing to do'}, "
            f"{self.commits} commits, version {self.version}, {self.seconds:.3g} s{warnings})"
        )

    def _repr_html_(self) -> str:
        return html_table(
            f"{self.job} of {self.table}: {plural(self.commits, 'commit')} in "
            f"{self.seconds:.1f} s, now at version {self.version}",
            ("metric", "value"),
            list(self.metrics.items()),
            notes=self.warnings,
        )

    @classmethod
    def from_dict(cls, values: JsonMapping) -> Self:
        """Make a result of ``values`` as :meth:`to_dict` returns; unknown keys are ignored.

        Raises
        ------
        InvalidInputError
            The values are not a result.
        """
        names = {field.name for field in fields(cls)}
        attributes = {key: value for key, value in values.items() if key in names}
        try:
            attributes["warnings"] = tuple(attributes.get("warnings", ()))
            attributes["skipped_regions"] = tuple(
                SkippedRegion(**region) for region in attributes.get("skipped_regions", ())
            )
            attributes["unindexable_rows"] = tuple(
                UnindexableRow(**row) for row in attributes.get("unindexable_rows", ())
            )
            return cls(**attributes)
        except TypeError as error:
            raise InvalidInputError(f"this is not the result of a job: {error}") from error


def sentence(result: JobResult) -> str:
    """Describe a result in one sentence."""
    metrics = ", ".join(_metric(name, number) for name, number in result.metrics.items())
    return (
        f"{result.job}: {metrics or 'nothing to do'}; {plural(result.commits, 'commit')} in "
        f"{result.seconds:.1f} s; the table is at version {result.version}"
    )


def summary(
    result: JobResult,
    *,
    phases: Mapping[str, float] | None = None,
    backlog: TableStatus | None = None,
) -> str:
    """Describe a result in a sentence and a table, for a log.

    ``phases`` are seconds by name, such as the start of Spark; ``backlog`` is the status of the
    table after the job.
    """
    rows = [
        (name.replace("_", " "), size(number) if name.startswith("bytes") else f"{number:,}")
        for name, number in result.metrics.items()
    ]
    rows += [("commits", f"{result.commits:,}"), ("tasks", f"{result.tasks:,}")]
    times = {**(phases or {}), result.job: result.seconds}
    rows += [(f"seconds: {name}", f"{seconds:.1f}") for name, seconds in times.items()]
    if backlog is not None:
        left = (
            plural(backlog.backlog_generations, "generation"),
            plural(backlog.backlog_rows, "row"),
            size(backlog.backlog_bytes),
        )
        rows.append(("backlog left", ", ".join(left)))
    width = max(len(name) for name, _ in rows)
    return "\n".join([sentence(result), *(f"  {name:<{width}}  {value}" for name, value in rows)])


def _metric(name: str, number: int) -> str:
    """Return a metric as words: bytes as a size, with their use."""
    unit, _, rest = name.partition("_")
    if unit != "bytes":
        return f"{number} {name.replace('_', ' ')}"
    return f"{size(number)} {rest}".rstrip()


Guard = Callable[[], None]
"""Lease check: returns if the job may go on, and raises if it may not."""


def guarded(function: Callable[..., Result], guard: Guard | None) -> Callable[..., Result]:
    """Bind a guard to a function of tasks that takes ``guard=``.

    Only the process that holds a lease can check it. When the function is sent to another machine,
    the guard does nothing there, and the work there is fenced by the compare-and-swap of its
    commits alone.
    """
    return function if guard is None else partial(function, guard=_LocalGuard(guard))


class _LocalGuard:
    """Guard that becomes a no-op when pickled."""

    def __init__(self, guard: Guard | None) -> None:
        self._guard = guard

    def __call__(self) -> None:
        if self._guard is not None:
            self._guard()

    def __reduce__(self) -> tuple[type[_LocalGuard], tuple[None]]:
        return (_LocalGuard, (None,))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun(JsonRecord):
    """One run of one maintenance job."""

    run_id: int
    """Number of the run in the catalog."""
    table: str
    """Name of the managed table. Runs outlast the registration of their table."""
    job: str
    """One of :data:`memwal.jobs.due.JOBS`, or other recorded work such as ``checkpoint``."""
    state: RunState
    """``running``, or how the run ended."""
    started_at: datetime
    """In UTC."""
    finished_at: datetime | None
    """None while it runs."""
    result: JsonObject | None
    """``JobResult.to_dict()`` of a run that succeeded."""
    error: str | None
    """Error of a run that failed."""
    error_type: str | None = None
    """Kind of that error: a value of :class:`memwal.catalog.records.ErrorKind`."""
    external_id: str | None
    """Id of the run where it was started, for example of the Airflow task instance."""
    done: int | None = None
    """Finished tasks; None if the run did not report them."""
    total: int | None = None
    """All tasks."""
    rows: int | None = None
    """Rows that it processed."""
    bytes: int | None = None
    """Bytes that it processed."""
    version_before: int | None = None
    """Version of the base table when it began."""
    version_after: int | None = None
    """Version of the base table when it ended."""
    lease_token: int | None = None
    """Token of the lease that it ran under."""
    heartbeat_at: datetime | None = None
    """Time of its last heartbeat, in UTC; None for a run without heartbeats."""


class RunState(StrEnum):
    """State of a job run. ``ABANDONED``: its process died, or a later run found it unfinished."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"
