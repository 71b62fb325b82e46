"""Collector of old versions of a region's manifest.

The version that bounds the log stays, and so does everything newer: later bounds are read from
those. Versions are deleted oldest first, one by one. While a version exists, no version after it
was ever trimmed; by this, a process that slept tells the end of the history from a gap in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from memwal.jobs.gc.collector import GcContext, RegionState
from memwal.jobs.gc.decision import Decision, Kind, Reason


@dataclass(frozen=True, slots=True)
class ManifestCollector:
    """Deletes the manifest versions before the one that bounds the log."""

    kind: ClassVar[Kind] = Kind.MANIFESTS
    region: RegionState

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about the stored versions, in up to two ranges."""
        region, history = self.region, self.region.history
        first_needed = history.settled.version if history.settled is not None else 0
        stored = sorted(history.objects)
        old = [version for version in stored if version < first_needed]
        needed = [version for version in stored if version >= first_needed]
        if old:
            if not context.dry_run:
                # The hint names a version that stays before any version is deleted.
                region.manifests.refresh_hint(history.latest.version)
                for version in old:
                    region.store.delete(history.objects[version].key)
            message = "no process reads them, and a newer one bounds the log"
            yield self._decision(old, Reason.UNNEEDED, message)
        message = "the newest version, and those that tell from where on the log is needed"
        yield self._decision(needed, Reason.MANIFEST_NEEDED, message)

    def _decision(self, versions: list[int], reason: Reason, message: str) -> Decision:
        history = self.region.history
        first, last = versions[0], versions[-1]
        return Decision(
            kind=self.kind,
            what=f"{first}..{last}" if last > first else str(first),
            region_id=str(self.region.region_id),
            objects=len(versions),
            bytes=sum(history.objects[version].size for version in versions),
            reason=reason,
            message=message,
        )
