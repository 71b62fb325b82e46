"""How a table is, in one word, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memwal.catalog.records import BacklogSample
    from memwal.maintenance.policy import Policy

_REASON_LENGTH = 300


class Health(StrEnum):
    """How a table is. When several apply, it is the first of them."""

    OFF = "off"
    CRITICAL = "critical"
    TROUBLE = "trouble"
    LATE = "late"
    UNKNOWN = "unknown"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """What a job of a table failed with.

    Attributes
    ----------
    job : str
        ``look`` for the look at the table.
    reason : str
        What went wrong.
    at : datetime
        When the last try ended, or, where only that is known, since when it fails.
    """

    job: str
    reason: str
    at: datetime

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"job": self.job, "reason": self.reason, "at": self.at.isoformat()}


def backlog_age(sample: BacklogSample | None, now: datetime) -> float | None:
    """Seconds that the oldest generation of the backlog waits by now; None when there is none.

    A backlog ages on after the look at it.
    """
    if sample is None or not sample.generations or sample.oldest_seconds is None:
        return None
    return sample.oldest_seconds + max(0.0, (now - sample.at).total_seconds())


def health(
    policy: Policy,
    sample: BacklogSample | None,
    *,
    now: datetime,
    enabled: bool = True,
    held: int = 0,
    errors: Sequence[JobError] = (),
) -> tuple[Health, tuple[str, ...]]:
    """Tell how a table is, and everything that speaks against it.

    Parameters
    ----------
    policy : Policy
        Whose ``late_seconds`` and ``critical_seconds`` it is held against.
    sample : BacklogSample or None
        The latest.
    now : datetime
        Aware.
    enabled : bool, default True
        Whether it is maintained.
    held : int, default 0
        Regions that merges leave out.
    errors : sequence of JobError
        Jobs that failed, and have not succeeded since.
    """
    if not enabled:
        return Health.OFF, ("it is not maintained",)
    found: list[tuple[Health, str]] = []
    age = backlog_age(sample, now)
    for limit, word in (
        (policy.critical_seconds, Health.CRITICAL),
        (policy.late_seconds, Health.LATE),
    ):
        if age is not None and age >= limit:
            text = f"the oldest generation waits for {duration(age)}"
            found.append((word, f"{text}, {word} is {duration(limit)}"))
            break
    if held:
        regions = "1 region is" if held == 1 else f"{held} regions are"
        found.append((Health.TROUBLE, f"{regions} held"))
    found += [(Health.TROUBLE, f"{one.job} fails: {_short(one.reason)}") for one in errors]
    unseen = _unseen(policy, sample, now)
    if unseen is not None:
        found.append((Health.UNKNOWN, unseen))
    if not found:
        return Health.OK, ()
    order = list(Health)
    found.sort(key=lambda one: order.index(one[0]))
    return found[0][0], tuple(text for _, text in found)


def duration(seconds: float) -> str:
    """A duration in its two largest units."""
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    left = int(seconds)
    parts: list[str] = []
    for name, size in units:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def _unseen(policy: Policy, sample: BacklogSample | None, now: datetime) -> str | None:
    """Why nobody can tell how late the table is; None when the latest look is fresh enough."""
    if sample is None:
        return "nobody has looked at it yet"
    silent = (now - sample.at).total_seconds()
    # Whatever was flushed since the look cannot be older than the look is.
    return (
        f"nobody has looked at it for {duration(silent)}" if silent >= policy.late_seconds else None
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_LENGTH else f"{line[:_REASON_LENGTH]}…"
