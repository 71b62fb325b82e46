"""Checks of a region's manifest history, its version hint, and each manifest by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from uuid import UUID

from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.paths import (
    MAX_COUNTER,
    manifest_dir,
    manifest_key,
    parse_generation_name,
    parse_wal_name,
    region_dir,
    version_hint_key,
)
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.verify.findings import Finding
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectInfo, ObjectStore
from memwal.util.safe_json import read_json

_PARALLEL_READS = 8
_ON_ITS_WAY = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class History:
    """The stored manifests of a region.

    Attributes
    ----------
    region_id : UUID
    manifests : tuple of RegionManifest
        Oldest first, those that can be read.
    findings : tuple of Finding
        What is wrong with the sequence.
    """

    region_id: UUID
    manifests: tuple[RegionManifest, ...]
    findings: tuple[Finding, ...]

    @property
    def newest(self) -> RegionManifest | None:
        """The state of the region."""
        return self.manifests[-1] if self.manifests else None

    @property
    def settled(self) -> RegionManifest | None:
        """The newest one of whose generations none is kept: the collector takes what is older."""
        kept = None if self.newest is None else self.newest.oldest_kept
        older = (m for m in reversed(self.manifests) if kept and m.current_generation <= kept)
        return next(older, None)

    @property
    def is_empty(self) -> bool:
        """Whether the region has neither manifests nor rows."""
        return not self.manifests and all(f.code == "region-empty" for f in self.findings)


def read_history(store: ObjectStore, region_id: UUID) -> History:
    """Read every stored manifest, and see whether none is missing between them."""
    manifests = RegionManifestStore(store, region_id)
    objects = manifests.list_versions()
    if not objects:
        return History(region_id, (), tuple(_without_manifest(store, region_id)))
    versions = sorted(objects)
    while store.exists(manifest_key(region_id, versions[-1] + 1)):
        # Committed since the listing.
        versions.append(versions[-1] + 1)
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        read = list(pool.map(lambda version: _read(store, region_id, version), versions))
    found = tuple(manifest for manifest in read if isinstance(manifest, RegionManifest))
    damaged = tuple(finding for finding in read if isinstance(finding, Finding))
    history = History(region_id, found, damaged)
    return replace(history, findings=(*_gaps(store, history, objects, versions), *damaged))


def _gaps(
    store: ObjectStore,
    history: History,
    objects: Mapping[int, ObjectInfo],
    versions: Sequence[int],
) -> Iterator[Finding]:
    """Versions that are missing between others.

    Where the collector takes all of them it is no loss: a process woke late and put one in front,
    or the machine crashed, and some of what the collector had deleted is back. It must only not be
    found by those who follow the hint.
    """
    region_id, settled = history.region_id, history.settled
    for before, after in pairwise(versions):
        if after == before + 1 or not _is_gap(store, region_id, before, after):
            continue
        alone = before == versions[0] and before in objects and after in objects
        late = alone and objects[before].modified > objects[after].modified
        hint = _hint(store, version_hint_key(region_id))
        taken = settled is not None and after <= settled.version
        stray = (late or taken) and (hint is None or hint > before)
        yield Finding.of(
            "manifest-stray" if stray else "manifest-gap",
            manifest_key(region_id, before),
            f"after version {before} the next one is {after}",
            region=region_id,
        )


def read_newest(store: ObjectStore, region_id: UUID) -> RegionManifest | None:
    """The newest manifest; None where there is none, or none that can be read."""
    try:
        return RegionManifestStore(store, region_id).read_latest()
    except CorruptDataError:
        return None


def _without_manifest(store: ObjectStore, region_id: UUID) -> Iterator[Finding]:
    folder = region_dir(region_id)
    names = [info.key.rpartition("/")[2] for info in store.list(f"{folder}/wal")]
    rows = any(parse_wal_name(name) is not None for name in names) or any(
        parse_generation_name(name) is not None for name in store.list_folders(folder)
    )
    if RegionManifestStore(store, region_id).list_versions():
        # The very first was created just now.
        return
    if rows:
        yield Finding.of(
            "manifests-missing",
            manifest_dir(region_id),
            "the region has log entries or generations, and not one manifest",
            region=region_id,
        )
    else:
        yield Finding.of(
            "region-empty", folder, "it has neither a manifest nor rows", region=region_id
        )


def _is_gap(store: ObjectStore, region_id: UUID, before: int, after: int) -> bool:
    """Whether versions are missing while the one before them is there.

    Versions are trimmed oldest first: where the one before still is after the others were seen to
    be missing, they were not trimmed since a listing.
    """
    return any(
        not store.exists(manifest_key(region_id, version)) for version in range(before + 1, after)
    ) and store.exists(manifest_key(region_id, before))


def _read(store: ObjectStore, region_id: UUID, version: int) -> RegionManifest | Finding | None:
    key = manifest_key(region_id, version)
    try:
        manifest = RegionManifest.decode(store.get(key), name=key)
    except ObjectNotFoundError:
        # Trimmed meanwhile.
        return None
    except CorruptDataError as error:
        return Finding.of("manifest-damaged", key, str(error), region=region_id)
    if manifest.version != version or manifest.region_id != region_id:
        return Finding.of(
            "manifest-mislabelled",
            key,
            f"it says that it is version {manifest.version} of region {manifest.region_id}",
            region=region_id,
        )
    return manifest


def check_hint(store: ObjectStore, region_id: UUID, *, now: datetime) -> list[Finding]:
    """Compare the version hint with what is there.

    A writer commits first and hints then, so that the hint is read before and after the newest
    version. That it is late counts when the version is some seconds old, or else a commit may be
    on its way.

    Parameters
    ----------
    now : datetime
        In UTC.
    """
    manifests = RegionManifestStore(store, region_id)
    key = version_hint_key(region_id)
    before = _hint(store, key)
    objects = manifests.list_versions()
    if not objects:
        return []
    newest = max(objects)
    while (info := store.head(manifest_key(region_id, newest + 1))) is not None:
        newest += 1
        objects[newest] = info
    if before is not None and before > newest:
        text = f"it names version {before}; the newest is {newest}"
        return [Finding.of("hint-wrong", f"{key} ({before})", text, region=region_id)]
    after = _hint(store, key)
    if objects[newest].modified + _ON_ITS_WAY > now:
        return []
    if after is None:
        text = "it is not there, or does not name a version"
        return [Finding.of("hint-missing", key, text, region=region_id)]
    if after < newest:
        text = f"it names version {after}; the newest is at least {newest}"
        return [Finding.of("hint-late", f"{key} ({after})", text, region=region_id)]
    return []


def _hint(store: ObjectStore, key: str) -> int | None:
    try:
        version = read_json(store.get(key))["version"]
    except (ObjectNotFoundError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, int) and 0 < version <= MAX_COUNTER else None


def check_history(
    history: History, merged_now: Callable[[], Mapping[UUID, int]]
) -> Iterator[Finding]:
    """See whether what may only grow does, and whether nothing was dropped that is needed.

    Parameters
    ----------
    merged_now : callable
        Gives the merge progress as it is now; asked for only when a generation was dropped.
    """
    yield from history.findings
    for manifest in history.manifests:
        yield from _check_flushed(manifest)
    for before, after in pairwise(history.manifests):
        if after.version == before.version + 1:
            yield from _check_step(before, after)
    yield from _lost(history, merged_now)


def _check_step(before: RegionManifest, after: RegionManifest) -> Iterator[Finding]:
    for code, what in (
        ("epoch-falls", "writer_epoch"),
        ("generation-falls", "current_generation"),
        ("replay-falls", "replay_after"),
    ):
        old, new = getattr(before, what), getattr(after, what)
        if new < old:
            yield _in(after, code, f"{what} goes from {old} to {new}")
    if dict(before.region_fields) != dict(after.region_fields) and before.region_fields:
        yield _in(after, "region-values-wrong", "the region values are not those of the one before")


def _check_flushed(manifest: RegionManifest) -> Iterator[Finding]:
    numbers = [flushed.generation for flushed in manifest.flushed]
    if any(second <= first for first, second in pairwise(numbers)):
        yield _in(manifest, "flushed-order", f"the generations are {_shown(numbers)}")
    ahead = [number for number in numbers if number >= manifest.current_generation]
    if ahead:
        yield _in(
            manifest,
            "flushed-ahead",
            f"{_shown(ahead)} flushed, and the current one is {manifest.current_generation}",
        )
    for flushed in manifest.flushed:
        if parse_generation_name(flushed.path) != flushed.generation:
            yield _in(
                manifest,
                "flushed-path",
                f"generation {flushed.generation} is said to be in {flushed.path!r}",
            )


def _lost(history: History, merged_now: Callable[[], Mapping[UUID, int]]) -> Iterator[Finding]:
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
        yield _in(
            newest,
            "flushed-lost",
            f"generations {_shown(lost)} were named before and are gone; the base table has those "
            f"up to {merged}",
        )


def _in(manifest: RegionManifest, code: str, text: str) -> Finding:
    key = manifest_key(manifest.region_id, manifest.version)
    return Finding.of(code, key, text, region=manifest.region_id)


def _shown(numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers[:10]))
    return f"{text}, ..." if len(numbers) > 10 else text
