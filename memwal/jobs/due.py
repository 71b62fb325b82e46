"""Due jobs of a table: its status evaluated against its policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from memwal.jobs.policy import Policy
from memwal.jobs.status import RegionBacklog, TableStatus
from memwal.util.records import JsonRecord

JOBS = ("recover", "merge", "index", "compact", "snapshot", "gc", "quality")
"""All jobs, in the order in which one run does them."""

_LOG_JOBS = ("recover", "merge", "snapshot")

# An index that cannot be built again must not start a build with every look at the table.
_BAD_INDEX_SECONDS: Final = 600.0


def jobs_of(*, mem_wal: bool) -> tuple[str, ...]:
    """Return the jobs of a table with MemWAL, or without: then it has no jobs of regions."""
    return tuple(job for job in JOBS if mem_wal or job not in _LOG_JOBS)


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
    """An age exceeds its limit by ``quiet_critical_seconds``: quiet hours do not hold the job back.
    """
    regions: tuple[str, ...] = ()
    """UUIDs of the regions to merge or to recover; empty for the other jobs."""


NOT_DUE: Final = Due()
"""Decision about a job that the table does not have."""


def due(
    status: TableStatus, policy: Policy, *, now: datetime, last_runs: Mapping[str, datetime]
) -> dict[str, Due]:
    """Decide for every job of a table whether it is due, for ``status`` under ``policy``.

    A table has the jobs of :func:`jobs_of`.

    ``now`` is aware. ``last_runs`` has the times at which the jobs last succeeded, as of
    ``History.last_runs``; jobs that never did are absent. A measurement that is unknown reaches no
    limit.
    """
    window = policy.quiet_window(now)
    since = {job: max(0.0, (now - at).total_seconds()) for job, at in last_runs.items()}
    jobs = {
        "recover": _recover(status, policy),
        "merge": _merge(status, policy, window),
        "index": _index(status, policy, window, since.get("index")),
        "compact": _compact(status, policy, window),
        "snapshot": _snapshot(status, policy, window),
        "gc": _gc(status, policy, window, since.get("gc")),
        "quality": _quality(policy, window, since.get("quality")),
    }
    return {job: jobs[job] for job in jobs_of(mem_wal=status.mem_wal)}


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


def _recover(status: TableStatus, policy: Policy) -> Due:
    """Decide about a recovery, which quiet hours do not hold back: it flushes a few regions."""
    min_age = policy.recover_min_age_seconds
    waiting = tuple(
        region.region_id
        for region in status.regions
        if (
            region.needs_recovery
            if min_age is None
            else (region.unchanged_seconds or 0.0) >= min_age
        )
    )
    if not waiting:
        return Due()
    return Due(
        reason=f"unflushed rows of writers that are closed or dead (regions: {len(waiting)})",
        pressure=float(len(waiting)),
        critical=True,
        regions=waiting,
    )


def region_limits(
    status: TableStatus, policy: Policy, *, now: datetime
) -> dict[str, tuple[Due, str]]:
    """Decide for every region with a backlog whether its merge is due.

    The second value is the limit that the region is nearest to, or has exceeded the most.
    """
    return _region_decisions(status, policy, policy.quiet_window(now))


def _region_decisions(
    status: TableStatus, policy: Policy, window: str | None
) -> dict[str, tuple[Due, str]]:
    # Whether a merge compares few enough keys of the base table for the pending rows.
    most = policy.merge_max_keys_per_row
    is_cheap = most is None or (status.base_rows or 0) <= most * status.backlog_rows
    decisions = {}
    for region in status.regions:
        if region.backlog_generations:
            limits = _region_limits(region, policy, is_cheap=is_cheap)
            known = [limit for limit in limits if None not in (limit.value, limit.at)]
            nearest = max(known, key=lambda limit: limit.pressure, default="no limit is set")
            decisions[region.region_id] = _decide(window, *limits), str(nearest)
    return decisions


def _merge(status: TableStatus, policy: Policy, window: str | None) -> Due:
    decisions = {
        region_id: decision
        for region_id, (decision, _) in _region_decisions(status, policy, window).items()
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


def _index(status: TableStatus, policy: Policy, window: str | None, since: float | None) -> Due:
    # Soon after a build, it had no way to mend an index, or the index has just been damaged.
    has_tried = since is not None and since < _BAD_INDEX_SECONDS
    bad = sum(lag.stale or lag.damaged for lag in status.indexes if not has_tried)
    generations = max((lag.generations for lag in status.indexes), default=0)
    rows = max((lag.rows for lag in status.indexes if lag.rows is not None), default=None)
    if not generations and not rows and not bad:
        return Due()
    return _decide(
        window,
        _Limit("indexes that miss rows or files: {} (limit {})", bad, 1),
        _Limit(
            "{} merged generations not indexed (limit {})", generations, policy.index_at_generations
        ),
        _Limit("{} rows not indexed (limit {})", rows, policy.index_at_rows),
        _Limit(
            "last index build {} s ago (limit {} s)",
            since,
            policy.index_at_age_seconds,
            policy.quiet_critical_seconds,
        ),
        never="the indexes were never built" if since is None else None,
    )


def _compact(status: TableStatus, policy: Policy, window: str | None) -> Due:
    return _decide(
        window,
        _Limit(
            "{} small fragments (limit {})", status.small_fragments, policy.compact_min_fragments
        ),
        _Limit(
            "{} % of the stored rows are deleted (limit {} %)",
            status.deleted_percent,
            policy.compact_deleted_percent,
        ),
    )


def _snapshot(status: TableStatus, policy: Policy, window: str | None) -> Due:
    if status.changed_regions == 0:
        return Due()
    return _decide(
        window,
        _Limit(
            "{} regions changed since the snapshot (limit {})",
            status.changed_regions,
            policy.snapshot_at_regions,
        ),
        _Limit(
            "last snapshot {} s ago (limit {} s)",
            status.snapshot_age_seconds,
            policy.snapshot_at_age_seconds,
            policy.quiet_critical_seconds,
        ),
        never="there is no snapshot" if status.snapshot_age_seconds is None else None,
    )


def _gc(status: TableStatus, policy: Policy, window: str | None, since: float | None) -> Due:
    # Garbage is deleted only after the grace period of its readers: until then a further collection
    # would find the same garbage, and keep it.
    just_done = since is not None and since < policy.gc_grace_seconds
    reclaimable = None if just_done else status.reclaimable_bytes
    return _decide(
        window,
        _Limit("{} bytes reclaimable (limit {} bytes)", reclaimable, policy.gc_at_bytes),
        _Limit(
            "last garbage collection {} s ago (limit {} s)",
            since,
            policy.gc_interval_seconds,
            policy.quiet_critical_seconds,
        ),
        never="garbage was never collected" if since is None else None,
    )


def _quality(policy: Policy, window: str | None, since: float | None) -> Due:
    rules = policy.quality
    if rules is None or not rules.suite or rules.check_schedule_seconds is None:
        return Due()
    return _decide(
        window,
        _Limit("last quality check {} s ago (limit {} s)", since, rules.check_schedule_seconds),
        never="the quality of the rows was never checked" if since is None else None,
    )
