"""Due jobs of a table: its status evaluated against its policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from memwal.jobs.policy import Policy
from memwal.jobs.status import RegionBacklog, TableStatus

JOBS = ("merge", "index", "compact", "snapshot", "gc", "quality")
"""All jobs, in the order in which one run does them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Whether one job is to run now.

    Attributes
    ----------
    reason : str or None
        Why it is to run; None when it is not.
    held_back : str or None
        Why a job that has reached a limit is not to run yet all the same.
    pressure : float
        How often the limit that is exceeded most goes into what it limits: from 1 on, the job has
        reached it. Tables that share workers are compared by it.
    critical : bool
        It is overdue by so much that quiet hours do not hold it back.
    regions : tuple of str
        UUIDs of the regions to merge; empty for the other jobs.
    """

    reason: str | None = None
    held_back: str | None = None
    pressure: float = 0.0
    critical: bool = False
    regions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "regions": list(self.regions)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What is held against the limits, beside the backlog of the regions.

    None stands for what is not known, and reaches no limit.

    Attributes
    ----------
    index_generations : int
        Merged generations that the index which is furthest behind does not cover.
    index_rows : int or None
        Rows of the base table that one of the indexes does not cover.
    index_seconds, gc_seconds, quality_seconds : float or None
        Since the last build of the indexes, collection, and check of quality. None: there was none.
    snapshot_seconds : float or None
        Age of the region snapshot. None: there is none.
    changed_regions : int or None
        Regions that have changed since the snapshot.
    reclaimable_bytes : int or None
        What a collection would free.
    small_fragments : int or None
        Fragments of the base table that are worth joining.
    """

    index_generations: int = 0
    index_rows: int | None = None
    index_seconds: float | None = None
    gc_seconds: float | None = None
    quality_seconds: float | None = None
    snapshot_seconds: float | None = None
    changed_regions: int | None = None
    reclaimable_bytes: int | None = None
    small_fragments: int | None = None


def due(
    status: TableStatus, policy: Policy, *, now: datetime, last_runs: Mapping[str, datetime]
) -> dict[str, Due]:
    """Tell for every job of :data:`JOBS` whether it is to run now.

    Parameters
    ----------
    status : TableStatus
        What the table looks like.
    policy : Policy
        When its jobs are due.
    now : datetime
        Aware.
    last_runs : mapping of str to datetime
        When each job last succeeded, as of ``History.last_runs``; jobs that never did are absent.
    """
    figures = measure(status, now=now, last_runs=last_runs)
    return evaluate_policy(status.regions, figures, policy, now=now)


def measure(
    status: TableStatus, *, now: datetime, last_runs: Mapping[str, datetime]
) -> Measurements:
    """What a status and the last runs tell; what the status does not tell stays None."""
    return Measurements(
        index_generations=max((lag.generations for lag in status.indexes), default=0),
        index_rows=max((lag.rows for lag in status.indexes if lag.rows is not None), default=None),
        index_seconds=_since("index", now, last_runs),
        gc_seconds=_since("gc", now, last_runs),
        quality_seconds=_since("quality", now, last_runs),
        snapshot_seconds=status.snapshot_age_seconds,
        changed_regions=status.changed_regions,
        reclaimable_bytes=status.reclaimable_bytes,
        small_fragments=status.small_fragments,
    )


def evaluate_policy(
    regions: Iterable[RegionBacklog], figures: Measurements, policy: Policy, *, now: datetime
) -> dict[str, Due]:
    """Hold figures against a policy, as :func:`due` does with those of a status."""
    window = policy.quiet_window(now)
    return {
        "merge": _merge(regions, policy, window),
        "index": _index(figures, policy, window),
        "compact": _decide(
            [_Limit("small fragments", figures.small_fragments, policy.compact_at_fragments)],
            window,
        ),
        "snapshot": _snapshot(figures, policy, window),
        "gc": _gc(figures, policy, window),
        "quality": _quality(figures, policy, window),
    }


@dataclass(frozen=True, slots=True)
class _Limit:
    """Something measured and the limit that is set for it; either may be unknown."""

    name: str
    value: float | None
    at: float | None
    # An age that is this far beyond its limit is critical; only ages can be.
    grace: float | None = None

    @property
    def pressure(self) -> float:
        if self.value is None or self.at is None:
            return 0.0
        if self.at == 0:
            # Reached by whatever there is. How far beyond, a limit of nothing cannot tell.
            return 1.0 + self.value
        return self.value / self.at

    @property
    def reached(self) -> bool:
        return self.value is not None and self.at is not None and self.value >= self.at

    @property
    def critical(self) -> bool:
        if self.value is None or self.at is None or self.grace is None:
            return False
        return self.value >= self.at + self.grace

    def __str__(self) -> str:
        return f"{self.value:.0f} {self.name}, {self.at:.0f} are enough"


def _decide(limits: Iterable[_Limit], window: str | None, *, never: str | None = None) -> Due:
    """Due when one limit is reached, or by ``never``: the job has not been done at all."""
    all_limits = list(limits)
    reason = next((str(limit) for limit in all_limits if limit.reached), never)
    critical = any(limit.critical for limit in all_limits)
    pressure = max((limit.pressure for limit in all_limits), default=0.0)
    if never is not None:
        pressure = max(pressure, 1.0)
    if reason is not None and window is not None and not critical:
        return Due(held_back=f"quiet hours ({window}); {reason}", pressure=pressure)
    return Due(reason=reason, pressure=pressure, critical=critical)


def _merge(regions: Iterable[RegionBacklog], policy: Policy, window: str | None) -> Due:
    found = {
        region.region_id: _decide(_region(region, policy), window)
        for region in regions
        if region.backlog_generations
    }
    pressure = max((one.pressure for one in found.values()), default=0.0)
    ready = {name: one.reason for name, one in found.items() if one.reason is not None}
    if not ready:
        held_back = next((one.held_back for one in found.values() if one.held_back), None)
        return Due(held_back=held_back, pressure=pressure)
    first, reason = next(iter(ready.items()))
    others = f", and {len(ready) - 1} more regions" if len(ready) > 1 else ""
    return Due(
        reason=f"region {first}: {reason}{others}",
        pressure=pressure,
        critical=any(one.critical for one in found.values()),
        regions=tuple(ready),
    )


def _region(region: RegionBacklog, policy: Policy) -> list[_Limit]:
    return [
        _Limit("generations wait", region.backlog_generations, policy.merge_at_generations),
        _Limit("bytes wait", region.backlog_bytes, policy.merge_at_bytes),
        _Limit(
            "seconds of waiting",
            region.oldest_backlog_seconds,
            policy.merge_at_age_seconds,
            policy.quiet_critical_seconds,
        ),
    ]


def _index(figures: Measurements, policy: Policy, window: str | None) -> Due:
    if not figures.index_generations and not figures.index_rows:
        return Due()
    return _decide(
        [
            _Limit(
                "merged generations are not indexed",
                figures.index_generations,
                policy.index_at_generations,
            ),
            _Limit("rows are not indexed", figures.index_rows, policy.index_at_rows),
            _Limit(
                "seconds since the last build",
                figures.index_seconds,
                policy.index_at_age_seconds,
                policy.quiet_critical_seconds,
            ),
        ],
        window,
    )


def _snapshot(figures: Measurements, policy: Policy, window: str | None) -> Due:
    if figures.changed_regions == 0:
        return Due()
    return _decide(
        [
            _Limit("regions have changed", figures.changed_regions, policy.snapshot_at_regions),
            _Limit(
                "seconds since the last snapshot",
                figures.snapshot_seconds,
                policy.snapshot_at_age_seconds,
                policy.quiet_critical_seconds,
            ),
        ],
        window,
        never="there is no snapshot" if figures.snapshot_seconds is None else None,
    )


def _gc(figures: Measurements, policy: Policy, window: str | None) -> Due:
    # What could go is not gone before its readers had their time: until then a further collection
    # would find the same, and leave it.
    just_done = figures.gc_seconds is not None and figures.gc_seconds < policy.gc_grace_seconds
    reclaimable = None if just_done else figures.reclaimable_bytes
    return _decide(
        [
            _Limit("bytes can go", reclaimable, policy.gc_at_bytes),
            _Limit(
                "seconds since the last collection",
                figures.gc_seconds,
                policy.gc_interval_seconds,
                policy.quiet_critical_seconds,
            ),
        ],
        window,
        never="nothing was ever collected" if figures.gc_seconds is None else None,
    )


def _quality(figures: Measurements, policy: Policy, window: str | None) -> Due:
    rules = policy.quality
    if rules is None or not rules.suite or rules.check_schedule_seconds is None:
        return Due()
    seconds, every = figures.quality_seconds, rules.check_schedule_seconds
    return _decide(
        [_Limit("seconds since the check of quality", seconds, every)],
        window,
        never="the quality of its rows was never checked" if seconds is None else None,
    )


def _since(job: str, now: datetime, last_runs: Mapping[str, datetime]) -> float | None:
    at = last_runs.get(job)
    return None if at is None else max(0.0, (now - at).total_seconds())
