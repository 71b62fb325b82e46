"""What a collection decided, in few words: sums by kind, and by the reason for what stays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from memwal.maintenance.garbage.decisions import WHOLE, Decision, Kind, Reason

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
