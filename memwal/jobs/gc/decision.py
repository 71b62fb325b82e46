"""Decisions of the collectors and their reasons, metrics of a run, and totals of many decisions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Self

from memwal.jobs.job import JobResult, ReasonCode
from memwal.util.records import JsonRecord


class GarbageKind(StrEnum):
    """Kinds of garbage, and the metric that counts the deletions of each.

    A generation that is dropped from the manifest frees no bytes yet, and a region is never
    deleted.
    """

    count_metric: str | None
    counts_objects: bool  # otherwise each decision counts as one

    GENERATION = "generation", "generations_dropped", False
    FOLDER = "folder", "folders", False
    ORPHAN = "orphaned folder", "orphaned_folders", False
    LOG = "log entries", "log_entries", True
    MANIFESTS = "manifest versions", "manifests", True
    INDEX = "index files", "index_files", True
    STAGING = "staging files", "staging_files", True
    BASE_VERSIONS = "base versions", "base_versions", True
    READ = "read protection", "read_protections", True
    CONSUMER = "consumer tag", "consumer_tags", True
    REGION = "region", None, False

    def __new__(cls, value: str, count_metric: str | None, counts_objects: bool) -> Self:
        """Make a member whose value is its name for people."""
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.count_metric = count_metric
        kind.counts_objects = counts_objects
        return kind

    @property
    def bytes_metric(self) -> str | None:
        """Metric of the freed bytes."""
        frees_none = self in (GarbageKind.GENERATION, GarbageKind.REGION)
        return None if frees_none else f"bytes_{self.count_metric}"


class Reason(ReasonCode):
    """Reason for deleting an object (the first member) or keeping it (all others)."""

    UNNEEDED = "unneeded", "it is no longer needed"
    NOT_MERGED = "not_merged", "it is not merged yet"
    INDEX_BEHIND = "index_behind", "an index does not cover it yet"
    TAG = "tag", "a tagged version of the table needs it"
    BRANCH = "branch", "a branch of the table needs it"
    READ = "read", "a long read protects a version of the table that needs it"
    CONSUMER = "consumer", "a consumer of the table's changes has not read it yet"
    RETENTION = "retention", "a version of the table within the retention needs it"
    FOREIGN_CLAIM = "foreign_claim", "a live writer of another client may still read it"
    GRACE = "grace", "a reader may still be using it"
    NEWEST_ENTRY = "newest_entry", "the newest entry marks the end of the log"
    REPLAY = "replay", "the next writer replays it"
    GENERATION_KEPT = "generation_kept", "it belongs to a generation that is kept"
    MANIFEST_NEEDED = "manifest_needed", "it is among the newest versions of the manifest"
    TOO_YOUNG = "too_young", "it may belong to a write under way"
    IN_USE = "in_use", "it is in use"
    LINK = "link", "it is behind a symbolic link, and nothing is deleted there"
    UNREADABLE = "unreadable", "an object that tells whether it is needed cannot be read"
    TOO_MANY_VERSIONS = (
        "too_many_versions",
        "too many versions of the table would have to be read",
    )


DecisionReason = tuple[Reason, str, datetime | None]
"""Reason of a decision, its message, and the time until which an object is kept, if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision to delete or keep one object, folder or range of objects, with its reason."""

    kind: GarbageKind
    """Kind of garbage that the object may be."""
    what: str
    """Name in its region, or below the table if it belongs to no region; ``a..b`` for a range."""
    region_id: str | None = None
    """UUID of the region as text; None if it belongs to the table."""
    objects: int = 0
    """Number of objects. For a generation that is dropped from the manifest: the objects that its
    folder will free a grace period later; 0 unless explanations are asked for.
    """
    bytes: int = 0
    """Size of these objects."""
    delete: bool = field(init=False)
    """True if it is deleted, by this run or, if this is a dry run, by a real one: exactly if the
    reason is ``UNNEEDED``."""
    reason: Reason
    """Code for programs."""
    message: str
    """The reason for people."""
    until: str | None = None
    """If it is kept until a known time: that time, in ISO 8601."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "delete", self.reason is Reason.UNNEEDED)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CollectionResult(JobResult):
    """Result of a collection."""

    decisions: tuple[Decision, ...] = field(default=())
    """Decisions about all objects, region by region; empty unless ``explain`` was set."""


METRICS = (
    *(kind.count_metric for kind in GarbageKind if kind.count_metric is not None),
    "bytes",
    *(kind.bytes_metric for kind in GarbageKind if kind.bytes_metric is not None),
)
"""Names of the metrics of a collection."""


@dataclass(slots=True, kw_only=True)
class CollectionTally:
    """Metrics of many decisions, the warnings, and the decisions themselves if ``explain``."""

    explain: bool
    metrics: dict[str, int] = field(default_factory=lambda: dict.fromkeys(METRICS, 0))
    decisions: list[Decision] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, decision: Decision) -> None:
        """Count a decision. Each link behind which something would be deleted is a warning."""
        if self.explain:
            self.decisions.append(decision)
        if decision.reason is Reason.LINK and decision.message not in self.warnings:
            self.warnings.append(decision.message)
        if not decision.delete:
            return
        kind = decision.kind
        if kind.count_metric is not None:
            self.metrics[kind.count_metric] += decision.objects if kind.counts_objects else 1
        if kind is GarbageKind.ORPHAN:
            # An orphan is one of the folders too; its own metric counts those never in a manifest.
            self.metrics["folders"] += 1
        if kind.bytes_metric is not None:
            self.metrics[kind.bytes_metric] += decision.bytes
            self.metrics["bytes"] += decision.bytes

    def merge(self, other: CollectionTally) -> None:
        """Add the metrics, decisions and warnings of another tally."""
        for name, number in other.metrics.items():
            self.metrics[name] += number
        self.decisions.extend(other.decisions)
        # A link to the folder of all regions is met in each of them.
        self.warnings.extend(w for w in other.warnings if w not in self.warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionGroup(JsonRecord):
    """Totals of the decisions of one kind and one reason."""

    json_properties: ClassVar[tuple[str, ...]] = ("why",)

    kind: GarbageKind
    count: int  # number of objects; a generation or folder counts as one
    bytes: int  # their size, where it is known
    reason: Reason

    @property
    def why(self) -> str:
        """The reason for people."""
        return self.reason.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(JsonRecord):
    """Totals of many decisions, with examples."""

    # The largest first.
    would_delete: tuple[DecisionGroup, ...]
    stays: tuple[DecisionGroup, ...]
    # Some deleted objects, then some kept ones; every kind and reason is among them.
    examples: tuple[Decision, ...]


def summarise(decisions: Iterable[Decision], *, examples: int = 50) -> Summary:
    """Total the decisions of ``collect_garbage(explain=True)`` by kind and reason.

    Gives at most ``examples`` deleted objects, and as many kept ones.
    """
    groups: dict[tuple[bool, GarbageKind, Reason], list[Decision]] = {}
    for decision in decisions:
        groups.setdefault((decision.delete, decision.kind, decision.reason), []).append(decision)
    deleted = [group for (delete, _, _), group in groups.items() if delete]
    kept = [group for (delete, _, _), group in groups.items() if not delete]
    return Summary(
        would_delete=_totals(deleted),
        stays=_totals(kept),
        examples=(*_examples(deleted, examples), *_examples(kept, examples)),
    )


def _totals(groups: list[list[Decision]]) -> tuple[DecisionGroup, ...]:
    totals = [
        DecisionGroup(
            kind=group[0].kind,
            reason=group[0].reason,
            count=sum(max(d.objects, 1) if d.kind.counts_objects else 1 for d in group),
            bytes=sum(decision.bytes for decision in group),
        )
        for group in groups
    ]
    return tuple(sorted(totals, key=lambda total: (-total.bytes, -total.count, total.kind)))


def _examples(groups: list[list[Decision]], limit: int) -> list[Decision]:
    """Select decisions round-robin over the groups, so that a large one does not hide others."""
    selected: list[Decision] = []
    turn = 0
    while len(selected) < limit and any(turn < len(group) for group in groups):
        selected += [group[turn] for group in groups if turn < len(group)]
        turn += 1
    return selected[:limit]
