"""Versioned manifest of a region, and discovery of regions (spec: Region Manifest Versioning).

The garbage collector trims the oldest versions, so the versions from the newest one backwards have
no gap. A version before a gap was written by a process that was paused during a trim, and must be
ignored. Generation numbers never decrease from one version to the next, so bisection finds the
version in which a generation was flushed.

A process remembers the last version that it saw of each region, only as the place where the next
search begins. It never relies on it.
"""

from __future__ import annotations

import json
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar
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
from memwal.region.change_trace import leave_trace
from memwal.storage.object_store import ObjectInfo, ObjectStore, create_settled
from memwal.util.clock import boot_seconds
from memwal.util.concurrency import map_parallel
from memwal.util.retry import LostRaceError, retry_lost_races
from memwal.util.safe_json import read_json
from memwal.util.system import processors

logger = logging.getLogger(__name__)

_Part = TypeVar("_Part")
_Read = TypeVar("_Read")

_MAX_ATTEMPTS = 5
_PARALLEL_LOCAL_READS = 16
_PARALLEL_READS = 64
_PARALLEL_SCANS = 8
_MAX_REMEMBERED_REGIONS = 100_000
# Seconds for which readers trust an earlier read of a version that is still the newest: after this
# time they notice a table that was restored from a backup, with other content under the same
# version.
_REUSE_SECONDS: Final = 5.0
# A local disk is read by one thread as long as it takes so long at most, and so long for each part.
_SERIAL_SECONDS: Final = 0.02
_QUICK_SECONDS: Final = 0.001

# How long a reader relies on a manifest that was the newest one. The policy key
# ``gc_grace_seconds`` is at least as long: see ``RegionManifestStore.read_latest``.
RECENT_SECONDS: Final = 120


class RegionManifestStore:
    """Reads and commits the manifest of one region.

    A version is immutable and created by put-if-absent. The process that creates version + 1 first
    has made the change; all others read again.

    The garbage collector trims old versions, oldest first. A process that was paused for longer
    than the collector's grace period could therefore find that version + 1 does not exist although
    it existed and was trimmed. The version itself tells the two cases apart: while it exists,
    nothing newer was trimmed. Hence the order of the requests below: successor before version.

    Such a process may also *create* version + 1 where it existed and was trimmed. It detects this
    and goes no further; but until the next trim deletes that object, it looks like the newest
    version to other processes that were paused. They detect it by the hint: before any trim, the
    collector makes the hint name a version that stays.
    """

    def __init__(self, store: ObjectStore, region_id: UUID) -> None:
        self._store = store
        self.region_id = region_id

    def read_latest(
        self, *, recent: int | None = None, known: RegionManifest | None = None
    ) -> RegionManifest | None:
        """Read the newest version; None if the region was never claimed.

        With an exact version hint this costs three requests: the hint, a HEAD of the version after
        it, and the version. A hint that is behind costs one HEAD per version; an absent hint costs
        a listing. If the version that the hint names is lost, CorruptDataError is raised.

        ``recent`` is a version that was the newest one less than the collector's grace period ago
        (:data:`RECENT_SECONDS` at most). If it still is, two requests suffice: the collector trims
        no version so soon after it was the newest one, so an absent successor was never written.
        ``known`` is the manifest of that version: then one request suffices.
        """
        if recent is not None:
            with suppress(ObjectNotFoundError):
                if not self.has_successor(recent):
                    return known or self.read(recent)
        hint = self.read_hint()
        if hint is not None:
            newest = self._probe_from(hint)
            if newest is not None:
                return newest
        for _ in range(_MAX_ATTEMPTS):
            versions = self.list_versions()
            self.check_hint(hint, versions)
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
        """Read one version. Raises ObjectNotFoundError if it was trimmed or never written."""
        key = manifest_key(self.region_id, version)
        manifest = RegionManifest.decode(self._store.get(key), name=key)
        if manifest.version != version or manifest.region_id != self.region_id:
            raise CorruptDataError(
                f"{key} claims to be version {manifest.version} of region "
                f"{manifest.region_id}; nothing was changed, restore it from a backup"
            )
        return manifest

    def is_latest(self, manifest: RegionManifest) -> bool:
        """Return whether no newer version exists. Costs two HEAD requests, and reads the hint."""
        return (
            not self._exists(manifest.version + 1)
            and self._exists(manifest.version)
            and not self._was_trimmed(manifest.version, self.read_hint())
        )

    def has_successor(self, version: int) -> bool:
        """Return whether a version newer than one that was read was written, by one request.

        False also if it was trimmed, which is so only if more than :data:`RECENT_SECONDS` have
        passed since ``version`` was the newest. Raises ObjectNotFoundError if a local disk does not
        have ``version`` any more: it was trimmed, or the folder of the region is not in its place.
        """
        key, folder = manifest_key(self.region_id, version + 1), manifest_dir(self.region_id)
        proof = manifest_key(self.region_id, version).removeprefix(f"{folder}/")
        return self._store.exists_within(key, within=folder, proof=proof)

    def list_versions(self) -> dict[int, ObjectInfo]:
        """List the stored versions, each with size and time of its object."""
        versions = {}
        for info in self._store.list(manifest_dir(self.region_id)):
            version = parse_manifest_name(info.key.rpartition("/")[2])
            if version is not None:
                versions[version] = info
        return versions

    def commit(self, manifest: RegionManifest) -> None:
        """Create ``manifest.version`` unless it exists.

        An existing manifest with exactly the same bytes counts as committed: two processes that
        make the same change have both made it. A claim is the exception, since only one process
        may continue after it: see :meth:`commit_exclusively`.

        Raises
        ------
        ConflictError
            The version exists with other content; or this call created it, but other processes
            committed newer versions before this one could verify that its version counts. The
            newest version shows whether they built on it.
        OutcomeUnknownError
            The store did not answer whether the version exists.
        """
        key = manifest_key(self.region_id, manifest.version)
        if create_settled(self._store, key, manifest.encode()) is not None:
            raise ConflictError(f"another process wrote {key} first")
        self._confirm(manifest.version)

    def commit_exclusively(self, manifest: RegionManifest) -> None:
        """Create ``manifest.version`` with certainty that this call created it.

        Raises ConflictError if the version exists, or other processes committed newer versions
        before this one could verify that its version counts. After an ambiguous answer, the
        existing version may be the one of this call. Raises StoreUnavailableError if the store did
        not answer whether the version exists.
        """
        key = manifest_key(self.region_id, manifest.version)
        try:
            self._store.create(key, manifest.encode())
        except ObjectExistsError as error:
            raise ConflictError(f"{key} exists already") from error
        self._confirm(manifest.version)

    def read_hint(self) -> int | None:
        """Return the version that the hint names; None if there is no readable hint."""
        return _parse_hint(self._read_hint_bytes())

    def check_hint(self, hint: int | None, versions: Collection[int]) -> None:
        """Raise CorruptDataError if the newest version is lost.

        ``hint`` was read before ``versions`` were listed. A hint is written after the version that
        it names, and the newest version is never trimmed, so the listing has that version or a
        newer one. If not, both are read again: another table may have been put in the place of the
        one whose hint was read.
        """
        if hint is None or max(versions, default=0) >= hint:
            return
        hint = self.read_hint()
        newest = max(self.list_versions(), default=0)
        if hint is None or newest >= hint:
            return
        raise CorruptDataError(
            f"{version_hint_key(self.region_id)} names version {hint} of the manifest of region "
            f"{self.region_id}, but "
            + (f"the newest version there is {newest}" if newest else "no version is there")
            + ": what was written last is lost, or its disk is not mounted. Nothing was changed: "
            f"restore {manifest_key(self.region_id, hint)} from a backup. If that is not possible, "
            + (
                f"delete the hint, and the region goes on from version {newest}, whose log has the "
                "rows that were flushed later unless they were collected, which a claim checks"
                if newest
                else f"give the region up: memwal recover TABLE --region-lost {self.region_id}"
            )
        )

    def refresh_hint(self, version: int) -> None:
        """Make the hint name a version that stays. Required before older versions are trimmed.

        Raises ConflictError if other processes replaced the hint in every attempt.
        """
        for _ in range(_MAX_ATTEMPTS):
            stored = self._read_hint_bytes()
            hint = _parse_hint(stored)
            if hint == version or self._was_trimmed(version, hint):
                return
            with suppress(ConflictError, ObjectExistsError):
                self._replace_hint(stored, version)
                return
        raise ConflictError(
            f"{version_hint_key(self.region_id)} was replaced in each of {_MAX_ATTEMPTS} attempts; "
            "try again later, or delete it if it is not a file"
        )

    def _confirm(self, version: int) -> None:
        """Verify that a new version was created at the end of the history, and update the hint."""
        leave_trace(self._store)
        stored = self._read_hint_bytes()
        hint = _parse_hint(stored)
        if not self._has_predecessor(version) or self._was_trimmed(version, hint):
            # The version fills a gap that trimming left, or newer versions superseded it before
            # this check; this process cannot tell the two apart. The object is not deleted: in the
            # second case other processes build on it, and in the first the next trim deletes it.
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
        """Write the hint unless it changed, so that a paused process cannot set it back.

        A hint that is set back could name a version that was trimmed.
        """
        key = version_hint_key(self.region_id)
        hint = json.dumps({"version": version}).encode()
        try:
            if stored is None:
                self._store.create(key, hint)
            else:
                self._store.replace(key, hint, expected=stored)
        except UnsupportedStoreError:
            # For example a store whose commits the catalog's database decides.
            self._store.put(key, hint)

    def update(
        self,
        change: Callable[[RegionManifest], RegionManifest | None],
        *,
        recent: int | None = None,
        attempts: int = 50,
    ) -> RegionManifest:
        """Change the newest manifest, and repeat on each newer one until the commit succeeds.

        ``change`` takes the newest manifest and returns the changed one (its version is set here),
        or None if there is nothing to change. It raises to give up. It may get a manifest that has
        the change already, because a version that was superseded at once counts as not committed.
        It must detect this, or be harmless when applied twice.

        ``recent`` is a version that was the newest one at some time. The first attempt reads only
        it, which saves two requests if it still is. That is as safe as to be paused between the
        read and the commit: if the version is stored, no later one was trimmed, so a later one lets
        the commit fail, and the next attempt finds the newest. The stored manifest is read in any
        case: it may be of another table in the place of the one where the version was seen.

        Returns the committed manifest, or the newest one if there was nothing to change. Raises
        ObjectNotFoundError if the region has no manifest, and ConflictError if another process won
        the race in every attempt.
        """

        def attempt() -> RegionManifest:
            nonlocal recent
            current = None
            if recent is not None:
                with suppress(ObjectNotFoundError):
                    current = self.read(recent)
                recent = None
            current = current or self.read_latest()
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
            seconds=0,
            exhausted=ConflictError(
                f"the manifest of region {self.region_id} changed under each of {attempts} "
                "attempts; try again later"
            ),
        )

    def _has_predecessor(self, version: int) -> bool:
        """Return whether a version that was just created is, or was, the end of the history."""
        if version > 1:
            return self._exists(version - 1)
        return max(self.list_versions(), default=1) == 1

    def _was_trimmed(self, version: int, hint: int | None) -> bool:
        """Return whether the hint shows that a version was trimmed and written again."""
        return hint is not None and hint > version and self._exists(hint)

    def _exists(self, version: int) -> bool:
        return self._store.exists(manifest_key(self.region_id, version))

    def _probe_from(self, version: int) -> RegionManifest | None:
        try:
            while self.has_successor(version):
                version += 1
            return self.read(version)
        except ObjectNotFoundError:
            return None

    def _read_hint_bytes(self) -> bytes | None:
        # A hint that is not a readable file is worth as much as an absent one.
        with suppress(ObjectNotFoundError, CorruptDataError):
            return self._store.get(version_hint_key(self.region_id))
        return None


def discover_regions(store: ObjectStore) -> list[UUID]:
    """Return the sorted ids of the regions that have a folder. Costs one listing."""
    # The order of the names is that of the ids.
    region_ids = map(parse_region_name, store.list_folders(MEM_WAL_DIR))
    return [region_id for region_id in region_ids if region_id is not None]


def read_manifests(
    store: ObjectStore,
    regions: Collection[UUID] | None = None,
    *,
    reuse: bool = False,
    unchecked: bool = False,
) -> dict[UUID, RegionManifest]:
    """Read the newest manifest of each region, in parallel.

    A region whose newest manifest this process saw in the last two minutes costs two requests if
    that one is still the newest; any other region costs three. By default, all regions that have a
    folder are read. A region without a manifest, left by a claim that died before its first write,
    is omitted.

    With ``reuse``, a manifest that was read in the last five seconds is not read again while it is
    the newest, which costs one request. The caller has to notice if another table is in the place
    of the one that was read, and then calls :func:`forget_manifests`. If ``unchecked``, it costs no
    request, and the caller has to find out whether it is still the newest.
    """
    region_ids = list(discover_regions(store) if regions is None else regions)
    if not region_ids:
        return {}

    now = boot_seconds()

    def read(region: UUID) -> RegionManifest | None:
        seen = _last_seen.get((store.uri, region))
        if seen is None or now - seen.at >= RECENT_SECONDS:
            return RegionManifestStore(store, region).read_latest()
        known = seen.content if reuse and now - seen.read_at < _REUSE_SECONDS else None
        if unchecked and known is not None:
            return known
        manifests = RegionManifestStore(store, region)
        newest = manifests.read_latest(recent=seen.version, known=known)
        if newest is known and boot_seconds() - seen.read_at >= RECENT_SECONDS / 2:
            # This process was paused before it asked for a successor: one that it did not find may
            # have been trimmed. So was this version then, which only a read of it shows.
            return manifests.read_latest(recent=seen.version)
        return newest

    newest = read_each(store, read, region_ids)
    manifests = {
        region: manifest
        for region, manifest in zip(region_ids, newest, strict=True)
        if manifest is not None
    }
    if len(_last_seen) + len(manifests) > _MAX_REMEMBERED_REGIONS:
        _last_seen.clear()
    for region, manifest in manifests.items():
        seen = _last_seen.get((store.uri, region))
        read_at = seen.read_at if seen is not None and manifest is seen.content else now
        if not (unchecked and read_at < now):
            content = manifest if reuse else None
            _last_seen[store.uri, region] = _SeenVersion(manifest.version, now, content, read_at)
    return manifests


def forget_manifests(store: ObjectStore) -> None:
    """Read every manifest of a table anew: another table is in its place."""
    for key in [key for key in list(_last_seen) if key[0] == store.uri]:
        _last_seen.pop(key, None)
    _replacements[store.uri] = replacements(store) + 1


def replacements(store: ObjectStore) -> int:
    """Return how many times this process found another table in the place of one."""
    return _replacements.get(store.uri, 0)


def read_each(
    store: ObjectStore, read: Callable[[_Part], _Read], parts: Iterable[_Part]
) -> list[_Read]:
    """Read parts of a table, such as regions, and return the results in order.

    In parallel, except for files that a local disk has in memory: Python's lock lets threads that
    do not wait only take turns, at twice the cost.
    """
    rest, found = list(parts), list[_Read]()
    if store.is_local:
        until = time.perf_counter() + _SERIAL_SECONDS
        while len(found) < len(rest) and time.perf_counter() < until:
            found.append(read(rest[len(found)]))
            until += _QUICK_SECONDS
        rest = rest[len(found) :]
    if len(rest) <= 1:
        return found + [read(part) for part in rest]
    return found + map_parallel(read, rest, threads=parallel_reads(store))


def parallel_reads(store: ObjectStore) -> int:
    """Return how many regions to read in parallel: more for an object store, with its latency."""
    return _PARALLEL_LOCAL_READS if store.is_local else _PARALLEL_READS


def parallel_scans(*, is_local: bool) -> int:
    """Return how many data sets to scan in parallel: more in an object store, with its latency.

    Scans of a local disk keep the processors busy. More threads than processors take longer: each
    touches memory of its own first.
    """
    return min(processors(), _PARALLEL_SCANS) if is_local else _PARALLEL_SCANS


def contiguous_versions(stored: Container[int], newest: int) -> range:
    """Return the versions from the newest one back to the first gap, oldest first."""
    first = newest
    while first - 1 in stored:
        first -= 1
    return range(first, newest + 1)


def last_version_before_flush(
    read: Callable[[int], RegionManifest], versions: range, generation: int
) -> RegionManifest | None:
    """Return the newest version in which a generation was not flushed yet; None if there is none.

    ``versions`` are searched with :meth:`RegionManifestStore.read`; they have no gap, and at least
    one.
    """
    if read(versions[-1]).current_generation <= generation:
        return read(versions[-1])
    count = bisect_right(versions[:-1], generation, key=lambda v: read(v).current_generation)
    return read(versions[count - 1]) if count else None


class _SeenVersion(NamedTuple):
    """Version of a region's manifest, and when it was the newest; for readers, its content."""

    version: int
    at: float
    content: RegionManifest | None
    read_at: float


# The newest version that this process saw, by table address and region: the place where the next
# search begins. If there are too many entries, all are dropped.
_last_seen: dict[tuple[str, UUID], _SeenVersion] = {}
_replacements: dict[str, int] = {}


def _parse_hint(hint: bytes | None) -> int | None:
    """Return the version that a hint names; None if the hint is absent or invalid."""
    if hint is None:
        return None
    try:
        version = read_json(hint)["version"]
    except (ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, int) and 0 < version <= MAX_COUNTER else None
