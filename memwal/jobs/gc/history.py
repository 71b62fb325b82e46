"""Stored versions of region manifests and of the base table; as few as possible are read."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from uuid import UUID

from memwal.errors import ObjectNotFoundError
from memwal.format.lance_manifest import find_mem_wal_index, read_index_section
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import DATA_DIR, VERSIONS_DIR, parse_table_version
from memwal.format.region_manifest import RegionManifest
from memwal.region.manifest_store import (
    RegionManifestStore,
    contiguous_versions,
    last_version_before_flush,
)
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectInfo

_ATTEMPTS = 5
_TREE_DIR = "tree"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestVersions:
    """Versions of one region's manifest at one listing."""

    objects: Mapping[int, ObjectInfo]  # every stored version, also those before a gap
    latest: RegionManifest  # the newest version
    # The version that was the newest a grace period ago; None if it was trimmed.
    then: RegionManifest | None
    # The newest version from then or before whose flushed generations are all dropped by now. The
    # part of the log that it says is covered by generations is therefore no longer needed.
    settled: RegionManifest | None

    @property
    def region_id(self) -> UUID:
        """Id of the region."""
        return self.latest.region_id

    def written(self, version: int) -> datetime:
        """Return when a version was written."""
        return self.objects[version].modified


def read_history(manifests: RegionManifestStore, *, expired: datetime) -> ManifestVersions | None:
    """List a region's manifests and read the manifests that decide about garbage.

    These are the newest version, the one that was the newest a grace period ago (``expired``) and,
    if generations of that one are not dropped yet, a few older ones. None if there is no manifest:
    a claim died before it wrote one. CorruptDataError is raised if the newest one is lost.
    """
    for attempt in range(_ATTEMPTS):
        hint = manifests.read_hint()
        objects = manifests.list_versions()
        manifests.check_hint(hint, objects)
        try:
            return _read_listed(manifests, objects, expired) if objects else None
        except ObjectNotFoundError:
            # Another collector is trimming the region, from the front; the newest versions stay.
            if attempt == _ATTEMPTS - 1:
                raise
    return None


def _read_listed(
    manifests: RegionManifestStore, objects: Mapping[int, ObjectInfo], expired: datetime
) -> ManifestVersions:
    read = cache(manifests.read)
    versions = contiguous_versions(objects, max(objects))
    latest = read(versions[-1])
    # Times of the store's clock. If it jumped back, the newest version that is old counts.
    then = next((v for v in reversed(versions) if objects[v].modified <= expired), None)
    if then is None:
        return ManifestVersions(objects=objects, latest=latest, then=None, settled=None)
    return ManifestVersions(
        objects=objects,
        latest=latest,
        then=read(then),
        settled=last_version_before_flush(read, range(versions[0], then + 1), latest.oldest_kept),
    )


# A commit under way: the manifest's name with a suffix, to be renamed or copied.
_STAGED = re.compile(r"d?[0-9]{1,20}\.manifest[-.#].+")


@dataclass(frozen=True, slots=True)
class StoredVersions:
    """Stored versions of a table or branch, from one listing.

    Lance's own list of versions would read every manifest for its time.
    """

    manifests: Mapping[int, ObjectInfo]  # by version
    # Manifests of commits that are under way, or died.
    staged: tuple[ObjectInfo, ...] = field(default=())
    others: tuple[ObjectInfo, ...] = field(default=())  # manifests of detached versions

    @classmethod
    def list(cls, location: TableLocation, folder: str = VERSIONS_DIR) -> StoredVersions:
        """List the versions of a table, or of the branch whose versions are in ``folder``."""
        manifests, staged, others = {}, [], []
        for info in location.store.list(folder):
            name = info.key.rpartition("/")[2]
            version = parse_table_version(name)
            if version is not None:
                manifests[version] = info
            elif _STAGED.fullmatch(name):
                staged.append(info)
            elif name.endswith(".manifest"):
                others.append(info)
        return cls(manifests, tuple(staged), tuple(others))

    def latest_at(self, time: datetime) -> int:
        """Return the version that was the latest at a time, or the oldest one still stored."""
        older = [v for v, info in self.manifests.items() if info.modified <= time]
        return max(older) if older else min(self.manifests)

    def replaced_at(self, version: int) -> datetime | None:
        """Return when the next version still stored was written; None for the newest."""
        newer = [v for v in self.manifests if v > version]
        return self.manifests[min(newer)].modified if newer else None


@functools.lru_cache(maxsize=256)
def progress_of(location: TableLocation, manifest: ObjectInfo) -> Mapping[UUID, int] | None:
    """Read the newest merged generation of each region in a version; None if it has no MemWAL.

    A manifest never changes, so each is read once per process. The cache key includes size and time
    of the listing, which differ if the table was created anew. Raises NewerFormatError if the
    version has a feature or a field that is not known.
    """
    data = location.store.get(manifest.key)
    read_index_section(data, name=manifest.key)
    entry = find_mem_wal_index(data, name=manifest.key)
    return None if entry is None else IndexDetails.decode(entry.details).merged


@functools.lru_cache(maxsize=1 << 16)
def check_known(location: TableLocation, manifest: ObjectInfo) -> None:
    """Raise NewerFormatError as :func:`progress_of`, whose answers take more memory to keep."""
    progress_of(location, manifest)


def branch_manifests(location: TableLocation) -> Iterator[ObjectInfo]:
    """Yield the manifests of every branch; it shares index files with the version it started from.

    Names of branches may contain slashes, so folders are searched at any depth.
    """
    pending = [_TREE_DIR]
    while pending:
        folder = pending.pop()
        for name in location.store.list_folders(folder):
            inner = f"{folder}/{name}"
            if name == VERSIONS_DIR:
                versions = StoredVersions.list(location, inner)
                yield from (*versions.manifests.values(), *versions.others)
            elif not name.startswith("_") and name != DATA_DIR:
                pending.append(inner)
