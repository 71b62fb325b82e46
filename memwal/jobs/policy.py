"""Maintenance policy of one table: limits and schedules, checks of their values, quiet hours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, time
from typing import Any, Final, Self
from zoneinfo import ZoneInfo

from memwal.errors import InvalidInputError
from memwal.jobs.options import (
    GIB,
    CheckpointOptions,
    CompactOptions,
    GcOptions,
    JobOptions,
    MergeOptions,
    Option,
    OptionKind,
    Options,
    QualityOptions,
    RecoverOptions,
    Value,
    count,
    default_of,
    option_field,
    options_of,
    seconds,
)
from memwal.quality.rules import QualityRules
from memwal.region.manifest_store import RECENT_SECONDS
from memwal.util.records import JsonMapping, JsonObject, JsonRecord

MIB = 1024 * 1024

WHEN_DUE: Final = "@due"
"""Schedule of a table whose runs start when something is due."""

SEEN_SECONDS: Final = 600.0
"""Pause after which the catalog records again that a table was polled and has not changed."""

_PRESETS = frozenset({WHEN_DUE, "@hourly", "@daily", "@weekly", "@monthly", "@yearly"})
_CRON_FIELD = re.compile(r"[0-9A-Za-z*/,\-#?]+")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_NAME = re.compile(r"(?=.*\S).{1,256}", re.DOTALL)
_ADDRESS = re.compile(r"[^,]+")
_SCHEDULE_SECONDS = Option(kind=OptionKind.SECONDS, help="pause between two runs", low=1)


def check_schedule(key: str, value: object) -> None:
    """Raise unless the value is ``@due``, a cron expression, a number of seconds or None."""
    if value is None:
        return
    if isinstance(value, str):
        cron = value.split()
        if value in _PRESETS or (len(cron) == 5 and all(map(_CRON_FIELD.fullmatch, cron))):
            return
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _SCHEDULE_SECONDS.check(f"Policy key {key!r}", value)
        return
    raise InvalidInputError(
        f"Policy key {key!r} is {value!r}; give a cron expression of five fields, one of "
        f"{', '.join(sorted(_PRESETS))}, a number of seconds, or None for manual runs only."
    )


def check_texts(key: str, value: object, pattern: re.Pattern[str], what: str) -> None:
    """Raise unless the value is a tuple of texts of a pattern; ``what`` names them."""
    texts = value if isinstance(value, tuple) else (None,)
    if not all(isinstance(text, str) and pattern.fullmatch(text) for text in texts):
        raise InvalidInputError(f"Policy key {key!r} is {value!r}; give {what}.")


_WINDOW = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d) (\S+)")


@dataclass(frozen=True, slots=True)
class QuietWindow:
    """A daily window, such as 22:00 to 06:00 in Berlin.

    Times are local wall-clock times. On a DST change the window lasts an hour less or more; a
    window inside the hour that is skipped is left out that day, and a window inside the hour that
    is repeated occurs twice.
    """

    start: time
    end: time  # not part of the window; one that ends before it starts goes past midnight
    zone: ZoneInfo

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"HH:MM-HH:MM Area/City"``; a window to midnight ends at 00:00."""
        match = _WINDOW.fullmatch(text)
        if match is None:
            raise _invalid_window(text, "write HH:MM-HH:MM and a time zone")
        try:
            start = time(int(match[1]), int(match[2]))
            end = time(int(match[3]), int(match[4]))
        except ValueError:
            raise _invalid_window(
                text, "hours go from 00 to 23 and minutes from 00 to 59"
            ) from None
        if start == end:
            raise _invalid_window(text, "a window must not end where it starts")
        try:
            zone = ZoneInfo(match[5])
        # A name can be unknown, no key at all, or that of a folder of the database of zones.
        except (KeyError, ValueError, OSError):
            raise _invalid_window(text, f"this machine knows no time zone {match[5]!r}") from None
        return cls(start, end, zone)

    def contains(self, moment: datetime) -> bool:
        """Return whether an aware moment lies in the window."""
        if moment.tzinfo is None:
            raise InvalidInputError(f"{moment} has no time zone; give an aware datetime.")
        shown = moment.astimezone(self.zone).time()
        if self.start < self.end:
            return self.start <= shown < self.end
        return shown >= self.start or shown < self.end


def _invalid_window(text: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"Policy key 'quiet_hours' holds {text!r}: {why}, as in '22:00-06:00 Europe/Berlin'."
    )


_DAY = 86_400.0
_TUPLES = ("tags", "quiet_hours", "allow_external")


def _from_job(
    cls: type[JobOptions], name: str, *, low: int, default: int | None = None, note: str = ""
) -> Any:
    """Define a key that sets the option of a job, with the policy's own lower limit.

    The key is the name of the job, an underscore, and the name of the option.
    """
    option = options_of(cls)[name]
    help = f"{option.help}. {note}" if note else option.help
    default = default_of(cls, name) if default is None else default
    return option_field(default, replace(option, low=low, help=help))


def _key(kind: OptionKind, default: Value, help: str) -> Value:
    return option_field(default, Option(kind=kind, help=help, optional=default is None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(JsonRecord):
    """Maintenance policy of one table. Every value is checked when the object is made.

    A job is due as soon as one of its limits is reached, whichever comes first. A limit of None
    never makes a job due. A key that sets an option of a job has the name of that option, behind
    the name of the job: ``gc_grace_seconds`` is ``grace_seconds`` of
    :class:`~memwal.jobs.options.GcOptions`.

    Raises
    ------
    InvalidInputError
        A value is of the wrong kind or out of its range; the message names the key.
    """

    recover_min_age_seconds: float | None = _from_job(RecoverOptions, "min_age_seconds", low=1)
    merge_at_generations: int = count(
        4,
        "A region is due for a merge when it has this number of unmerged generations. A smaller "
        "number means fresher indexes and cheaper reads, but more commits to the base table: one "
        "per merge.",
    )
    merge_at_bytes: int | None = count(
        GIB,
        "A region is due when its unmerged generations have this size, as the manifests count it.",
        optional=True,
    )
    merge_at_age_seconds: float = seconds(
        300.0,
        "A region is due when its oldest unmerged generation is this old, even if it is the only "
        "one.",
    )
    merge_max_keys_per_row: int | None = count(
        None,
        "A merge compares the keys of the base table, even if the backlog is small. If it would "
        "compare more than this number for each unmerged row, only its age makes a region due.",
    )
    merge_commit_bytes: int = _from_job(
        MergeOptions,
        "commit_bytes",
        low=MIB,
        note="Commits of a compaction replace as many bytes on storage at most.",
    )
    merge_run_bytes: int | None = _from_job(MergeOptions, "run_bytes", low=MIB)
    index_at_generations: int = count(
        1, "The indexes are due when one of them does not cover this number of merged generations."
    )
    index_at_rows: int | None = count(
        100_000,
        "The indexes are due when one of them does not cover this number of rows of the base "
        "table.",
        optional=True,
    )
    index_at_age_seconds: float = seconds(
        900.0,
        "The indexes are due when one of them is behind and the last build is this old, or there "
        "was none.",
    )
    snapshot_at_age_seconds: float = seconds(
        300.0,
        "The region snapshot is due when it is this old. Readers that can live with its age need "
        "no request per region.",
        low=1,
    )
    snapshot_at_regions: int | None = count(
        None, "The region snapshot is due when this number of regions changed since it was taken."
    )
    gc_interval_seconds: float = seconds(
        3600.0, "Garbage is collected when the last collection is this old.", low=1
    )
    gc_at_bytes: int | None = count(
        GIB, "Garbage is collected when there are this many bytes of it.", optional=True
    )
    # One small fragment alone has nothing to be joined with.
    compact_min_fragments: int | None = _from_job(
        CompactOptions,
        "min_fragments",
        low=2,
        default=64,
        note="A compaction is due when there are this many.",
    )
    compact_target_rows: int = _from_job(CompactOptions, "target_rows", low=1)
    compact_target_bytes: int = _from_job(CompactOptions, "target_bytes", low=MIB)
    compact_deleted_percent: int | None = _from_job(
        CompactOptions,
        "deleted_percent",
        low=1,
        note="A compaction is due when this share of the rows of the base table is deleted.",
    )
    quiet_hours: tuple[str, ...] = _key(
        OptionKind.NAMES,
        (),
        "Windows such as ``22:00-06:00 Europe/Berlin`` in which only jobs run that are overdue "
        "by ``quiet_critical_seconds``.",
    )
    quiet_critical_seconds: float = seconds(
        3600.0, "How far beyond its age limit a job must be to run in quiet hours."
    )
    run_retention_seconds: float = seconds(
        30 * _DAY,
        "How long the catalog keeps the record of a run that ended. The latest successful one of "
        "each job stays.",
    )
    sample_retention_seconds: float = seconds(
        7 * _DAY, "How long the catalog keeps a sample of the backlog."
    )
    schedule: str | float | None = _key(
        OptionKind.TEXT,
        WHEN_DUE,
        "When a maintenance run starts: ``@due``, as soon as a limit of the policy is reached; a "
        "cron expression (five fields, or ``@hourly`` ...); a number of seconds between two runs; "
        "or None for runs started by hand only. A run that is still going on delays the next one; "
        "runs never overlap.",
    )
    poll_seconds: float = seconds(
        10.0,
        "Shortest pause between two polls of a table with the schedule ``@due``. A poll of a table "
        "that has not changed is two HEAD requests, and on local disks none.",
        low=1,
    )
    idle_poll_seconds: float = seconds(
        120.0,
        "Longest pause between two polls of such a table in an object store, unless "
        "``poll_seconds`` is longer. The pauses grow with the time since the last change, to a "
        "tenth of it. After a start, tables that were not due are polled within this time.",
        low=1,
    )
    untraced_poll_seconds: float = seconds(
        900.0,
        "How late a change by another client than memwal, or by a process that died, is noticed "
        "in an object store: after a tenth of the time since the last such change, and after "
        "this time at most. Each check costs a request for every 1,000 objects of the regions.",
        low=1,
    )
    # Readers rely for so long on a manifest that they read.
    gc_grace_seconds: float = _from_job(GcOptions, "grace_seconds", low=RECENT_SECONDS)
    gc_retention_seconds: float = _from_job(GcOptions, "retention_seconds", low=0)
    gc_index_grace_seconds: float = _from_job(GcOptions, "index_grace_seconds", low=60)
    gc_version_retention_seconds: float | None = _from_job(
        GcOptions, "version_retention_seconds", low=0
    )
    gc_foreign_claim_seconds: float = _from_job(GcOptions, "foreign_claim_seconds", low=0)
    gc_foreign_claim_bytes: int = _from_job(GcOptions, "foreign_claim_bytes", low=0)
    # Consumers record every ten minutes that they have seen all.
    gc_consumer_seconds: float = _from_job(GcOptions, "consumer_seconds", low=3600)
    gc_consumer_bytes: int | None = _from_job(GcOptions, "consumer_bytes", low=0)
    late_seconds: float = seconds(
        3600.0,
        "Age of the oldest unmerged generation from which the table is late: alerts, "
        "notifications and the health in the user interface follow it.",
        low=1,
    )
    critical_seconds: float = seconds(
        43_200.0,
        "Age of the oldest unmerged generation from which the table is critically late.",
        low=1,
    )
    due_wait_seconds: float = seconds(
        60.0,
        "How long a run in Airflow waits for a job that is due before it ends with all jobs "
        "skipped; half of ``late_seconds`` at most. 0 for one check.",
    )
    sensor_groups: int = count(
        1,
        "With more than 1, a run in Airflow has a sensor for each region, up to this number, "
        "before its jobs: for tables of few regions. A table with more regions has this number of "
        "sensors, each for a share of its regions. With 1, one sensor waits for all regions.",
        high=1000,
    )
    pool: str | None = _key(
        OptionKind.TEXT,
        None,
        "Airflow's pool for the jobs of the table; None takes its default pool.",
    )
    spark_session: str | None = _key(
        OptionKind.TEXT,
        None,
        "Name of the session on a Spark Connect server in which the jobs of the table run. Tables "
        "that give the same name share its Python workers, which each session keeps some 50 MiB "
        "for; None takes one for the table alone.",
    )
    retries: int = count(2, "How often Airflow tries a job again that failed.", low=0, high=20)
    tags: tuple[str, ...] = _key(OptionKind.NAMES, (), "Shown beside the table, to filter by.")
    priority: int = count(
        1,
        "Tables with a higher one get free task slots first, merges before other jobs.",
        high=100,
    )
    allow_external: tuple[str, ...] = _key(
        OptionKind.NAMES,
        (),
        "Addresses of folders outside of the table below which files of it may be, as those of a "
        "shallow clone are. They are read with the storage options of the table.",
    )
    quality: QualityRules | None = option_field(
        None,
        Option(
            kind=OptionKind.RULES,
            help="Rules for the rows of the table, and the action of a merge for rows that break "
            "them.",
            optional=True,
        ),
    )

    def __post_init__(self) -> None:
        for key, option in options_of(self).items():
            option.check(f"Policy key {key!r}", getattr(self, key))
        for key, what in (
            ("pool", "the name of an Airflow pool, or None for the default one"),
            ("spark_session", "a name, or None for a session of its own"),
        ):
            name = getattr(self, key)
            check_texts(key, () if name is None else (name,), _NAME, what)
        check_schedule("schedule", self.schedule)
        tags = (
            "a tuple of tags of 1 to 64 letters, digits and any of _.:- that start with a letter "
            "or digit"
        )
        check_texts("tags", self.tags, _TAG, tags)
        check_texts("quiet_hours", self.quiet_hours, _NAME, "a tuple of texts")
        for window in self.quiet_hours:
            QuietWindow.parse(window)
        addresses = "a tuple of addresses without commas"
        check_texts("allow_external", self.allow_external, _ADDRESS, addresses)

    def recover_options(self) -> RecoverOptions:
        """Return the options of a recovery under this policy."""
        return self._options(RecoverOptions, "recover")

    def merge_options(self) -> MergeOptions:
        """Return the options of a merge under this policy."""
        return self._options(MergeOptions, "merge", quality=self.quality)

    def checkpoint_options(self) -> CheckpointOptions:
        """Return the options of a checkpoint under this policy, whose commits are merges."""
        return self._options(CheckpointOptions, "merge", quality=self.quality)

    def compact_options(self) -> CompactOptions:
        """Return the options of a compaction under this policy."""
        # Larger commits would conflict with merges.
        return self._options(CompactOptions, "compact", commit_bytes=self.merge_commit_bytes)

    def gc_options(self) -> GcOptions:
        """Return the options of a garbage collection under this policy, which deletes."""
        return self._options(GcOptions, "gc", dry_run=False)

    def _options(self, cls: type[Options], job: str, **given: Any) -> Options:
        """Make the options of a job, each from the key with the job's name before the option's."""
        keys = {name: f"{job}_{name}" for name in options_of(cls)}
        return cls(
            **{name: getattr(self, key) for name, key in keys.items() if hasattr(self, key)},
            **given,
        )

    def quality_options(self) -> QualityOptions | None:
        """Return the options of a quality check under this policy; None when it has no suite."""
        if self.quality is None or not self.quality.suite:
            return None
        return QualityOptions(self.quality, self.quality.check_sample_rows)

    def quiet_window(self, now: datetime) -> str | None:
        """Return the quiet hours that an aware moment ``now`` lies in; None if it lies in none."""
        return next(
            (text for text in self.quiet_hours if QuietWindow.parse(text).contains(now)), None
        )

    def changes(self) -> JsonObject:
        """Return plain values of the keys that do not have their defaults, for :meth:`from_dict`.

        A version of memwal that lacks a key can read the policy as long as the key is not set.
        """
        defaults = Policy().to_dict()
        return {key: value for key, value in self.to_dict().items() if value != defaults[key]}

    @classmethod
    def from_dict(cls, values: JsonMapping) -> Self:
        """Make a policy of ``values`` as :meth:`to_dict` returns; absent keys take their defaults.

        Raises
        ------
        InvalidInputError
            A key is unknown (each is named) or a value is wrong.
        """
        if not isinstance(values, Mapping):
            raise InvalidInputError(
                f"A policy is an object of keys and values, not {type(values).__name__}."
            )
        keys = {field.name for field in fields(cls)}
        unknown = sorted(str(key) for key in values if key not in keys)
        if unknown:
            raise InvalidInputError(
                f"Unknown policy keys: {', '.join(map(repr, unknown))}. "
                f"Known are: {', '.join(sorted(keys))}."
            )
        options = dict(values)
        for key in _TUPLES:
            if isinstance(options.get(key), list):
                options[key] = tuple(options[key])
        if options.get("quality") is not None and not isinstance(options["quality"], QualityRules):
            options["quality"] = QualityRules.from_dict(options["quality"])
        return cls(**options)
