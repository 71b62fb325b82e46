"""Checks of a region's manifest history, its version hint, and each manifest by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from uuid import UUID

from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.paths import (
    manifest_dir,
    manifest_key,
    parse_generation_name,
    parse_wal_name,
    region_dir,
    version_hint_key,
)
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.verify.findings import Finding
from memwal.region.manifest_store import RegionManifestStore, read_each
from memwal.storage.object_store import ObjectInfo, ObjectStore

_COMMIT_SECONDS = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class StoredManifests:
    """Stored manifest versions of a region."""

    region_id: UUID
    manifests: tuple[RegionManifest, ...]  # those that can be read, oldest first
    findings: tuple[Finding, ...]  # damaged and missing versions

    @property
    def newest(self) -> RegionManifest | None:
        """Newest manifest that can be read."""
        return self.manifests[-1] if self.manifests else None

    @property
    def settled_manifest(self) -> RegionManifest | None:
        """Newest version whose flushed generations are all dropped; the GC deletes older ones."""
        oldest = None if self.newest is None else self.newest.oldest_kept
        older = (m for m in reversed(self.manifests) if oldest and m.current_generation <= oldest)
        return next(older, None)

    @property
    def is_empty(self) -> bool:
        """Return whether the region has neither manifests nor rows."""
        return not self.manifests and all(f.code == "region-empty" for f in self.findings)


def read_history(store: ObjectStore, region_id: UUID) -> StoredManifests:
    """Read every stored manifest, and check that none is missing between them."""
    manifests = RegionManifestStore(store, region_id)
    objects = manifests.list_versions()
    if not objects:
        return StoredManifests(region_id, (), tuple(_check_without_manifest(store, region_id)))
    versions = sorted(objects)
    while store.exists(manifest_key(region_id, versions[-1] + 1)):
        # Committed since the listing.
        versions.append(versions[-1] + 1)
    read = read_each(store, lambda version: _read_manifest(store, region_id, version), versions)
    readable = tuple(manifest for manifest in read if isinstance(manifest, RegionManifest))
    damaged = tuple(finding for finding in read if isinstance(finding, Finding))
    history = StoredManifests(region_id, readable, damaged)
    return replace(history, findings=(*_check_gaps(store, history, objects, versions), *damaged))


def _check_gaps(
    store: ObjectStore,
    history: StoredManifests,
    objects: Mapping[int, ObjectInfo],
    versions: Sequence[int],
) -> Iterator[Finding]:
    """Check that no versions are missing between others.

    A gap is no loss if the collector deletes all of these versions anyway: a paused process wrote
    one late, before the others, or the machine crashed, and some objects that the collector had
    deleted are back. Readers that follow the hint must only not find such a version.
    """
    region_id, settled = history.region_id, history.settled_manifest
    for before, after in pairwise(versions):
        if after == before + 1 or not _is_gap(store, region_id, before, after):
            continue
        alone = before == versions[0] and before in objects and after in objects
        late = alone and objects[before].modified > objects[after].modified
        hint = RegionManifestStore(store, region_id).read_hint()
        collectable = settled is not None and after <= settled.version
        stray = (late or collectable) and (hint is None or hint > before)
        code = "manifest-stray" if stray else "manifest-gap"
        text = f"after version {before} the next one is {after}"
        yield Finding(code, manifest_key(region_id, before), text, region=region_id)


def read_newest(store: ObjectStore, region_id: UUID) -> RegionManifest | None:
    """Read the newest manifest; None if there is none, or it is damaged."""
    try:
        return RegionManifestStore(store, region_id).read_latest()
    except CorruptDataError:
        return None


def _check_without_manifest(store: ObjectStore, region_id: UUID) -> Iterator[Finding]:
    folder = region_dir(region_id)
    names = [info.key.rpartition("/")[2] for info in store.list(f"{folder}/wal")]
    rows = any(parse_wal_name(name) is not None for name in names) or any(
        parse_generation_name(name) is not None for name in store.list_folders(folder)
    )
    if RegionManifestStore(store, region_id).list_versions():
        # The first manifest was created just now.
        return
    if rows:
        text = "the region has log entries or generations, but no manifest"
        yield Finding("manifests-missing", manifest_dir(region_id), text, region=region_id)
    else:
        text = "it has neither a manifest nor rows"
        yield Finding("region-empty", folder, text, region=region_id)


def _is_gap(store: ObjectStore, region_id: UUID, before: int, after: int) -> bool:
    """Return whether versions are missing while the version before them is stored.

    Versions are trimmed oldest first. If the version before is still stored after the others were
    seen to be missing, these were not trimmed since the listing.
    """
    return any(
        not store.exists(manifest_key(region_id, version)) for version in range(before + 1, after)
    ) and store.exists(manifest_key(region_id, before))


def _read_manifest(
    store: ObjectStore, region_id: UUID, version: int
) -> RegionManifest | Finding | None:
    key = manifest_key(region_id, version)
    try:
        manifest = RegionManifest.decode(store.get(key), name=key)
    except ObjectNotFoundError:
        # Trimmed since the listing.
        return None
    except CorruptDataError as error:
        return Finding("manifest-damaged", key, str(error), region=region_id)
    if manifest.version != version or manifest.region_id != region_id:
        text = f"it contains version {manifest.version} of region {manifest.region_id}"
        return Finding("manifest-mislabelled", key, text, region=region_id)
    return manifest


def check_hint(store: ObjectStore, region_id: UUID, *, now: datetime) -> list[Finding]:
    """Compare the version hint with the stored versions.

    A writer commits a version first and updates the hint then. Therefore the hint is read before
    and after the newest version, and a late hint counts only if that version is some seconds old:
    otherwise its commit may still be under way.
    """
    manifests = RegionManifestStore(store, region_id)
    key = version_hint_key(region_id)
    before = manifests.read_hint()
    objects = manifests.list_versions()
    if not objects:
        return []
    newest = max(objects)
    while (info := store.head(manifest_key(region_id, newest + 1))) is not None:
        newest += 1
        objects[newest] = info
    if before is not None and before > newest:
        text = f"it names version {before}; the newest is {newest}"
        return [Finding("hint-wrong", f"{key} ({before})", text, region=region_id)]
    after = manifests.read_hint()
    if objects[newest].modified + _COMMIT_SECONDS > now:
        return []
    if after is None:
        text = "it is missing, or does not name a version"
        return [Finding("hint-missing", key, text, region=region_id)]
    if after < newest:
        text = f"it names version {after}; the newest is at least {newest}"
        return [Finding("hint-late", f"{key} ({after})", text, region=region_id)]
    return []


def check_history(
    history: StoredManifests, merged_now: Callable[[], Mapping[UUID, int]]
) -> Iterator[Finding]:
    """Check that counters only grow, and that no generation was dropped that is not merged.

    ``merged_now`` reads the current merge progress; it is called only if a generation was dropped.
    """
    yield from history.findings
    for manifest in history.manifests:
        yield from _check_flushed(manifest)
    for before, after in pairwise(history.manifests):
        if after.version == before.version + 1:
            yield from _check_step(before, after)
    yield from _check_lost(history, merged_now)


def _check_step(before: RegionManifest, after: RegionManifest) -> Iterator[Finding]:
    for code, what in (
        ("epoch-falls", "writer_epoch"),
        ("generation-falls", "current_generation"),
        ("replay-falls", "replay_after"),
    ):
        old, new = getattr(before, what), getattr(after, what)
        if new < old:
            yield _manifest_finding(after, code, f"{what} goes from {old} to {new}")
    if dict(before.region_fields) != dict(after.region_fields) and before.region_fields:
        text = "the region values differ from those of the version before"
        yield _manifest_finding(after, "region-values-wrong", text)


def _check_flushed(manifest: RegionManifest) -> Iterator[Finding]:
    numbers = [flushed.generation for flushed in manifest.flushed]
    if any(second <= first for first, second in pairwise(numbers)):
        text = f"the generations are {_join_numbers(numbers)}"
        yield _manifest_finding(manifest, "flushed-order", text)
    ahead = [number for number in numbers if number >= manifest.current_generation]
    if ahead:
        current = f"the current generation is {manifest.current_generation}"
        text = f"{_join_numbers(ahead)} flushed, but {current}"
        yield _manifest_finding(manifest, "flushed-ahead", text)
    for flushed in manifest.flushed:
        if parse_generation_name(flushed.path) != flushed.generation:
            text = f"the folder of generation {flushed.generation} is named {flushed.path!r}"
            yield _manifest_finding(manifest, "flushed-path", text)


def _check_lost(
    history: StoredManifests, merged_now: Callable[[], Mapping[UUID, int]]
) -> Iterator[Finding]:
    newest = history.newest
    if newest is None:
        return
    named = {f.generation for manifest in history.manifests for f in manifest.flushed}
    dropped = sorted(named - {flushed.generation for flushed in newest.flushed})
    if not dropped:
        return
    merged = merged_now().get(history.region_id, 0)
    lost = [number for number in dropped if number > merged]
    if lost:
        named_before = f"generations {_join_numbers(lost)} were named before and are not now"
        text = f"{named_before}; those up to {merged} are merged"
        yield _manifest_finding(newest, "flushed-lost", text)


def _manifest_finding(manifest: RegionManifest, code: str, text: str) -> Finding:
    key = manifest_key(manifest.region_id, manifest.version)
    return Finding(code, key, text, region=manifest.region_id)


def _join_numbers(numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers[:10]))
    return f"{text}, ..." if len(numbers) > 10 else text
