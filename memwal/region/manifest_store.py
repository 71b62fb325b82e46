"""Versioned manifest of a region, and discovery of regions (spec: Region Manifest Versioning).

Versions are trimmed from the front, so those from the newest one backwards have no gap. A version
that stands before a gap was written by a process that slept through a trim, and tells nothing.
Generation numbers only grow from one version to the next, so the version in which a generation was
flushed is found by bisection.

Which version this process last saw of a region is remembered only as the place where the next
search begins. It is never trusted.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from memwal.errors import (
    ConflictError,
    CorruptDataError,
    MemWalError,
    ObjectExistsError,
    ObjectNotFoundError,
    UnsupportedStoreError,
)
from memwal.format.paths import (
    MAX_COUNTER,
    MEM_WAL_DIR,
    manifest_dir,
    manifest_key,
    parse_manifest_name,
    parse_region_name,
    version_hint_key,
)
from memwal.format.region_manifest import RegionManifest
from memwal.storage.object_store import ObjectInfo, ObjectStore, create_settled
from memwal.util.clock import boot_seconds
from memwal.util.retry import LostRaceError, retry_lost_races
from memwal.util.safe_json import read_json

logger = logging.getLogger(__name__)
_ATTEMPTS = 5
_PARALLEL_LOCAL_READS = 16
_PARALLEL_READS = 64
_MAX_REMEMBERED_REGIONS = 100_000

_RECENT_SECONDS = 120.0
"""Shorter than any collector's grace should be."""


class RegionManifestStore:
    """Reads and commits the manifest of one region.

    A version is immutable and created by put-if-absent; whoever creates version + 1 first has
    made the change, everyone else reads again.

    Old versions are trimmed, oldest first. A process that paused for longer than the collector's
    grace could therefore find "version + 1 does not exist" where it existed and is gone. What
    tells the two apart is the version itself: while it exists, nothing newer was trimmed. Hence
    the order of the requests below, successor before version.

    Such a process may also *create* version + 1 where it existed and is gone. It finds out, and
    goes no further; but until the next trim takes what it made, that looks like the newest version
    to others who slept. The hint, which names one that stays before any is trimmed, tells them.
    """

    def __init__(self, store: ObjectStore, region_id: UUID) -> None:
        self._store = store
        self.region_id = region_id

    def read_latest(self, *, recent: int | None = None) -> RegionManifest | None:
        """Newest version, or None when the region was never claimed.

        With an exact version hint it costs the hint, a look for the version after it, and the
        version. A hint that is behind costs a look per version; one that is ahead or absent costs
        a listing.

        Parameters
        ----------
        recent : int, optional
            A version that was the newest within less than the collector's grace: two requests do
            if it still is.
        """
        if recent is not None and not self._exists(recent + 1):
            with suppress(ObjectNotFoundError):
                return self.read(recent)
        hint = self._read_hint()
        if hint is not None:
            newest = self._probe_from(hint)
            if newest is not None:
                return newest
        for _ in range(_ATTEMPTS):
            versions = self.objects()
            if not versions:
                return None
            newest = self._probe_from(max(versions))
            if newest is not None:
                return newest
        raise ConflictError(
            f"the manifests of region {self.region_id} are trimmed faster than they can be read; "
            "give the garbage collector a longer grace period"
        )

    def read(self, version: int) -> RegionManifest:
        """One version; ObjectNotFoundError when it was collected or never written."""
        return self._decode(version, self._store.get(manifest_key(self.region_id, version)))

    def is_latest(self, manifest: RegionManifest) -> bool:
        """Whether nothing newer exists: two requests without a body, and the hint."""
        return (
            not self._exists(manifest.version + 1)
            and self._exists(manifest.version)
            and not self._is_past(self._read_hint(), manifest.version)
        )

    def objects(self) -> dict[int, ObjectInfo]:
        """The stored versions, each with its object."""
        found = {}
        for info in self._store.list(manifest_dir(self.region_id)):
            version = parse_manifest_name(info.key.rpartition("/")[2])
            if version is not None:
                found[version] = info
        return found

    def commit(self, manifest: RegionManifest) -> None:
        """Create ``manifest.version``, provided that nobody has.

        A manifest that is already there with the very same bytes counts as committed: two
        processes that make the same change both made it. A claim is the exception, since there
        only one of them may go on: see :meth:`commit_exclusively`.

        Raises
        ------
        ConflictError
            The version exists and says something else; or this made it, and before it could be
            made sure that it counts, others went on. Whether they built on it the newest tells.
        OutcomeUnknownError
            The store does not say whether the version exists.
        """
        key = manifest_key(self.region_id, manifest.version)
        if create_settled(self._store, key, manifest.encode()) is not None:
            raise ConflictError(f"{key} was written by somebody else first")
        self._finish(manifest.version)

    def commit_exclusively(self, manifest: RegionManifest) -> None:
        """Create ``manifest.version`` with no doubt about who did.

        Raises
        ------
        ConflictError
            The version exists, or others went on before it was sure that it counts. After an
            ambiguous answer it may be the one of this call.
        StoreUnavailableError
            The store does not say whether the version exists.
        """
        key = manifest_key(self.region_id, manifest.version)
        try:
            self._store.create(key, manifest.encode())
        except ObjectExistsError as error:
            raise ConflictError(f"{key} exists already") from error
        self._finish(manifest.version)

    def refresh_hint(self, version: int) -> None:
        """Let the hint name a version that stays; to be done before older ones are trimmed.

        Raises
        ------
        ConflictError
            Others write hints all the time.
        """
        for _ in range(_ATTEMPTS):
            stored = self._stored_hint()
            hint = _version_in(stored)
            if hint == version or self._is_past(hint, version):
                return
            with suppress(ConflictError, ObjectExistsError):
                self._replace_hint(stored, version)
                return
        raise ConflictError(f"the version hint of region {self.region_id} changes all the time")

    def _finish(self, version: int) -> None:
        """Make sure that the version was created at the end of the history, and hint at it."""
        stored = self._stored_hint()
        hint = _version_in(stored)
        if not self._is_at_the_end(version) or self._is_past(hint, version):
            # It fills a gap that trimming had left, or was superseded before this look: from here
            # the two look alike. It stays, since in the second case others build on it; in the
            # first, the next trim takes it.
            raise ConflictError(
                f"the manifests of region {self.region_id} went on while version {version} was "
                "written; read the newest one again"
            )
        if hint == version:
            return
        try:
            self._replace_hint(stored, version)
        except MemWalError as error:
            # A hint that is behind costs readers a request, never the right answer.
            logger.info("version hint of region %s not written: %s", self.region_id, error)

    def _replace_hint(self, stored: bytes | None, version: int) -> None:
        """Write the hint unless it changed: nobody who slept takes it back to what is trimmed."""
        key = version_hint_key(self.region_id)
        hint = json.dumps({"version": version}).encode()
        try:
            if stored is None:
                self._store.create(key, hint)
            else:
                self._store.replace(key, hint, expected=stored)
        except UnsupportedStoreError:
            # Such as one whose manifests are kept apart by the catalog.
            self._store.put(key, hint)

    def update(
        self, change: Callable[[RegionManifest], RegionManifest | None], *, attempts: int = 50
    ) -> RegionManifest:
        """Change the newest manifest, again on each newer one until the change lands.

        Parameters
        ----------
        change : callable
            Gets the newest manifest and returns the changed one (its version is set here), or
            None when nothing is to be changed. Raises to give up. It may get a manifest that has
            the change already, since a version that was superseded at once counts as not
            committed: it must tell, or do no harm a second time.

        Returns
        -------
        RegionManifest
            As committed, or as found when there was nothing to change.

        Raises
        ------
        ObjectNotFoundError
            The region has no manifest.
        ConflictError
            Every attempt lost its race.
        """

        def attempt() -> RegionManifest:
            current = self.read_latest()
            if current is None:
                raise ObjectNotFoundError(f"region {self.region_id} has no manifest")
            changed = change(current)
            if changed is None:
                return current
            changed = replace(changed, version=current.version + 1)
            try:
                self.commit(changed)
            except ConflictError as error:
                raise LostRaceError(str(error)) from error
            return changed

        return retry_lost_races(
            attempt,
            attempts=attempts,
            exhausted=ConflictError(
                f"the manifest of region {self.region_id} changed under each of {attempts} "
                "attempts; try again later"
            ),
        )

    def _is_at_the_end(self, version: int) -> bool:
        """Whether a version that was just created is the end of the history, or was."""
        if version > 1:
            return self._exists(version - 1)
        return max(self.objects(), default=1) == 1

    def _is_past(self, hint: int | None, version: int) -> bool:
        """Whether the hint tells that a version was trimmed, and what is there fills the gap."""
        return hint is not None and hint > version and self._exists(hint)

    def _exists(self, version: int) -> bool:
        return self._store.exists(manifest_key(self.region_id, version))

    def _probe_from(self, version: int) -> RegionManifest | None:
        while self._exists(version + 1):
            version += 1
        try:
            return self.read(version)
        except ObjectNotFoundError:
            return None

    def _decode(self, version: int, data: bytes) -> RegionManifest:
        key = manifest_key(self.region_id, version)
        manifest = RegionManifest.decode(data, name=key)
        if manifest.version != version or manifest.region_id != self.region_id:
            raise CorruptDataError(
                f"{key} says that it is version {manifest.version} of region "
                f"{manifest.region_id}; nothing was changed, restore it from a backup"
            )
        return manifest

    def _read_hint(self) -> int | None:
        return _version_in(self._stored_hint())

    def _stored_hint(self) -> bytes | None:
        try:
            return self._store.get(version_hint_key(self.region_id))
        except ObjectNotFoundError:
            return None


def discover_regions(store: ObjectStore) -> list[UUID]:
    """Ids of the regions that have a folder, in the order of their ids: one listing."""
    found = (parse_region_name(name) for name in store.list_folders(MEM_WAL_DIR))
    return sorted(region_id for region_id in found if region_id is not None)


def read_manifests(
    store: ObjectStore,
    regions: Collection[UUID] | None = None,
) -> dict[UUID, RegionManifest]:
    """Newest manifest of each region, read side by side.

    Two requests are enough for one that this process met in the last two minutes, and that is
    still the newest; others take three.

    Parameters
    ----------
    regions : collection of UUID, optional
        Regions to read; by default all that have a folder. One without a manifest (a claim that
        died before its first write) is left out.
    """
    wanted = list(discover_regions(store) if regions is None else regions)
    if not wanted:
        return {}

    now = boot_seconds()

    def read(region: UUID) -> RegionManifest | None:
        met = _last_seen.get((store.uri, region))
        recent = met.version if met is not None and now - met.at < _RECENT_SECONDS else None
        return RegionManifestStore(store, region).read_latest(recent=recent)

    with ThreadPoolExecutor(min(parallel_reads(store), len(wanted))) as pool:
        manifests = list(pool.map(read, wanted))
    found = {
        region: manifest
        for region, manifest in zip(wanted, manifests, strict=True)
        if manifest is not None
    }
    if len(_last_seen) + len(found) > _MAX_REMEMBERED_REGIONS:
        _last_seen.clear()
    _last_seen.update(
        ((store.uri, region), _SeenVersion(manifest.version, now))
        for region, manifest in found.items()
    )
    return found


def parallel_reads(store: ObjectStore) -> int:
    """How many regions are read at once: objects are waited for, files of this machine are not."""
    return _PARALLEL_LOCAL_READS if store.is_local else _PARALLEL_READS


def contiguous_versions(stored: Container[int], newest: int) -> range:
    """The versions from the newest one backwards, up to the first gap; oldest first."""
    first = newest
    while first - 1 in stored:
        first -= 1
    return range(first, newest + 1)


def last_version_before_flush(
    read: Callable[[int], RegionManifest], versions: range, generation: int
) -> RegionManifest | None:
    """The newest of some versions by which a generation was not flushed yet; None if all have it.

    Parameters
    ----------
    read : callable
        Gives a version.
    versions : range
        Without a gap; at least one.
    """
    if read(versions[-1]).current_generation <= generation:
        return read(versions[-1])
    found = bisect_right(versions[:-1], generation, key=lambda v: read(v).current_generation)
    return read(versions[found - 1]) if found else None


class _SeenVersion(NamedTuple):
    """A version of a region's manifest, and when it was the newest."""

    version: int
    at: float


# What this process met last of each region's manifest, by the table's address. Never trusted, only
# where to look first; when there are too many, all are forgotten.
_last_seen: dict[tuple[str, UUID], _SeenVersion] = {}


def _version_in(hint: bytes | None) -> int | None:
    """The version that a hint names; None if there is none, or it names nothing."""
    if hint is None:
        return None
    try:
        version = read_json(hint)["version"]
    except (ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, int) and 0 < version <= MAX_COUNTER else None
