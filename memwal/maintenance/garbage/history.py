"""The stored versions of a region's manifest, of which as few as possible are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from uuid import UUID

from memwal.errors import ObjectNotFoundError
from memwal.format.region_manifest import RegionManifest
from memwal.region.manifest_store import RegionManifestStore
from memwal.region.manifest_versions import newest_before, unbroken
from memwal.storage.base import ObjectInfo

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Versions of one region's manifest, as they were at one listing.

    Attributes
    ----------
    objects : mapping of int to ObjectInfo
        Every stored version, also those before a gap.
    latest : RegionManifest
        The newest one.
    then : RegionManifest or None
        The one that was the newest a grace period ago; None when it was trimmed.
    settled : RegionManifest or None
        The newest one from then or before of whose flushed generations none is kept: what it says
        is covered by generations was merged and dropped, and is needed by nobody.
    """

    objects: Mapping[int, ObjectInfo]
    latest: RegionManifest
    then: RegionManifest | None
    settled: RegionManifest | None

    @property
    def region_id(self) -> UUID:
        """The region."""
        return self.latest.region_id

    @property
    def oldest_kept(self) -> int:
        """Oldest generation that is named; the next one to be flushed when none is."""
        return self.latest.oldest_kept

    def written(self, version: int) -> datetime:
        """When a version was written."""
        return self.objects[version].modified


def read_history(manifests: RegionManifestStore, *, expired: datetime) -> History | None:
    """List a region's manifests and read what matters; None for a claim that died before one.

    One listing, and the newest version, the one that was so a grace period ago and, where
    generations since then are not dropped, a few older ones.

    Parameters
    ----------
    expired : datetime
        A grace period ago.
    """
    for attempt in range(_ATTEMPTS):
        objects = manifests.objects()
        try:
            return _read(manifests, objects, expired) if objects else None
        except ObjectNotFoundError:
            # Another collector trims the region; what it leaves is at the end.
            if attempt == _ATTEMPTS - 1:
                raise
    return None


def _read(
    manifests: RegionManifestStore, objects: Mapping[int, ObjectInfo], expired: datetime
) -> History:
    read = cache(manifests.read)
    versions = unbroken(objects, max(objects))
    latest = read(versions[-1])
    # Times of one store's clock; where they jump back, the newest version that is old counts.
    then = next((v for v in reversed(versions) if objects[v].modified <= expired), None)
    if then is None:
        return History(objects=objects, latest=latest, then=None, settled=None)
    return History(
        objects=objects,
        latest=latest,
        then=read(then),
        settled=newest_before(read, range(versions[0], then + 1), latest.oldest_kept),
    )
