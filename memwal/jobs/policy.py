"""Maintenance policy of one table: limits and schedules, checks of their values, quiet hours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, time
from typing import TYPE_CHECKING, Any, Self, TypeGuard
from zoneinfo import ZoneInfo

from memwal.errors import InvalidInputError
from memwal.quality.rules import QualityRules
from memwal.util.clock import MAX_SECONDS

if TYPE_CHECKING:
    from datetime import datetime

    from memwal.jobs.status import RegionBacklog

MIB = 1024 * 1024
GIB = 1024 * MIB

# What databases and Arrow can count.
_MOST = 2**63 - 1

_CRON_PRESETS = frozenset({"@hourly", "@daily", "@weekly", "@monthly", "@yearly"})
_CRON_FIELD = re.compile(r"[0-9A-Za-z*/,\-#?]+")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")


def check_integer(
    key: str, value: object, *, low: int, high: int | None = None, optional: bool = False
) -> None:
    """Refuse what is no whole number from ``low`` to ``high``; None passes when ``optional``."""
    if optional and value is None:
        return
    wrong = not isinstance(value, int) or isinstance(value, bool) or value < low
    if wrong or (high is not None and isinstance(value, int) and value > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        choice = ", or None for no limit" if optional else ""
        raise InvalidInputError(
            f"Policy key {key!r} is {value!r}; give a whole number {limits}{choice}."
        )
    if isinstance(value, int) and value > _MOST:
        raise InvalidInputError(f"Policy key {key!r} is larger than any number; give less.")


def check_seconds(key: str, value: object, *, low: float) -> None:
    """Refuse what is no number of seconds from ``low`` to a hundred years."""
    if not _is_number(value) or not value >= low:
        raise InvalidInputError(
            f"Policy key {key!r} is {value!r}; give a number of seconds of at least {low:g}."
        )
    if value > MAX_SECONDS:
        raise InvalidInputError(
            f"Policy key {key!r} is {value!r}; give {MAX_SECONDS} at most, which is a hundred "
            "years."
        )


def check_schedule(key: str, value: object) -> None:
    """Refuse what is no cron expression, number of seconds or None."""
    if value is None:
        return
    if isinstance(value, str):
        cron = value.split()
        if value in _CRON_PRESETS or (len(cron) == 5 and all(map(_CRON_FIELD.fullmatch, cron))):
            return
    elif _is_number(value):
        check_seconds(key, value, low=1)
        return
    raise InvalidInputError(
        f"Policy key {key!r} is {value!r}; give a cron expression of five fields, one of "
        f"{', '.join(sorted(_CRON_PRESETS))}, a number of seconds, or None for manual runs only."
    )


def check_tuple(key: str, value: object) -> tuple[object, ...]:
    """Return the value when it is a tuple, and refuse it when not."""
    if not isinstance(value, tuple):
        raise InvalidInputError(f"Policy key {key!r} is {value!r}; give a tuple of texts.")
    return value


def check_tags(key: str, value: object) -> None:
    """Refuse what is no tuple of tags."""
    for tag in check_tuple(key, value):
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise InvalidInputError(
                f"Policy key {key!r} holds {tag!r}; a tag has 1 to 64 letters, digits and "
                "any of _.:- and starts with a letter or digit."
            )


def check_pool(key: str, value: object) -> None:
    """Refuse what is no name of a pool, nor None."""
    if value is None or (isinstance(value, str) and 0 < len(value.strip()) <= 256):
        return
    raise InvalidInputError(
        f"Policy key {key!r} is {value!r}; give the name of an Airflow pool, or None for the "
        "default one."
    )


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


_WINDOW = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d) (\S+)")


@dataclass(frozen=True, slots=True)
class QuietWindow:
    """A daily window, such as 22:00 to 06:00 in Berlin.

    What counts is what the clocks of the place show. Where they are put forward or back inside
    the window, it lasts an hour less or more; a window that lies within the hour that is left out
    does not come that day, and one within the hour that comes twice, comes twice.

    Attributes
    ----------
    start, end : time
        The end is not part of it. One that ends before it starts goes past midnight.
    zone : ZoneInfo
        Whose clocks.
    """

    start: time
    end: time
    zone: ZoneInfo

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read ``"HH:MM-HH:MM Area/City"``; a window to midnight ends at 00:00.

        Raises
        ------
        InvalidInputError
            It is not of this form, is empty, or this machine knows no such time zone.
        """
        match = _WINDOW.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise _wrong(text, "write HH:MM-HH:MM and a time zone")
        try:
            start = time(int(match[1]), int(match[2]))
            end = time(int(match[3]), int(match[4]))
        except ValueError:
            raise _wrong(text, "hours go from 00 to 23 and minutes from 00 to 59") from None
        if start == end:
            raise _wrong(text, "a window must not end where it starts")
        try:
            zone = ZoneInfo(match[5])
        # A name can be unknown, no key at all, or that of a folder of the database of zones.
        except (KeyError, ValueError, OSError):
            raise _wrong(text, f"this machine knows no time zone {match[5]!r}") from None
        return cls(start, end, zone)

    def contains(self, moment: datetime) -> bool:
        """Whether a moment lies in the window.

        Parameters
        ----------
        moment : datetime
            Aware.

        Raises
        ------
        InvalidInputError
            It has no time zone.
        """
        if moment.tzinfo is None:
            raise InvalidInputError(f"{moment} has no time zone; give an aware datetime.")
        shown = moment.astimezone(self.zone).time()
        if self.start < self.end:
            return self.start <= shown < self.end
        return shown >= self.start or shown < self.end


def _wrong(text: object, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"Policy key 'quiet_hours' holds {text!r}: {why}, as in '22:00-06:00 Europe/Berlin'."
    )


_DAY = 86_400.0
_TUPLES = ("tags", "quiet_hours")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Maintenance policy of one table. Every value is checked when the object is made.

    A job is due as soon as one of its limits is reached, whichever comes first. A limit that is
    None never is.

    Attributes
    ----------
    merge_at_generations : int, default 4
        A region is due for a merge when so many generations wait. Fewer means fresher indexes and
        cheaper reads, but more commits to the base table: one per merge.
    merge_at_bytes : int or None, default 1 GiB
        A region is due when what waits takes so many bytes, as the manifests count them.
    merge_at_age_seconds : float, default 300
        A region is due when its oldest waiting generation is this old, however few there are.
    merge_commit_bytes : int, default 1 GiB
        Most bytes (as the manifests count them) that one commit of a merge takes in. It bounds
        the memory of a merge task, which needs about three times as much.
    merge_run_bytes : int or None, default None
        Most bytes that one run of a merge takes in; the rest waits for the next one. None sets no
        limit.
    index_at_generations : int, default 1
        The indexes are due when one of them does not cover so many merged generations.
    index_at_rows : int or None, default 100,000
        The indexes are due when one of them does not cover so many rows of the base table.
    index_at_age_seconds : float, default 900
        The indexes are due when one of them is behind at all and none was built for so long.
    snapshot_at_age_seconds : float, default 300
        The region snapshot is due when it is this old. Readers that can live with its age need no
        request per region.
    snapshot_at_regions : int or None, default None
        The region snapshot is due when so many regions have changed since it was taken.
    gc_interval_seconds : float, default 3600
        Garbage is collected when it was not for so long.
    gc_at_bytes : int or None, default 1 GiB
        Garbage is collected when so many bytes could go.
    compact_at_fragments : int or None, default 64
        The base table is compacted when it has so many small fragments.
    quiet_hours : tuple of str, default ()
        Windows such as ``"22:00-06:00 Europe/Berlin"`` in which only what is overdue by
        ``quiet_critical_seconds`` runs; see :class:`~memwal.jobs.policy.QuietWindow`.
    quiet_critical_seconds : float, default 3600
        How far beyond its age limit a job must be to run in quiet hours all the same.
    version_retention_seconds : float or None, default None
        How long old versions of the base table are kept to be read; None keeps them all.
    run_retention_seconds : float, default 30 days
        How long the catalog keeps what it knows of a run that ended. The latest that succeeded of
        each job stays.
    sample_retention_seconds : float, default 7 days
        How long the catalog keeps a sample of the backlog.
    schedule : str, float or None, default 60
        How often a maintenance run starts: a cron expression (five fields, or ``@hourly`` ...), a
        number of seconds, or None for runs started by hand only. A run that is still going on
        delays the next one; runs never overlap.
    sensor_poke_seconds : float, default 10
        Pause between two looks at a region's backlog. A look costs a listing and a read of the
        object store: at 10 s, 16 regions make about 23,000 requests an hour.
    sensor_timeout_seconds : float, default 60
        How long one run waits for a region to become due before it ends, green. A region that
        becomes due after the others were merged waits for the next run, so this also bounds how
        late it can be.
    gc_grace_seconds : float, default 600
        How long an object that nothing names any more is kept for readers that still hold an
        older manifest. At least 60.
    gc_retention_seconds : float, default 3600
        How far back versions of the base table keep what they need.
    gc_index_age_seconds : float, default 7 days
        Age at which index files that no version names are taken for the rest of a build, or of a
        compaction, that died or met another commit. At least 60, and well above the longest build.
    late_seconds, critical_seconds : float, default 3600 and 43,200
        Age of the oldest unmerged generation from which the table is late, and critically so: what
        alerts, notifications and the health in the user interface go by.
    sensor_groups : int, default 64
        Airflow waits for each region by a sensor of its own up to so many regions; a table with
        more has so many sensors, each of which looks at a share of its regions.
    pool : str or None, default None
        Airflow's pool for the jobs of the table; None takes its default pool.
    retries : int, default 2
        How often Airflow tries a job again that failed.
    tags : tuple of str, default ()
        Shown beside the table, to filter by.
    priority : int, default 1
        1 to 100; tables with a higher one get free task slots first, merges before other jobs.
    quality : QualityRules or None, default None
        What the rows of the table must be like, and what a merge does about those that are not;
        see :class:`~memwal.quality.rules.QualityRules`.

    Raises
    ------
    InvalidInputError
        A value is of the wrong kind or out of its range; the message names the key.
    """

    merge_at_generations: int = 4
    merge_at_bytes: int | None = GIB
    merge_at_age_seconds: float = 300.0
    merge_commit_bytes: int = GIB
    merge_run_bytes: int | None = None
    index_at_generations: int = 1
    index_at_rows: int | None = 100_000
    index_at_age_seconds: float = 900.0
    snapshot_at_age_seconds: float = 300.0
    snapshot_at_regions: int | None = None
    gc_interval_seconds: float = 3600.0
    gc_at_bytes: int | None = GIB
    compact_at_fragments: int | None = 64
    quiet_hours: tuple[str, ...] = ()
    quiet_critical_seconds: float = 3600.0
    version_retention_seconds: float | None = None
    run_retention_seconds: float = 30 * _DAY
    sample_retention_seconds: float = 7 * _DAY
    schedule: str | float | None = 60.0
    sensor_poke_seconds: float = 10.0
    sensor_timeout_seconds: float = 60.0
    gc_grace_seconds: float = 600.0
    gc_retention_seconds: float = 3600.0
    gc_index_age_seconds: float = 7 * _DAY
    late_seconds: float = 3600.0
    critical_seconds: float = 43_200.0
    sensor_groups: int = 64
    pool: str | None = None
    retries: int = 2
    tags: tuple[str, ...] = ()
    priority: int = 1
    quality: QualityRules | None = None

    def __post_init__(self) -> None:
        check_integer("merge_at_generations", self.merge_at_generations, low=1)
        check_integer("merge_commit_bytes", self.merge_commit_bytes, low=MIB)
        check_integer("index_at_generations", self.index_at_generations, low=1)
        check_integer("priority", self.priority, low=1, high=100)
        check_integer("sensor_groups", self.sensor_groups, low=1, high=1000)
        check_integer("retries", self.retries, low=0, high=20)
        check_pool("pool", self.pool)
        for key, low in (
            ("merge_at_bytes", 1),
            ("merge_run_bytes", MIB),
            ("index_at_rows", 1),
            ("snapshot_at_regions", 1),
            ("gc_at_bytes", 1),
            # One small fragment alone has nothing to be joined with.
            ("compact_at_fragments", 2),
        ):
            check_integer(key, getattr(self, key), low=low, optional=True)
        for key, least in (
            ("merge_at_age_seconds", 0),
            ("index_at_age_seconds", 0),
            ("snapshot_at_age_seconds", 1),
            ("gc_interval_seconds", 1),
            ("quiet_critical_seconds", 0),
            ("run_retention_seconds", 0),
            ("sample_retention_seconds", 0),
            ("sensor_poke_seconds", 1),
            ("sensor_timeout_seconds", 1),
            ("gc_grace_seconds", 60),
            ("gc_retention_seconds", 0),
            ("gc_index_age_seconds", 60),
            ("late_seconds", 1),
            ("critical_seconds", 1),
        ):
            check_seconds(key, getattr(self, key), low=least)
        if self.version_retention_seconds is not None:
            check_seconds("version_retention_seconds", self.version_retention_seconds, low=0)
        check_schedule("schedule", self.schedule)
        check_tags("tags", self.tags)
        if self.quality is not None and not isinstance(self.quality, QualityRules):
            raise InvalidInputError("Policy key 'quality' is no QualityRules.")
        for window in check_tuple("quiet_hours", self.quiet_hours):
            QuietWindow.parse(window)

    def quiet_window(self, now: datetime) -> str | None:
        """The quiet hours that a moment lies in; None when it lies in none.

        Parameters
        ----------
        now : datetime
            Aware.
        """
        return next(
            (text for text in self.quiet_hours if QuietWindow.parse(text).contains(now)), None
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **asdict(replace(self, quality=None)),
            **{key: list(getattr(self, key)) for key in _TUPLES},
            "quality": None if self.quality is None else self.quality.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a policy of what :meth:`to_dict` gave; absent keys take their defaults.

        Parameters
        ----------
        values : mapping
            Keys of a policy and their values; lists stand for tuples.

        Raises
        ------
        InvalidInputError
            A key is unknown (each is named) or a value is wrong.
        """
        if not isinstance(values, Mapping):
            raise InvalidInputError(
                f"A policy is an object of keys and values, not {type(values).__name__}."
            )
        known = {field.name for field in fields(cls)}
        unknown = sorted(str(key) for key in values if key not in known)
        if unknown:
            raise InvalidInputError(
                f"Unknown policy keys: {', '.join(map(repr, unknown))}. "
                f"Known are: {', '.join(sorted(known))}."
            )
        options = dict(values)
        for key in _TUPLES:
            if isinstance(options.get(key), list):
                options[key] = tuple(options[key])
        if options.get("quality") is not None and not isinstance(options["quality"], QualityRules):
            options["quality"] = QualityRules.from_dict(options["quality"])
        return cls(**options)

    def merge_reason(self, region: RegionBacklog) -> str | None:
        """Why this region is due for a merge; None when it is not.

        Parameters
        ----------
        region : RegionBacklog
            What the region looks like now.
        """
        return merge_reason(
            region,
            at_generations=self.merge_at_generations,
            at_age_seconds=self.merge_at_age_seconds,
            at_bytes=self.merge_at_bytes,
        )


def merge_reason(
    region: RegionBacklog,
    *,
    at_generations: int,
    at_age_seconds: float,
    at_bytes: int | None = None,
) -> str | None:
    """Why a region with this backlog is due for a merge; None when it is not.

    Parameters
    ----------
    region : RegionBacklog
        What the region looks like now.
    at_generations : int
        Due when so many generations wait.
    at_age_seconds : float
        Due when the oldest waiting generation is this old.
    at_bytes : int, optional
        Due when what waits takes so many bytes.
    """
    waiting = region.backlog_generations
    if waiting >= at_generations:
        return f"{waiting} generations wait, {at_generations} are enough"
    if waiting and at_bytes is not None and region.backlog_bytes >= at_bytes:
        return f"{region.backlog_bytes} bytes wait, {at_bytes} are enough"
    age = region.oldest_backlog_seconds
    if waiting and age is not None and age >= at_age_seconds:
        return f"the oldest generation waits for {age:.0f} s, {at_age_seconds:.0f} s are enough"
    return None
