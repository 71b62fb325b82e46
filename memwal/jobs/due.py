"""Due jobs of a table: its status evaluated against its policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from memwal.jobs.policy import Policy
from memwal.jobs.status import RegionBacklog, TableStatus
from memwal.util.records import JsonRecord

JOBS = ("recover", "merge", "index", "compact", "snapshot", "gc", "quality")
"""All jobs, in the order in which one run does them."""

# An index that cannot be built again must not start a build with every look at the table.
_BAD_INDEX_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Due(JsonRecord):
    """Decision about one job: run it now or not."""

    reason: str | None = None
    """Limit that makes the job due; None if it is not due."""
    postponed: str | None = None
    """Quiet hours that hold back a job although it reached a limit; None without them."""
    pressure: float = 0.0
    """Largest ratio of a measurement to its limit; the job has reached a limit from 1 on. Tables
    that share workers are ordered by it."""
    critical: bool = False
    """The job is overdue by so much that quiet hours do not hold it back."""
    regions: tuple[str, ...] = ()
    """UUIDs of the regions to merge; empty for the other jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Measurements that a policy limits, beside the backlog of the regions.

    None means unknown, or that there was none yet, and reaches no limit.
    """

    base_rows: int | None = None
    index_generations: int = 0  # of the index that is furthest behind
    # Names of those that miss rows which they cover, or files.
    bad_indexes: tuple[str, ...] = ()
    index_rows: int | None = None  # of the base table, that one of the indexes does not cover
    seconds_since_index: float | None = None
    seconds_since_gc: float | None = None
    seconds_since_quality: float | None = None
    snapshot_age_seconds: float | None = None
    changed_regions: int | None = None  # since the snapshot
    reclaimable_bytes: int | None = None
    small_fragments: int | None = None
    deleted_percent: float | None = None  # of the rows that the base table stores


def due(
    status: TableStatus, policy: Policy, *, now: datetime, last_runs: Mapping[str, datetime]
) -> dict[str, Due]:
    """Decide for every job of :data:`JOBS` whether it is due, for ``status`` under ``policy``.

    ``now`` is aware. ``last_runs`` has the times at which the jobs last succeeded, as of
    ``History.last_runs``; jobs that never did are absent.
    """
    measurements = measure(status, now=now, last_runs=last_runs)
    return evaluate_policy(status.regions, measurements, policy, now=now)


def measure(
    status: TableStatus, *, now: datetime, last_runs: Mapping[str, datetime]
) -> Measurements:
    """Return the measures in a status and the last runs; the others stay None."""
    return Measurements(
        base_rows=status.base_rows,
        index_generations=max((lag.generations for lag in status.indexes), default=0),
        bad_indexes=tuple(lag.name for lag in status.indexes if lag.stale or lag.damaged),
        index_rows=max((lag.rows for lag in status.indexes if lag.rows is not None), default=None),
        seconds_since_index=_since("index", now, last_runs),
        seconds_since_gc=_since("gc", now, last_runs),
        seconds_since_quality=_since("quality", now, last_runs),
        snapshot_age_seconds=status.snapshot_age_seconds,
        changed_regions=status.changed_regions,
        reclaimable_bytes=status.reclaimable_bytes,
        small_fragments=status.small_fragments,
        deleted_percent=status.deleted_percent,
    )


def evaluate_policy(
    regions: Iterable[RegionBacklog], measured: Measurements, policy: Policy, *, now: datetime
) -> dict[str, Due]:
    """Compare measurements with the limits of a policy, as :func:`due` does for a status."""
    window = policy.quiet_window(now)
    regions = list(regions)
    return {
        "recover": _recover(regions, policy),
        "merge": _merge(regions, measured, policy, window),
        "index": _index(measured, policy, window),
        "compact": _compact(measured, policy, window),
        "snapshot": _snapshot(measured, policy, window),
        "gc": _gc(measured, policy, window),
        "quality": _quality(measured, policy, window),
    }


@dataclass(frozen=True, slots=True)
class _Limit:
    """A measurement and its limit; either may be unknown. ``text`` takes both."""

    text: str
    value: float | None
    at: float | None
    # An age that exceeds its limit by this much is critical; only ages can be.
    grace: float | None = None

    @property
    def pressure(self) -> float:
        if self.value is None or self.at is None:
            return 0.0
        if self.at == 0:
            # Always reached, and a ratio to 0 says nothing: the value alone gives the order.
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
        return self.text.format(f"{self.value:.0f}", f"{self.at:.0f}")


def _decide(window: str | None, *limits: _Limit, never: str | None = None) -> Due:
    """Return due if a limit is reached, or if the job never ran, for the reason ``never``."""
    reason = next((str(limit) for limit in limits if limit.reached), never)
    critical = any(limit.critical for limit in limits)
    pressure = max(limit.pressure for limit in limits)
    if never is not None:
        pressure = max(pressure, 1.0)
    if reason is not None and window is not None and not critical:
        return Due(postponed=f"quiet hours ({window}); {reason}", pressure=pressure)
    return Due(reason=reason, pressure=pressure, critical=critical)


def _recover(regions: Iterable[RegionBacklog], policy: Policy) -> Due:
    """Decide about a recovery, which quiet hours do not hold back: it flushes a few regions."""
    waiting = [region.region_id for region in regions if _needs_recovery(region, policy)]
    if not waiting:
        return Due()
    return Due(
        reason=f"unflushed rows of writers that are closed or dead (regions: {len(waiting)})",
        pressure=float(len(waiting)),
        critical=True,
    )


def _needs_recovery(region: RegionBacklog, policy: Policy) -> bool:
    if policy.recover_min_age_seconds is None:
        return region.needs_recovery
    age = region.oldest_unflushed_seconds
    return age is not None and age >= policy.recover_min_age_seconds


def _merge(
    regions: Sequence[RegionBacklog], measured: Measurements, policy: Policy, window: str | None
) -> Due:
    is_cheap = _is_cheap(regions, measured, policy)
    decisions = {
        region.region_id: _decide(window, *_region_limits(region, policy, is_cheap=is_cheap))
        for region in regions
        if region.backlog_generations
    }
    pressure = max((decision.pressure for decision in decisions.values()), default=0.0)
    ready = {
        region_id: decision.reason
        for region_id, decision in decisions.items()
        if decision.reason is not None
    }
    if not ready:
        postponed = next((d.postponed for d in decisions.values() if d.postponed), None)
        return Due(postponed=postponed, pressure=pressure)
    first, reason = next(iter(ready.items()))
    others = f", and {len(ready) - 1} more regions" if len(ready) > 1 else ""
    return Due(
        reason=f"region {first}: {reason}{others}",
        pressure=pressure,
        critical=any(decision.critical for decision in decisions.values()),
        regions=tuple(ready),
    )


def _is_cheap(regions: Iterable[RegionBacklog], measured: Measurements, policy: Policy) -> bool:
    """Return whether a merge compares few enough keys of the base table for the pending rows."""
    if policy.merge_max_keys_per_row is None or measured.base_rows is None:
        return True
    pending = sum(region.backlog_rows for region in regions)
    return measured.base_rows <= policy.merge_max_keys_per_row * pending


def _region_limits(region: RegionBacklog, policy: Policy, *, is_cheap: bool) -> list[_Limit]:
    age = _Limit(
        "oldest generation pending for {} s (limit {} s)",
        region.oldest_backlog_seconds,
        policy.merge_at_age_seconds,
        policy.quiet_critical_seconds,
    )
    if not is_cheap:
        return [age]
    return [
        _Limit(
            "{} pending generations (limit {})",
            region.backlog_generations,
            policy.merge_at_generations,
        ),
        _Limit("{} bytes pending (limit {} bytes)", region.backlog_bytes, policy.merge_at_bytes),
        age,
    ]


def _index(measured: Measurements, policy: Policy, window: str | None) -> Due:
    bad = measured.bad_indexes
    since = measured.seconds_since_index
    if since is not None and since < _BAD_INDEX_SECONDS:
        # The last build had no way to mend it, or it has just been damaged.
        bad = ()
    if not measured.index_generations and not measured.index_rows and not bad:
        return Due()
    return _decide(
        window,
        _Limit("indexes that miss rows or files: {} (limit {})", len(bad), 1),
        _Limit(
            "{} merged generations not indexed (limit {})",
            measured.index_generations,
            policy.index_at_generations,
        ),
        _Limit("{} rows not indexed (limit {})", measured.index_rows, policy.index_at_rows),
        _Limit(
            "last index build {} s ago (limit {} s)",
            measured.seconds_since_index,
            policy.index_at_age_seconds,
            policy.quiet_critical_seconds,
        ),
        never="the indexes were never built" if measured.seconds_since_index is None else None,
    )


def _compact(measured: Measurements, policy: Policy, window: str | None) -> Due:
    return _decide(
        window,
        _Limit(
            "{} small fragments (limit {})", measured.small_fragments, policy.compact_min_fragments
        ),
        _Limit(
            "{} % of the stored rows are deleted (limit {} %)",
            measured.deleted_percent,
            policy.compact_deleted_percent,
        ),
    )


def _snapshot(measured: Measurements, policy: Policy, window: str | None) -> Due:
    if measured.changed_regions == 0:
        return Due()
    return _decide(
        window,
        _Limit(
            "{} regions changed since the snapshot (limit {})",
            measured.changed_regions,
            policy.snapshot_at_regions,
        ),
        _Limit(
            "last snapshot {} s ago (limit {} s)",
            measured.snapshot_age_seconds,
            policy.snapshot_at_age_seconds,
            policy.quiet_critical_seconds,
        ),
        never="there is no snapshot" if measured.snapshot_age_seconds is None else None,
    )


def _gc(measured: Measurements, policy: Policy, window: str | None) -> Due:
    # Garbage is deleted only after the grace period of its readers: until then a further collection
    # would find the same garbage, and keep it.
    just_done = (
        measured.seconds_since_gc is not None
        and measured.seconds_since_gc < policy.gc_grace_seconds
    )
    reclaimable = None if just_done else measured.reclaimable_bytes
    return _decide(
        window,
        _Limit("{} bytes reclaimable (limit {} bytes)", reclaimable, policy.gc_at_bytes),
        _Limit(
            "last garbage collection {} s ago (limit {} s)",
            measured.seconds_since_gc,
            policy.gc_interval_seconds,
            policy.quiet_critical_seconds,
        ),
        never="garbage was never collected" if measured.seconds_since_gc is None else None,
    )


def _quality(measured: Measurements, policy: Policy, window: str | None) -> Due:
    rules = policy.quality
    if rules is None or not rules.suite or rules.check_schedule_seconds is None:
        return Due()
    since, every = measured.seconds_since_quality, rules.check_schedule_seconds
    return _decide(
        window,
        _Limit("last quality check {} s ago (limit {} s)", since, every),
        never="the quality of the rows was never checked" if since is None else None,
    )


def _since(job: str, now: datetime, last_runs: Mapping[str, datetime]) -> float | None:
    at = last_runs.get(job)
    return None if at is None else max(0.0, (now - at).total_seconds())
