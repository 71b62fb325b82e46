"""Decisions of the collectors with their reasons, and summaries of them by kind and reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from memwal.jobs.job import JobResult


class Kind(StrEnum):
    """What may be garbage; each kind has its collector."""

    GENERATION = "generation"
    FOLDER = "folder"
    ORPHAN = "orphaned folder"
    LOG = "log entries"
    MANIFESTS = "manifest versions"
    INDEX = "index files"
    STAGING = "staging files"
    BASE_VERSIONS = "base versions"
    READ = "read protection"
    REGION = "region"


class Reason(StrEnum):
    """Why something goes or stays.

    The first goes. All others stay, some of them for a known time.
    """

    UNNEEDED = "unneeded"
    NOT_MERGED = "not_merged"
    INDEX_BEHIND = "index_behind"
    TAG = "tag"
    BRANCH = "branch"
    READ = "read"
    RETENTION = "retention"
    GRACE = "grace"
    NEWEST_ENTRY = "newest_entry"
    REPLAY = "replay"
    GENERATION_KEPT = "generation_kept"
    MANIFEST_NEEDED = "manifest_needed"
    TOO_YOUNG = "too_young"
    IN_USE = "in_use"
    UNREADABLE = "unreadable"
    TOO_MANY_VERSIONS = "too_many_versions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to become of one object, folder or range of objects.

    Attributes
    ----------
    kind : Kind
    what : str
        A name in its region, or below the table where it belongs to none; ``a..b`` for a range.
    region_id : str or None
        The region as text; None when it belongs to the table.
    objects, bytes : int
        How many objects, and their size. For a generation that the manifest is to stop naming,
        what its folder will free a grace period later; 0 where nobody asked for explanations.
    goes : bool
        Whether it goes, now or in a run that is not a dry one.
    reason : Reason
        A code for programs.
    words : str
        The same for people.
    until : str or None
        For what stays for a time only: when it may go, in ISO 8601.
    """

    kind: Kind
    what: str
    region_id: str | None = None
    objects: int = 0
    bytes: int = 0
    goes: bool
    reason: Reason
    words: str
    until: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionResult(JobResult):
    """What one run collected, or would have.

    Attributes
    ----------
    decisions : tuple of Decision
        What goes and what stays, region by region; empty unless explanations were asked for.
    """

    decisions: tuple[Decision, ...] = field(default=())


# Figure that counts what goes, and the one that sums its bytes, by kind. A generation that is
# dropped from the manifest frees nothing yet.
_FIGURES = {
    Kind.GENERATION: ("generations_dropped", None),
    Kind.FOLDER: ("folders", "bytes_folders"),
    Kind.ORPHAN: ("orphaned_folders", "bytes_orphaned_folders"),
    Kind.LOG: ("log_entries", "bytes_log_entries"),
    Kind.MANIFESTS: ("manifests", "bytes_manifests"),
    Kind.INDEX: ("index_files", "bytes_index_files"),
    Kind.STAGING: ("staging_files", "bytes_staging_files"),
    Kind.BASE_VERSIONS: ("base_versions", "bytes_base_versions"),
    Kind.READ: ("read_protections", "bytes_read_protections"),
}
# Kinds that are counted as what they are and not by their objects.
WHOLE = frozenset({Kind.GENERATION, Kind.FOLDER, Kind.ORPHAN, Kind.REGION})

FIGURES = (
    *(count for count, _ in _FIGURES.values()),
    "bytes",
    *(freed for _, freed in _FIGURES.values() if freed is not None),
)
"""Names of the figures of a collection."""


class Tally:
    """Figures of many decisions, and the decisions themselves if they are to be explained."""

    def __init__(self, *, explain: bool) -> None:
        self._explain = explain
        self.figures = dict.fromkeys(FIGURES, 0)
        self.decisions: list[Decision] = []

    def add(self, decision: Decision) -> None:
        """Count a decision."""
        if self._explain:
            self.decisions.append(decision)
        if not decision.goes:
            return
        count, freed = _FIGURES[decision.kind]
        self.figures[count] += 1 if decision.kind in WHOLE else decision.objects
        if decision.kind is Kind.ORPHAN:
            # One of the folders; the figure of its own tells how many of them were never named.
            self.figures["folders"] += 1
        if freed is not None:
            self.figures[freed] += decision.bytes
            self.figures["bytes"] += decision.bytes

    def merge(self, figures: Mapping[str, int], decisions: Iterable[Decision]) -> None:
        """Add what somebody else counted."""
        for name, number in figures.items():
            self.figures[name] += number
        self.decisions.extend(decisions)


WHY: dict[Reason, str] = {
    Reason.UNNEEDED: "nobody needs it",
    Reason.NOT_MERGED: "it is not merged yet",
    Reason.INDEX_BEHIND: "an index does not cover it yet",
    Reason.TAG: "a tagged version of the table needs it",
    Reason.READ: "a long read protects a version of the table that needs it",
    Reason.BRANCH: "a branch of the table needs it",
    Reason.RETENTION: "a version of the table needs it that is not old enough to go",
    Reason.GRACE: "a reader may still be using it",
    Reason.NEWEST_ENTRY: "the newest entry marks the end of the log",
    Reason.REPLAY: "a writer that starts would read it",
    Reason.GENERATION_KEPT: "it belongs to a generation that stays",
    Reason.MANIFEST_NEEDED: "it is among the newest versions of the manifest",
    Reason.TOO_YOUNG: "it may belong to something that is being written",
    Reason.IN_USE: "it is in use",
    Reason.UNREADABLE: "what tells whether it is needed cannot be read",
    Reason.TOO_MANY_VERSIONS: "too many versions of the table would have to be read",
}
"""Why something goes or stays, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Decisions of one kind, and of one reason when they keep something.

    Attributes
    ----------
    kind : Kind
    reason : Reason
    count : int
        Objects, generations and folders as one each.
    bytes : int
        Their size, where it is known.
    """

    kind: Kind
    reason: Reason
    count: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "kind": self.kind.value,
            "count": self.count,
            "bytes": self.bytes,
            "reason": self.reason.value,
            "why": WHY[self.reason],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Many decisions.

    Attributes
    ----------
    goes, stays : tuple of Share
        The largest first.
    examples : tuple of Decision
        Some of those that go, then some of those that stay; every kind and reason is among them.
    """

    goes: tuple[Share, ...]
    stays: tuple[Share, ...]
    examples: tuple[Decision, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "would_delete": [share.to_dict() for share in self.goes],
            "stays": [share.to_dict() for share in self.stays],
            "examples": [asdict(decision) for decision in self.examples],
        }


def summarise(decisions: Iterable[Decision], *, examples: int = 50) -> Summary:
    """Sum decisions up.

    Parameters
    ----------
    decisions : iterable of Decision
        As ``collect_garbage(explain=True)`` gives them.
    examples : int, default 50
        Most examples of what goes, and as many of what stays.
    """
    groups: dict[tuple[bool, Kind, Reason], list[Decision]] = {}
    for decision in decisions:
        groups.setdefault((decision.goes, decision.kind, decision.reason), []).append(decision)
    return Summary(
        goes=_shares(groups, goes=True),
        stays=_shares(groups, goes=False),
        examples=(
            *_examples([found for key, found in groups.items() if key[0]], examples),
            *_examples([found for key, found in groups.items() if not key[0]], examples),
        ),
    )


def _shares(
    groups: dict[tuple[bool, Kind, Reason], list[Decision]], *, goes: bool
) -> tuple[Share, ...]:
    shares = [
        Share(
            kind=kind,
            reason=reason,
            count=sum(max(one.objects, 1) if kind not in WHOLE else 1 for one in found),
            bytes=sum(one.bytes for one in found),
        )
        for (gone, kind, reason), found in groups.items()
        if gone is goes
    ]
    return tuple(sorted(shares, key=lambda share: (-share.bytes, -share.count, share.kind)))


def _examples(groups: list[list[Decision]], most: int) -> list[Decision]:
    """Take from the groups in turn, so that a large one does not crowd the others out."""
    found: list[Decision] = []
    turn = 0
    while len(found) < most and any(turn < len(group) for group in groups):
        found += [group[turn] for group in groups if turn < len(group)]
        turn += 1
    return found[:most]
