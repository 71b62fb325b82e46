"""What sensors wait for, held against one look at a table; nothing is read here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from memwal.errors import InvalidInputError
from memwal.jobs.due import Measurements, evaluate_policy
from memwal.jobs.policy import Policy
from memwal_airflow.skips import SkipReason
from memwal_airflow.triggers.table_status import Look


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether a condition is met.

    Attributes
    ----------
    met : bool
    text : str
        Why, or why not, for people.
    reason : SkipReason or None
        Why a merge is not due; None for one that is, and for other conditions.
    value : dict
        The figures, in plain values; what a sensor returns.
    """

    met: bool
    text: str
    value: dict[str, Any]
    reason: SkipReason | None = None


class Condition(ABC):
    """Something to wait for. Its fields are plain values, which a trigger carries."""

    __slots__ = ()

    @property
    @abstractmethod
    def regions(self) -> frozenset[str] | None:
        """UUIDs of the regions that it must see; None for all."""

    @abstractmethod
    def check(self, look: Look) -> Finding:
        """Hold it against a look."""

    @property
    def is_open(self) -> bool:
        """Whether the first look decides what is waited for."""
        return False

    def started(self, look: Look) -> Self:
        """The condition that is meant when waiting begins at this look."""
        return self

    def arguments(self) -> dict[str, Any]:
        """Arguments that make the same condition again."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True, slots=True)
class BacklogDue(Condition):
    """A region is due for a merge, by the rule that merges go by.

    Attributes
    ----------
    region_ids : list of str or None
        One of these regions; None for any of the table. One that does not exist yet has no
        backlog.
    policy : mapping
        Keys of the policy that are to be others than those of the table.
    """

    region_ids: list[str] | None
    policy: Mapping[str, Any]

    @property
    def regions(self) -> frozenset[str] | None:
        return None if self.region_ids is None else frozenset(self.region_ids)

    def check(self, look: Look) -> Finding:
        policy = look.policy
        if self.policy:
            policy = Policy.from_dict({**policy.to_dict(), **self.policy})
        wanted = self.regions
        seen = [r for r in look.status.regions if wanted is None or r.region_id in wanted]
        ready = [region for region in seen if region.region_id not in look.waiting]
        merge = evaluate_policy(ready, Measurements(), policy, now=look.at)["merge"]
        generations = sum(region.backlog_generations for region in seen)
        value = {
            "regions": list(merge.regions),
            "due": merge.reason,
            "generations": generations,
            "rows": sum(region.backlog_rows for region in seen),
            "bytes": sum(region.backlog_bytes for region in seen),
        }
        if merge.reason is not None:
            return Finding(met=True, text=merge.reason, value=value)
        if merge.held_back is not None:
            reason = SkipReason.QUIET
            why = f"held back: {merge.held_back}"
        elif len(ready) < len(seen) and generations:
            reason = SkipReason.HELD
            why = f"{len(seen) - len(ready)} regions are held and wait for their next try"
        else:
            reason = SkipReason.NOT_DUE
            why = f"{generations} generations wait, and no limit of the policy is reached"
        return Finding(met=False, text=f"no region is due ({why})", value=value, reason=reason)


@dataclass(frozen=True, slots=True)
class Merged(Condition):
    """Generations are in the base table.

    Attributes
    ----------
    generations : mapping of str to int, or None
        By region, the generation that must be; None for all that are flushed when waiting begins.
    region_ids : list of str or None
        In the latter case, those of these regions only.
    existing : bool, default False
        The generations existed when waiting began, so that a region without a backlog has merged
        them, whatever their numbers. Otherwise they may still have to be written.
    """

    generations: Mapping[str, int] | None
    region_ids: list[str] | None = None
    existing: bool = False

    @property
    def regions(self) -> frozenset[str] | None:
        if self.generations is not None:
            return frozenset(self.generations)
        return None if self.region_ids is None else frozenset(self.region_ids)

    @property
    def is_open(self) -> bool:
        return self.generations is None

    def started(self, look: Look) -> Merged:
        if not self.is_open:
            return self
        newest = {
            region.region_id: region.current_generation - 1
            for region in look.status.regions
            if region.backlog_generations
        }
        return Merged(newest, existing=True)

    def check(self, look: Look) -> Finding:
        found = {region.region_id: region for region in look.status.regions}
        left = []
        for name, generation in (self.generations or {}).items():
            region = found.get(name)
            if region is None:
                if not self.existing:
                    left.append(f"region {name} does not exist yet")
            elif region.merged_generation < generation and not (
                self.existing and not region.backlog_generations
            ):
                left.append(f"region {name} is merged up to {region.merged_generation}")
        value = {
            "version": look.status.version,
            "generations": {
                name: found[name].merged_generation
                for name in self.generations or ()
                if name in found
            },
        }
        if not left:
            return Finding(met=True, text="all of it is in the base table", value=value)
        more = f", and {len(left) - 1} more" if len(left) > 1 else ""
        return Finding(met=False, text=f"not merged yet: {left[0]}{more}", value=value)


@dataclass(frozen=True, slots=True)
class CaughtUp(Condition):
    """Maintained indexes cover what was merged.

    Attributes
    ----------
    indexes : list of str or None
        Names of maintained indexes; None for all of them.
    generations : int, default 0
        Each may be this many merged generations behind.
    """

    indexes: list[str] | None
    generations: int = 0

    @property
    def regions(self) -> frozenset[str] | None:
        # The merge progress and that of the indexes are in the base table alone.
        return frozenset()

    def check(self, look: Look) -> Finding:
        lags = {lag.name: lag for lag in look.status.indexes}
        unknown = sorted(set(self.indexes or ()) - set(lags))
        if unknown:
            raise InvalidInputError(
                f"{look.status.uri} maintains no index {', '.join(unknown)}; it maintains "
                f"{', '.join(sorted(lags)) or 'none'}"
            )
        names = sorted(lags if self.indexes is None else self.indexes)
        behind = [lags[name] for name in names if lags[name].generations > self.generations]
        value = {
            "version": look.status.version,
            "indexes": {name: lags[name].generations for name in names},
        }
        if not behind:
            return Finding(met=True, text="the indexes have caught up", value=value)
        text = ", ".join(f"{lag.name} lacks {lag.generations} generations" for lag in behind)
        return Finding(met=False, text=text, value=value)
