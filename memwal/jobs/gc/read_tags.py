"""Collector of read tags that have expired."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from memwal.base_table.read_tags import ReadTag, delete_tag
from memwal.jobs.gc.collector import GcContext
from memwal.jobs.gc.decision import Decision, Kind, Reason
from memwal.jobs.gc.options import moment
from memwal.jobs.gc.pins import list_read_tags, protection_end
from memwal.storage.location import TableLocation


@dataclass(frozen=True, slots=True)
class ReadTagCollector:
    """Collects read tags whose protection has ended; no other tag is ever deleted.

    An expired tag is checked again before it is deleted, since its reader may have renewed it.
    """

    kind: ClassVar[Kind] = Kind.READ
    location: TableLocation

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about each read tag that was listed when the pins were read."""
        for tag, size, end in list_read_tags(context.pins.refs, context.ages):
            decision = self._decide(tag, size, end, context)
            if not decision.delete or context.dry_run:
                yield decision
                continue
            info = self.location.store.head(tag.key)
            if info is None:
                continue
            end = protection_end(tag, info.modified, context.ages)
            decision = self._decide(tag, info.size, end, context)
            if decision.delete:
                delete_tag(self.location, tag)
            yield decision

    def _decide(self, tag: ReadTag, size: int, end: datetime, context: GcContext) -> Decision:
        expired = end <= context.ages.now
        return Decision(
            kind=self.kind,
            what=tag.name,
            objects=1,
            bytes=size,
            reason=Reason.UNNEEDED if expired else Reason.READ,
            message=(
                f"the read of version {tag.version} ended, or its process did"
                if expired
                else f"a read protects version {tag.version} while it renews this tag"
            ),
            until=None if expired else moment(end),
        )
