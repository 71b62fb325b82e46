"""When and how one table is maintained."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from memwal.errors import InvalidInputError

if TYPE_CHECKING:
    from memwal.maintenance.status import RegionBacklog

CRON_PRESETS = frozenset({"@hourly", "@daily", "@weekly", "@monthly", "@yearly"})
CRON_FIELD = re.compile(r"[0-9A-Za-z*/,\-#?]+")
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Maintenance policy of one table. Every value is checked when the object is made.

    Attributes
    ----------
    merge_at_generations : int, default 4
        A region is due when so many generations wait. Fewer means fresher indexes and cheaper
        reads, but more commits to the base table: one per merge.
    merge_at_age_seconds : float, default 300
        A region is due when its oldest waiting generation is this old, however few there are.
    merge_max_bytes : int, default 1 GiB
        Most bytes (as the manifests count them) that one commit of a merge takes in. It bounds
        the memory of a merge task, which needs about three times as much.
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
    tags : tuple of str, default ()
        Shown beside the table, to filter by.
    priority : int, default 1
        1 to 100; tables with a higher one get free task slots first.

    Raises
    ------
    InvalidInputError
        A value is of the wrong kind or out of its range; the message names the key.
    """

    merge_at_generations: int = 4
    merge_at_age_seconds: float = 300.0
    merge_max_bytes: int = 1024 * MIB
    schedule: str | float | None = 60.0
    sensor_poke_seconds: float = 10.0
    sensor_timeout_seconds: float = 60.0
    gc_grace_seconds: float = 600.0
    gc_retention_seconds: float = 3600.0
    tags: tuple[str, ...] = ()
    priority: int = 1

    def __post_init__(self) -> None:
        _check_integer("merge_at_generations", self.merge_at_generations, low=1)
        _check_integer("merge_max_bytes", self.merge_max_bytes, low=MIB)
        _check_integer("priority", self.priority, low=1, high=100)
        _check_seconds("merge_at_age_seconds", self.merge_at_age_seconds, low=0)
        _check_seconds("sensor_poke_seconds", self.sensor_poke_seconds, low=1)
        _check_seconds("sensor_timeout_seconds", self.sensor_timeout_seconds, low=1)
        _check_seconds("gc_grace_seconds", self.gc_grace_seconds, low=60)
        _check_seconds("gc_retention_seconds", self.gc_retention_seconds, low=0)
        _check_schedule(self.schedule)
        if not isinstance(self.tags, tuple):
            raise InvalidInputError(f"Policy key 'tags' is {self.tags!r}; give a tuple of texts.")
        for tag in self.tags:
            if not isinstance(tag, str) or not TAG.fullmatch(tag):
                raise InvalidInputError(
                    f"Policy key 'tags' holds {tag!r}; a tag has 1 to 64 letters, digits and "
                    "any of _.:- and starts with a letter or digit."
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "tags": list(self.tags)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a policy of what :meth:`to_dict` gave; absent keys take their defaults.

        Raises
        ------
        InvalidInputError
            A key is unknown (each is named) or a value is wrong.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InvalidInputError(
                f"Unknown policy keys: {', '.join(map(repr, unknown))}. "
                f"Known are: {', '.join(sorted(known))}."
            )
        options = dict(values)
        if isinstance(options.get("tags"), list):
            options["tags"] = tuple(options["tags"])
        return cls(**options)

    def merge_reason(self, region: RegionBacklog) -> str | None:
        """Why this region is due for a merge; None when it is not."""
        return merge_reason(
            region,
            at_generations=self.merge_at_generations,
            at_age_seconds=self.merge_at_age_seconds,
        )


def merge_reason(
    region: RegionBacklog, *, at_generations: int, at_age_seconds: float
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
    """
    waiting = region.backlog_generations
    if waiting >= at_generations:
        return f"{waiting} generations wait, {at_generations} are enough"
    age = region.oldest_backlog_seconds
    if waiting and age is not None and age >= at_age_seconds:
        return f"the oldest generation waits for {age:.0f} s, {at_age_seconds:.0f} s are enough"
    return None


def _check_integer(key: str, value: object, *, low: int, high: int | None = None) -> None:
    wrong = not isinstance(value, int) or isinstance(value, bool) or value < low
    if wrong or (high is not None and isinstance(value, int) and value > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidInputError(f"Policy key {key!r} is {value!r}; give a whole number {limits}.")


def _check_seconds(key: str, value: object, *, low: float) -> None:
    if not _is_number(value) or not math.isfinite(value) or value < low:  # type: ignore[operator, arg-type]
        raise InvalidInputError(
            f"Policy key {key!r} is {value!r}; give a number of seconds of at least {low:g}."
        )


def _check_schedule(value: object) -> None:
    if value is None:
        return
    if isinstance(value, str):
        cron = value.split()
        if value in CRON_PRESETS or (len(cron) == 5 and all(map(CRON_FIELD.fullmatch, cron))):
            return
    elif _is_number(value):
        _check_seconds("schedule", value, low=1)
        return
    raise InvalidInputError(
        f"Policy key 'schedule' is {value!r}; give a cron expression of five fields, one of "
        f"{', '.join(sorted(CRON_PRESETS))}, a number of seconds, or None for manual runs only."
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
