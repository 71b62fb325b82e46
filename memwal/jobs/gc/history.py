"""Stored versions of region manifests and of the base table, reading as few as possible."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from uuid import UUID

from memwal.errors import ObjectNotFoundError
from memwal.format.lance_manifest import find_mem_wal_index
from memwal.format.memwal_index import IndexDetails
from memwal.format.region_manifest import RegionManifest
from memwal.region.manifest_store import (
    RegionManifestStore,
    contiguous_versions,
    last_version_before_flush,
)
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectInfo

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
        objects = manifests.list_versions()
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
    versions = contiguous_versions(objects, max(objects))
    latest = read(versions[-1])
    # Times of one store's clock; where they jump back, the newest version that is old counts.
    then = next((v for v in reversed(versions) if objects[v].modified <= expired), None)
    if then is None:
        return History(objects=objects, latest=latest, then=None, settled=None)
    return History(
        objects=objects,
        latest=latest,
        then=read(then),
        settled=last_version_before_flush(read, range(versions[0], then + 1), latest.oldest_kept),
    )


VERSIONS_DIR = "_versions"

_MANIFEST = re.compile(r"([0-9]{1,20})\.manifest")
# A commit under way: the manifest's name with something behind it, to be renamed or copied.
_STAGED = re.compile(r"d?[0-9]{1,20}\.manifest[-.#].+")
_INVERTED_DIGITS = 20
_MAX_U64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class StoredVersions:
    """What one listing of a table's versions tells.

    Listing instead of asking Lance, which would read the manifest of every version for its time.

    Attributes
    ----------
    manifests : mapping of int to ObjectInfo
        By version.
    staged : sequence of ObjectInfo
        Manifests of commits that are under way, or died.
    others : sequence of ObjectInfo
        Manifests of another kind: detached versions.
    """

    manifests: Mapping[int, ObjectInfo]
    staged: tuple[ObjectInfo, ...] = field(default=())
    others: tuple[ObjectInfo, ...] = field(default=())

    @classmethod
    def list(cls, location: TableLocation, folder: str = VERSIONS_DIR) -> StoredVersions:
        """List the versions of a table, or of the branch whose versions are in ``folder``."""
        manifests, staged, others = {}, [], []
        for info in location.store.list(folder):
            name = info.key.rpartition("/")[2]
            version = parse_version(name)
            if version is not None:
                manifests[version] = info
            elif _STAGED.fullmatch(name):
                staged.append(info)
            elif name.endswith(".manifest"):
                others.append(info)
        return cls(manifests, tuple(staged), tuple(others))

    def latest_at(self, time: datetime) -> int:
        """The version that was the latest at a time, or the oldest one that is left."""
        older = [v for v, info in self.manifests.items() if info.modified <= time]
        return max(older) if older else min(self.manifests)

    def replaced_at(self, version: int) -> datetime | None:
        """When the next version that is left was written; None for the newest."""
        newer = [v for v in self.manifests if v > version]
        return self.manifests[min(newer)].modified if newer else None


def parse_version(name: str) -> int | None:
    """Return the version whose manifest has this name, in either naming, or None."""
    match = _MANIFEST.fullmatch(name)
    if match is None:
        return None
    number = int(match.group(1))
    if number > _MAX_U64:
        return None
    return _MAX_U64 - number if len(match.group(1)) == _INVERTED_DIGITS else number


def progress_of(location: TableLocation, manifest: ObjectInfo) -> Mapping[UUID, int] | None:
    """Newest merged generation of each region in an old version; None when it has no MemWAL.

    A manifest never changes, so that each is read once while it has the size and the time that
    the listing tells: a table that was made anew has others.
    """
    return _progress(location, manifest)


@functools.lru_cache(maxsize=256)
def _progress(location: TableLocation, manifest: ObjectInfo) -> Mapping[UUID, int] | None:
    entry = find_mem_wal_index(location.store.get(manifest.key), name=manifest.key)
    return None if entry is None else IndexDetails.decode(entry.details).merged
