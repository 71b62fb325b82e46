"""Conditions that sensors wait for, evaluated on a status that was read before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from memwal.errors import InvalidInputError
from memwal.jobs.due import NOT_DUE, due
from memwal.jobs.policy import Policy
from memwal.util.records import JsonMapping, JsonObject
from memwal_airflow.skips import TaskSkipReason
from memwal_airflow.triggers.readings import TableReading


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionResult:
    """Outcome of evaluating a condition, with the reason for users."""

    met: bool
    message: str
    value: JsonObject  # A sensor's return value, in plain values.
    reason: TaskSkipReason | None = None  # Why no merge is due; None for other conditions.


class SensorCondition(ABC):
    """Base class of conditions. The fields are plain values, which a trigger serializes."""

    __slots__ = ()

    @property
    @abstractmethod
    def regions(self) -> frozenset[str] | None:
        """UUIDs of the regions that the condition reads; None for all."""

    @abstractmethod
    def check(self, reading: TableReading) -> ConditionResult:
        """Evaluate the condition."""

    @property
    def needs_start(self) -> bool:
        """True if the first reading defines the condition, see :meth:`started_at`."""
        return False

    def started_at(self, reading: TableReading) -> Self:
        """Return the condition to wait for when the wait starts with this reading."""
        return self

    def arguments(self) -> JsonObject:
        """Return the arguments of :func:`new_condition` that build an equal condition."""
        return {"condition": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class BacklogDue(SensorCondition):
    """True when a region is due for a merge, by the rule that the merge job uses."""

    region_ids: list[str] | None  # None for all. One that does not exist yet has no backlog.
    policy: JsonMapping  # Keys that replace those of the table's policy.

    @property
    def regions(self) -> frozenset[str] | None:
        return None if self.region_ids is None else frozenset(self.region_ids)

    def check(self, reading: TableReading) -> ConditionResult:
        policy = reading.policy
        if self.policy:
            policy = Policy.from_dict({**policy.to_dict(), **self.policy})
        watched = self.regions
        selected = [
            region
            for region in reading.status.regions
            if watched is None or region.region_id in watched
        ]
        ready = [
            region for region in selected if region.region_id not in reading.regions_in_backoff
        ]
        status = replace(reading.status, regions=tuple(ready))
        merge = due(status, policy, now=reading.at, last_runs={}).get("merge", NOT_DUE)
        generations = sum(region.backlog_generations for region in selected)
        value = {
            "regions": list(merge.regions),
            "due": merge.reason,
            "generations": generations,
            "rows": sum(region.backlog_rows for region in selected),
            "bytes": sum(region.backlog_bytes for region in selected),
        }
        if merge.reason is not None:
            return ConditionResult(met=True, message=merge.reason, value=value)
        if merge.postponed is not None:
            reason = TaskSkipReason.QUIET
            why = f"postponed: {merge.postponed}"
        elif len(ready) < len(selected) and generations:
            reason = TaskSkipReason.BACKOFF
            why = f"{len(selected) - len(ready)} regions are skipped and wait for their next try"
        else:
            reason = TaskSkipReason.NOT_DUE
            why = f"{generations} generations wait, and no limit of the policy is reached"
        return ConditionResult(
            met=False, message=f"no region is due ({why})", value=value, reason=reason
        )


@dataclass(frozen=True, slots=True)
class GenerationsMerged(SensorCondition):
    """True when generations are in the base table."""

    # The generation to merge of each region; None for all that are flushed when the wait starts.
    generations: Mapping[str, int] | None
    region_ids: list[str] | None = None  # Only of these regions, with ``generations=None``.
    # True if the generations existed when the wait started: a region without a backlog has merged
    # them, independent of their numbers. False if they may still have to be written.
    existing: bool = False

    @property
    def regions(self) -> frozenset[str] | None:
        if self.generations is not None:
            return frozenset(self.generations)
        return None if self.region_ids is None else frozenset(self.region_ids)

    @property
    def needs_start(self) -> bool:
        return self.generations is None

    def started_at(self, reading: TableReading) -> GenerationsMerged:
        if not self.needs_start:
            return self
        newest = {
            region.region_id: region.current_generation - 1
            for region in reading.status.regions
            if region.backlog_generations
        }
        return GenerationsMerged(newest, existing=True)

    def check(self, reading: TableReading) -> ConditionResult:
        regions = {region.region_id: region for region in reading.status.regions}
        missing = []
        for name, generation in (self.generations or {}).items():
            region = regions.get(name)
            if region is None:
                if not self.existing:
                    missing.append(f"region {name} does not exist yet")
            elif region.merged_generation < generation and not (
                self.existing and not region.backlog_generations
            ):
                missing.append(f"region {name} is merged up to {region.merged_generation}")
        value = {
            "version": reading.status.version,
            "generations": {
                name: regions[name].merged_generation
                for name in self.generations or ()
                if name in regions
            },
        }
        if not missing:
            return ConditionResult(met=True, message="all of it is in the base table", value=value)
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        return ConditionResult(
            met=False, message=f"not merged yet: {missing[0]}{more}", value=value
        )


@dataclass(frozen=True, slots=True)
class IndexesCaughtUp(SensorCondition):
    """True when maintained indexes cover the merged generations."""

    indexes: list[str] | None  # None for all.
    generations: int = 0  # How many merged generations each index may be behind.

    @property
    def regions(self) -> frozenset[str] | None:
        # Both the merge progress and the progress of the indexes are in the base table alone.
        return frozenset()

    def check(self, reading: TableReading) -> ConditionResult:
        lags = {lag.name: lag for lag in reading.status.indexes}
        unknown = sorted(set(self.indexes or ()) - set(lags))
        if unknown:
            raise InvalidInputError(
                f"{reading.status.uri} maintains no index {', '.join(unknown)}; it maintains "
                f"{', '.join(sorted(lags)) or 'none'}"
            )
        names = sorted(lags if self.indexes is None else self.indexes)
        behind = [lags[name] for name in names if lags[name].generations > self.generations]
        value = {
            "version": reading.status.version,
            "indexes": {name: lags[name].generations for name in names},
        }
        if not behind:
            return ConditionResult(met=True, message="the indexes have caught up", value=value)
        message = ", ".join(f"{lag.name} lacks {lag.generations} generations" for lag in behind)
        return ConditionResult(met=False, message=message, value=value)


def new_condition(condition: str, **fields: Any) -> SensorCondition:
    """Build a condition from the name of its class and its fields."""
    kinds: dict[str, type[SensorCondition]] = {
        kind.__name__: kind for kind in (BacklogDue, GenerationsMerged, IndexesCaughtUp)
    }
    return kinds[condition](**fields)
