"""Tags that reads placed for a time: they hold like any other tag, end by themselves, and then go.

A tag holds for as long as its name says after it was last written, by the clock of the store, and a
grace period more: by so much the clocks of the store and of this process may differ, and so long a
renewal may sleep on its way.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from memwal.maintenance.garbage.ages import Ages, moment
from memwal.maintenance.garbage.decisions import Decision, Kind, Reason
from memwal.maintenance.garbage.refs import Refs
from memwal.storage.location import TableLocation
from memwal.table_index.read_tags import ReadTag, parse_read_tag_key, withdraw


def names_told(refs: Refs) -> frozenset[str]:
    """Names of the tags of reads of which it is known when they were written."""
    return frozenset(tag.name for key, _, _ in refs if (tag := parse_read_tag_key(key)) is not None)


def protected_until(refs: Refs, ages: Ages) -> dict[int, datetime]:
    """Versions that a read still protects, and when the last of its tags ends."""
    found: dict[int, datetime] = {}
    for tag, _, end in _read_tags(refs, ages):
        if end > ages.now:
            found[tag.version] = max(end, found.get(tag.version, end))
    return found


def judge_read_tags(refs: Refs, ages: Ages) -> Iterator[tuple[ReadTag, Decision]]:
    """Decide about each tag of a read; those of anybody else are nobody's business here."""
    for tag, size, end in _read_tags(refs, ages):
        yield tag, _decision(tag, size, end, ages)


def end(location: TableLocation, tag: ReadTag, ages: Ages) -> Decision | None:
    """Take away a tag that has ended, unless it was renewed meanwhile; None if it is gone."""
    found = location.store.head(tag.key)
    if found is None:
        return None
    decision = _decision(tag, found.size, tag.ends(found.modified) + ages.grace, ages)
    if decision.goes:
        withdraw(location, tag)
    return decision


def _read_tags(refs: Refs, ages: Ages) -> Iterator[tuple[ReadTag, int, datetime]]:
    for key, size, written in refs:
        tag = parse_read_tag_key(key)
        if tag is not None:
            yield tag, size, tag.ends(written) + ages.grace


def _decision(tag: ReadTag, size: int, end: datetime, ages: Ages) -> Decision:
    ended = end <= ages.now
    return Decision(
        kind=Kind.READ,
        what=tag.name,
        objects=1,
        bytes=size,
        goes=ended,
        reason=Reason.UNNEEDED if ended else Reason.READ,
        words=(
            f"the read of version {tag.version} ended, or its process did"
            if ended
            else f"a read protects version {tag.version} while it renews this"
        ),
        until=None if ended else moment(end),
    )
