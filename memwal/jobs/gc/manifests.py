"""Collector of old versions of a region's manifest.

The version that bounds the log stays, and so does everything newer: later bounds are read from
those. Versions are deleted oldest first, one by one. While a version exists, no version after it
was ever trimmed; by this, a process that slept tells the end of the history from a gap in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from memwal.jobs.gc.decision import Decision, Kind, Reason
from memwal.jobs.gc.history import History
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectStore


def judge_manifests(history: History) -> Iterator[tuple[list[int], Decision]]:
    """Decide about the stored versions, in up to two ranges."""
    first_needed = history.settled.version if history.settled is not None else 0
    stored = sorted(history.objects)
    old = [version for version in stored if version < first_needed]
    needed = [version for version in stored if version >= first_needed]
    if old:
        words = "nobody reads them, and the log is bounded by a newer one"
        yield old, _decision(history, old, Reason.UNNEEDED, words)
    words = "the newest, and those that tell since when the log is not needed"
    yield needed, _decision(history, needed, Reason.MANIFEST_NEEDED, words)


def delete(
    store: ObjectStore, manifests: RegionManifestStore, history: History, versions: list[int]
) -> None:
    """Delete versions, oldest first, after the hint names one that stays."""
    manifests.refresh_hint(history.latest.version)
    for version in versions:
        store.delete(history.objects[version].key)


def _decision(history: History, versions: list[int], reason: Reason, words: str) -> Decision:
    first, last = versions[0], versions[-1]
    return Decision(
        kind=Kind.MANIFESTS,
        what=f"{first}..{last}" if last > first else str(first),
        region_id=str(history.region_id),
        objects=len(versions),
        bytes=sum(history.objects[version].size for version in versions),
        goes=reason is Reason.UNNEEDED,
        reason=reason,
        words=words,
    )
