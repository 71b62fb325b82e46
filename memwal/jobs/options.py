"""Options of the jobs: one frozen dataclass per job, each field defined once.

A field has its unit in its name, and in its metadata an :class:`Option`: limits and help text. A
duration may be given as a ``timedelta``, and is kept as a number of seconds. The rest follows from
that: the options of the commands (:mod:`memwal.cli.parameters`), the arguments of the Spark
applications (:mod:`memwal.jobs.arguments`), the keywords of the methods of :class:`memwal.Table`,
and the tables of the documentation. A key of the policy that sets an option is declared in
:mod:`memwal.jobs.policy`, has the job's name before that of the option, and takes its help from it.
``docs/design/0009-from-policy-to-commit.md`` follows one value through them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from memwal.boundary.public import public
from memwal.errors import InvalidInputError
from memwal.jobs.job import Guard, TaskRunner, run_in_process
from memwal.jobs.progress import ProgressOption
from memwal.quality.rules import QualityRules
from memwal.util.clock import MAX_SECONDS, Duration, in_seconds

if TYPE_CHECKING:
    from memwal.base_table.fragments import FragmentLimits

GIB: Final = 1 << 30
_DAY: Final = 86_400.0
# The largest integer of databases and Arrow.
_MAX_INTEGER: Final = 2**63 - 1
_METADATA: Final = "option"

Value = TypeVar("Value")
Count = TypeVar("Count", bound=int | None)
Seconds = TypeVar("Seconds", bound=Duration | None)


class OptionKind(Enum):
    """Kind of value that an option takes."""

    COUNT = "count"
    SECONDS = "seconds"
    SWITCH = "switch"
    REGIONS = "regions"
    NAMES = "names"
    RULES = "rules"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Limits and help text of one field."""

    kind: OptionKind
    # Meaning of the value, in words that fit a command line: a phrase without a full stop.
    help: str
    low: float = 0  # least and greatest value of a number
    high: float | None = None
    optional: bool = False  # whether None is a value as well
    # Name on command lines where it differs from the field's: one element of a collection.
    argument: str | None = None

    def check(self, name: str, value: object) -> None:
        """Raise InvalidInputError unless ``value`` is of this kind and within the limits.

        The message calls the value ``name``, and shows the limits.
        """
        if self.optional and value is None:
            return
        match self.kind:
            case OptionKind.COUNT:
                self._check_count(name, value)
            case OptionKind.SECONDS:
                self._check_seconds(name, value)
            case OptionKind.RULES if not isinstance(value, QualityRules):
                raise InvalidInputError(f"{name} is not a QualityRules.")

    def _check_count(self, name: str, value: object) -> None:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or value < self.low or (self.high is not None and value > self.high):  # type: ignore[operator]
            limits = (
                f"of at least {self.low}"
                if self.high is None
                else f"from {self.low} to {self.high}"
            )
            choice = ", or None for no limit" if self.optional else ""
            raise InvalidInputError(f"{name} is {value!r}; give a whole number {limits}{choice}.")
        if isinstance(value, int) and value > _MAX_INTEGER:
            raise InvalidInputError(f"{name} is above 2^63-1; give less.")

    def _check_seconds(self, name: str, value: object) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # "not >=" refuses NaN as well.
        if not is_number or not value >= self.low:  # type: ignore[operator]
            raise InvalidInputError(
                f"{name} is {value!r}; give a number of seconds of at least {self.low:g}."
            )
        if isinstance(value, int | float) and value > MAX_SECONDS:
            raise InvalidInputError(
                f"{name} is {value!r}; give {MAX_SECONDS} at most, which is a hundred years."
            )


def option_field(default: Value, option: Option) -> Value:
    """Return a dataclass field with this default and this option."""
    return field(default=default, metadata={_METADATA: option})


def count(
    default: Count,
    help: str,
    *,
    low: int = 1,
    high: int | None = None,
    optional: bool = False,
) -> Count:
    """Define a whole number from ``low`` to ``high``; None is a value if it is the default."""
    optional = optional or default is None
    option = Option(kind=OptionKind.COUNT, help=help, low=low, high=high, optional=optional)
    return option_field(default, option)


def seconds(default: Seconds, help: str, *, low: float = 0) -> Seconds:
    """Define a duration in seconds of at least ``low``; None is a value if it is the default."""
    option = Option(kind=OptionKind.SECONDS, help=help, low=low, optional=default is None)
    return option_field(default, option)


def _switch(default: bool, help: str) -> bool:
    return option_field(default, Option(kind=OptionKind.SWITCH, help=help))


def _regions(default: Value, help: str, *, argument: str) -> Value:
    return option_field(default, Option(kind=OptionKind.REGIONS, help=help, argument=argument))


def options_of(cls: Any) -> dict[str, Option]:
    """Return the options of a dataclass, or of an object of it, by the names of their fields.

    Fields without an option, such as a callback, are left out.
    """
    return {
        item.name: item.metadata[_METADATA] for item in fields(cls) if _METADATA in item.metadata
    }


def default_of(cls: Any, name: str) -> Any:
    """Return the default of a field."""
    return next(item.default for item in fields(cls) if item.name == name)


class JobOptions:
    """Base of all options: their values are checked when the object is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, option in options_of(self).items():
            value = getattr(self, name)
            if option.kind is OptionKind.SECONDS and isinstance(value, timedelta):
                value = in_seconds(value)
                object.__setattr__(self, name, value)
            option.check(name, value)


Options = TypeVar("Options", bound=JobOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(JobOptions):
    """Options of the run of every job."""

    run: TaskRunner = run_in_process
    """Runs the tasks of the job; by default one after another in this process."""
    guard: Guard | None = None
    """Called in this process right before each commit and each deletion; an error that it raises
    stops the job.
    """
    progress: ProgressOption = None
    """Called with a :class:`~memwal.jobs.progress.JobProgress` at each step that runs in this
    process, or True for a bar on a terminal; an error that it raises stops the job.
    """


_COMMIT_BYTES_HELP: Final = (
    "bytes in memory, as the manifests count them, that go into one commit at most; a worker needs "
    "about three times as much memory, and a single larger generation still goes alone"
)
_QUALITY: Final = Option(
    kind=OptionKind.RULES,
    help="rules for the rows that enter, and the action for rows that break them; without "
    "rules, all rows enter",
    optional=True,
)
_REGION_TASKS_HELP: Final = "tasks that the regions are divided into at most"


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions(RunOptions):
    """Options of a merge: :func:`memwal.jobs.merge.job.merge`."""

    regions: Collection[UUID] | None = _regions(
        None, "merge this region only; by default all regions", argument="region"
    )
    skip_regions: Collection[UUID] = _regions(
        (), "do not merge this region", argument="skip_region"
    )
    commit_bytes: int = count(GIB, _COMMIT_BYTES_HELP)
    run_bytes: int | None = count(
        None,
        "bytes in memory to merge at most; the oldest generations of each region go first, at "
        "least one generation is merged, and the rest waits for the next run",
    )
    divide_bytes: int = count(
        256 << 20,
        "bytes in memory from which a merge is divided into tasks, whose rows are committed "
        "together; so are more than commit_bytes for a single worker",
        low=0,
    )
    # A merge that is not divided has one task: of two merges at once that each insert more than
    # some dozens of new keys Lance refuses the second, which is then done again.
    max_tasks: int | None = count(None, _REGION_TASKS_HELP)
    quality: QualityRules | None = option_field(None, _QUALITY)


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions(RunOptions):
    """Options of a checkpoint: :func:`memwal.jobs.table.checkpoint.checkpoint`."""

    timeout_seconds: Duration | None = seconds(
        None, "how long it may take; checked between the commits; merged rows stay merged"
    )
    commit_bytes: int = count(GIB, _COMMIT_BYTES_HELP)
    max_tasks: int | None = count(None, _REGION_TASKS_HELP)
    quality: QualityRules | None = option_field(None, _QUALITY)
    skip_recovery: bool = _switch(False, "leave the rows of writers that died in the log")


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class TableCheckpointOptions(CheckpointOptions):
    """Options of :meth:`memwal.Table.checkpoint`.

    Attributes
    ----------
    flush : bool
        Whether the writers of this table that are open in this process are flushed first. Writers
        of other processes are not flushed.
    """

    flush: bool = True


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions(RunOptions):
    """Options of a compaction: :func:`memwal.jobs.table.compact.compact`."""

    min_fragments: int | None = count(
        8,
        "leave small fragments alone until there are this many; ``none`` leaves them alone always",
        optional=True,
    )
    target_rows: int = count(
        1 << 20, "a fragment with fewer rows is small, unless it has target_bytes bytes"
    )
    target_bytes: int = count(
        256 << 20,
        "a fragment with fewer bytes on storage is small, unless it has target_rows rows",
    )
    deleted_percent: int | None = count(
        10,
        "rewrite a fragment, of any size, of which this percentage of the rows is deleted; "
        "``none`` rewrites no fragment for its deleted rows",
        high=100,
        optional=True,
    )
    # Smaller commits get in each other's way less; each remaps the indexes.
    commit_bytes: int = count(GIB, "bytes on storage that one commit replaces at most")
    max_commits: int | None = count(None, "end after this number of commits; the next run goes on")
    attempts: int = count(8, "give up when this number of rewrites was lost to other commits")

    def fragment_limits(self) -> FragmentLimits:
        """Return the limits below which a fragment is small or sparse."""
        # Lance is loaded by those only who ask a table.
        from memwal.base_table.fragments import FragmentLimits

        return FragmentLimits(self.target_rows, self.target_bytes, self.deleted_percent)


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions(RunOptions):
    """Options of an index build: :func:`memwal.jobs.index.job.build_indexes`."""

    indexes: Collection[str] | None = option_field(
        None,
        Option(
            kind=OptionKind.NAMES,
            help="build this index only; by default all indexes of the table",
            argument="index",
        ),
    )
    maintained_only: bool = _switch(
        False, "leave indexes alone that are not among the maintained ones"
    )
    # Other indexes are built much faster, so that they have sixteen times as many rows in a part.
    part_rows: int = count(
        1 << 20,
        "a vector or text index that lacks at least this number of rows is built in parts of about "
        "this size; another index from sixteen times as many rows on",
    )
    max_tasks: int | None = count(None, "parts that the build of one index is divided into at most")
    # A text query over four segments takes twice as long as over one, over sixteen six times. An
    # index of a table with stable row ids always has one segment, and is not built in parts.
    max_segments: int = count(4, "segments of an index beyond which the newest segments are joined")


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverOptions(RunOptions):
    """Options of a recovery: :func:`memwal.jobs.table.recover.recover`."""

    regions: Collection[UUID] | None = _regions(
        None, "recover this region only; by default all regions", argument="region"
    )
    min_age_seconds: Duration | None = seconds(
        None,
        "how old unflushed rows must be before their writer counts as dead; by default twice the "
        "age at which the writers of the table flush a MemTable, and a day for those of other "
        "clients, which do not flush by age",
    )
    max_tasks: int | None = count(None, _REGION_TASKS_HELP)


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions(RunOptions):
    """Options of a region snapshot: :func:`memwal.jobs.table.snapshot.build_snapshot`."""

    max_tasks: int | None = count(None, f"{_REGION_TASKS_HELP}; few regions take one")
    inline_regions: int = count(
        100,
        "regions that are kept in the table's manifest at most; more go into a file of their own",
        low=0,
    )


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class GcOptions(RunOptions):
    """Options of a garbage collection: :func:`memwal.jobs.gc.collect_garbage`.

    A ``grace_seconds`` below two minutes, the limit of the policy's ``gc_grace_seconds``, is safe
    only while no other process reads or writes the table: readers rely for two minutes on a
    manifest that they read.
    """

    dry_run: bool = _switch(True, "only count the objects that would be deleted")
    grace_seconds: Duration = seconds(
        600.0,
        "how long an object that no manifest names any more is kept for readers that planned with "
        "an older manifest, and for paused writers; well above the longest query",
    )
    retention_seconds: Duration = seconds(
        3600.0,
        "how long old versions of the base table keep the generations that they need; tags and "
        "branches keep them for ever",
    )
    orphan_grace_seconds: Duration = seconds(
        _DAY,
        "age at which a folder that no manifest ever named is taken for the rest of a flush that "
        "died, and a staged file for the rest of a write or a merge; longer than any of them",
    )
    # As long as Lance itself leaves index files alone that no version names.
    index_grace_seconds: Duration = seconds(
        7 * _DAY,
        "age at which index files that no version names are taken for the rest of a build, or of a "
        "compaction, that died or was lost; well above the longest build",
    )
    version_retention_seconds: Duration | None = seconds(
        None,
        "age at which Lance cleans up old versions of the base table, never below the retention; "
        "tagged versions and those that branches start from stay; by default all versions stay",
    )
    foreign_claim_seconds: Duration = seconds(
        _DAY,
        "how long merged generations stay after the last log entry of a region whose newest claim "
        "is not one of memwal's: a live writer of Lance reads the base table as of its claim; 0 "
        "keeps none",
    )
    foreign_claim_bytes: int = count(
        GIB,
        "bytes in memory, as the manifest counts them, of such generations that stay in a region "
        "at most; the oldest go first",
        low=0,
    )
    consumer_seconds: Duration = seconds(
        7 * _DAY,
        "how long generations and versions are kept for a consumer that reads and commits nothing: "
        "then it expires, and has to begin again; well above its longest pause, and its longest "
        "read",
    )
    consumer_bytes: int | None = count(
        None,
        "bytes that are kept for a consumer at most: of files that only its version of the base "
        "table has, and of generations that are merged; more, and it expires",
        low=0,
        optional=True,
    )
    explain: bool = _switch(
        False,
        "list the objects that go and, for those that stay, the reasons; costs a listing for each "
        "generation",
    )
    max_tasks: int | None = count(None, _REGION_TASKS_HELP)

    @property
    def grace(self) -> timedelta:
        """Retention of objects that no manifest references any more."""
        return timedelta(seconds=in_seconds(self.grace_seconds))

    @property
    def retention(self) -> timedelta:
        """Time after its replacement for which a version of the base table pins generations."""
        return max(self.grace, timedelta(seconds=in_seconds(self.retention_seconds)))

    @property
    def orphan_grace(self) -> timedelta:
        """Minimum age of an orphaned folder or staged file before it is deleted."""
        return max(self.grace, timedelta(seconds=in_seconds(self.orphan_grace_seconds)))

    @property
    def index_grace(self) -> timedelta:
        """Minimum age of index files that no version names before they are deleted."""
        return timedelta(seconds=in_seconds(self.index_grace_seconds))

    @property
    def version_retention(self) -> timedelta | None:
        """Age at which versions of the base table are cleaned up; None keeps all of them."""
        if self.version_retention_seconds is None:
            return None
        age = timedelta(seconds=in_seconds(self.version_retention_seconds))
        return max(age, self.retention)

    @property
    def consumer(self) -> timedelta:
        """Time after its last commit for which a consumer is kept."""
        return timedelta(seconds=in_seconds(self.consumer_seconds))

    @property
    def foreign_claim(self) -> timedelta:
        """Time that merged generations stay after the last log entry of another client."""
        return timedelta(seconds=in_seconds(self.foreign_claim_seconds))


@public
@dataclass(frozen=True, slots=True)
class QualityOptions(RunOptions):
    """Options of a quality check: :func:`memwal.jobs.table.quality_check.check_quality`."""

    quality: QualityRules = field(
        metadata={
            _METADATA: Option(kind=OptionKind.RULES, help="rules whose suite the rows are held to")
        }
    )
    sample_rows: int | None = count(
        None, "check this number of rows, chosen at random; by default all rows"
    )
    max_tasks: int | None = count(
        None,
        "tasks that all rows are divided into at most, about a million for each; an expectation "
        "that is not about single rows is one more",
    )


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions(RunOptions):
    """Options of a copy: :func:`memwal.jobs.table.copy.copy_table`."""

    max_tasks: int | None = count(
        None, "tasks that the objects are divided into at most, 256 MiB or more for each"
    )


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(JobOptions):
    """Options of a verification: :func:`memwal.jobs.verify.verify`.

    Raises
    ------
    InvalidInputError
        A value is out of its limits, or a quick check is to read rows.
    """

    regions: Collection[UUID] | None = _regions(
        None, "check this region only; by default all regions", argument="region"
    )
    quick: bool = _switch(False, "read no rows: names, manifests and schemas only")
    sample_generations: int | None = count(
        None,
        "read the rows of at most this number of generations of each region; others with every "
        "version of the table",
    )
    deep: bool = _switch(
        False,
        "compare indexes with the rows: their counts, and the answers of scalar indexes about "
        "sampled values",
    )
    quarantine_uri: str | None = option_field(
        None,
        Option(
            kind=OptionKind.TEXT,
            help="the quarantine of the table, by default beside it: its rows are not missed in "
            "the base table, and a repair puts rows of a log there that cannot be stored",
            optional=True,
            argument="quarantine",
        ),
    )
    max_tasks: int | None = count(None, f"{_REGION_TASKS_HELP}; one more is for the base table")
    run: TaskRunner = run_in_process
    """Runs the tasks; by default one after another in this process. A verification commits nothing,
    and has no guard."""
    progress: ProgressOption = None
    """As of the other jobs."""

    def __post_init__(self) -> None:
        # `slots=True` makes a second class, so zero-argument super() would fail.
        JobOptions.__post_init__(self)
        if self.quick and self.sample_generations is not None:
            raise InvalidInputError(
                "A quick check reads no rows; leave quick or sample_generations out."
            )
        if self.quick and self.deep:
            raise InvalidInputError("A quick check reads no rows; leave quick or deep out.")
