"""The stored versions of a Lance table, and the merge progress of old ones."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from memwal.format.index_details import IndexDetails
from memwal.format.table_manifest import find_mem_wal_index
from memwal.storage.base import ObjectInfo
from memwal.storage.location import TableLocation

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
