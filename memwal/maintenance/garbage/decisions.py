"""What a collector decided, and why: the words that ``explain`` shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from memwal.maintenance.results import JobResult


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
