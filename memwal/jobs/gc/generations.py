"""Collectors of generations: dropped from the manifest, folders once named, and orphans.

First the manifest stops naming a generation. A grace period later its folder is deleted, when every
reader that still holds an older manifest has finished.

An orphan is a folder that no manifest ever named: left by a flush that died, or written by a flush
that has yet to name it. Which of the two cannot be observed; the age of the folder must decide. A
flush that slept for longer than that age may wake while its folder is deleted. The collector
therefore first writes a mark into the folder, and then a new version of the region's manifest in
which nothing is changed. Writers of this package read the manifest, check that the folder has no
mark and still exists, and name it in the very next version. A writer that checked before the mark
was written finds that version taken, and checks again.

Lance's writers do not check. They would name a folder that is gone; its rows are then in the log,
whose entries stay as long as the manifest names the generation, and no merge goes past it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from memwal.errors import ObjectNotFoundError
from memwal.format.paths import (
    BLOOM_FILTER_NAME,
    ORPHAN_MARK_NAME,
    generation_dir,
    parse_generation_name,
)
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.gc.decision import Decision, Kind, Reason
from memwal.jobs.gc.history import History
from memwal.jobs.gc.options import Ages, moment
from memwal.jobs.gc.pins import Needs
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is below a prefix, and when the youngest of it was written."""

    objects: int
    bytes: int
    youngest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """One folder.

    Attributes
    ----------
    name : str
    generation : int
        Number in the name.
    objects, bytes : int
    youngest : datetime or None
        When the youngest object was written; None when there is none.
    """

    name: str
    generation: int
    objects: int
    bytes: int
    youngest: datetime | None

    def decision(
        self,
        kind: Kind,
        region_id: str,
        *,
        reason: Reason,
        words: str,
        goes: bool = False,
        until: str | None = None,
    ) -> Decision:
        """A decision about this folder."""
        return Decision(
            kind=kind,
            what=self.name,
            region_id=region_id,
            objects=self.objects,
            bytes=self.bytes,
            goes=goes,
            reason=reason,
            words=words,
            until=until,
        )


def of_generations(names: Iterable[str]) -> list[str]:
    """Those of a region's folders that hold generations."""
    return [name for name in names if parse_generation_name(name) is not None]


def measure(store: ObjectStore, region_id: UUID, name: str) -> Folder:
    """List a folder."""
    generation = parse_generation_name(name)
    extent = measure_prefix(store, generation_dir(region_id, name))
    return Folder(
        name=name,
        generation=-1 if generation is None else generation,
        objects=extent.objects,
        bytes=extent.bytes,
        youngest=extent.youngest,
    )


def measure_prefix(store: ObjectStore, prefix: str) -> Extent:
    """List what is below a prefix, and keep only its sums."""
    objects, size = 0, 0
    youngest: datetime | None = None
    for info in store.list(prefix):
        objects += 1
        size += info.size
        youngest = info.modified if youngest is None else max(youngest, info.modified)
    return Extent(objects, size, youngest)


def delete(store: ObjectStore, region_id: UUID, name: str) -> None:
    """Delete a folder that nobody will name; half of it never passes for a generation.

    What a flush writes last goes first.
    """
    folder = generation_dir(region_id, name)
    store.delete(f"{folder}/{BLOOM_FILTER_NAME}")
    store.delete_folder(folder)


def judge_named(history: History, needs: Needs, sizes: Mapping[str, Folder]) -> Iterator[Decision]:
    """Decide about each generation that the newest manifest names.

    Parameters
    ----------
    sizes : mapping
        What is stored of each, as far as it was asked for.
    """
    region = history.region_id
    limit = needs.removable(region)
    for flushed in history.latest.flushed:
        goes = flushed.generation <= limit
        holder = None if goes else needs.holder(region, flushed.generation)
        folder = sizes.get(flushed.path)
        yield Decision(
            kind=Kind.GENERATION,
            what=flushed.path,
            region_id=str(region),
            objects=folder.objects if folder is not None else 0,
            bytes=folder.bytes if folder is not None else 0,
            goes=goes,
            reason=Reason.UNNEEDED if holder is None else holder.reason,
            words=(
                "merged, indexed, and no version that is kept needs it: the manifest stops naming "
                "it, and its folder goes a grace period later"
                if holder is None
                else holder.words
            ),
            until=None if holder is None else holder.until,
        )


def drop(manifests: RegionManifestStore, removable: int) -> None:
    """Stop naming the generations up to ``removable``, with the writer's epoch left as it is."""

    def change(latest: RegionManifest) -> RegionManifest | None:
        kept = tuple(f for f in latest.flushed if f.generation > removable)
        return replace(latest, flushed=kept) if len(kept) < len(latest.flushed) else None

    try:
        manifests.update(change)
    except ObjectNotFoundError:
        # The region is gone, and with it what would be dropped.
        return


def judge_dropped(folder: Folder, history: History, needs: Needs, ages: Ages) -> Decision | None:
    """Decide about a folder that the manifest named once; None when it may never have.

    A flush names the generation that is current then, and moves on. The folder of a number below
    the one that was current a grace period ago, which neither that version names nor the newest,
    is therefore named by no version in between, and never will be again.
    """
    region = str(history.region_id)
    if folder.generation >= history.latest.current_generation or _replaced(folder, history):
        return None
    then = history.then
    if then is None or folder.generation >= then.current_generation or _names(then, folder):
        since = history.written(history.latest.version)
        return folder.decision(
            Kind.FOLDER,
            region,
            reason=Reason.GRACE,
            words="a reader may still hold a manifest that names it",
            until=moment(since + ages.grace),
        )
    holder = needs.holder(history.region_id, folder.generation)
    if holder is not None:
        return folder.decision(
            Kind.FOLDER, region, reason=holder.reason, words=holder.words, until=holder.until
        )
    return folder.decision(
        Kind.FOLDER,
        region,
        reason=Reason.UNNEEDED,
        words="no manifest has named it for a grace period",
        goes=True,
    )


def _names(manifest: RegionManifest, folder: Folder) -> bool:
    return any(flushed.path == folder.name for flushed in manifest.flushed)


def _replaced(folder: Folder, history: History) -> bool:
    """Whether another folder is the generation: this one is what a try to flush it left."""
    return any(flushed.generation == folder.generation for flushed in history.latest.flushed)


def judge_orphan(folder: Folder, history: History, ages: Ages) -> Decision:
    """Decide about a folder that the manifest does not name and may never have named."""
    region = str(history.region_id)
    if folder.youngest is None:
        # It may be the very beginning of a flush; it costs nothing to keep.
        return folder.decision(
            Kind.ORPHAN, region, reason=Reason.TOO_YOUNG, words="empty: a flush may have just begun"
        )
    if folder.youngest + ages.guard > ages.now:
        return folder.decision(
            Kind.ORPHAN,
            region,
            reason=Reason.TOO_YOUNG,
            words="no manifest names it, and a flush may still be writing it",
            until=moment(folder.youngest + ages.guard),
        )
    return folder.decision(
        Kind.ORPHAN,
        region,
        reason=Reason.UNNEEDED,
        words="no manifest ever named it, and nobody has written into it for long",
        goes=True,
    )


def delete_orphan(
    store: ObjectStore, manifests: RegionManifestStore, history: History, folder: Folder
) -> bool:
    """Delete such a folder, unless it is named meanwhile; returns whether it is gone."""
    if _may_be_named(folder, history.latest):
        if not _forbid(store, manifests, folder):
            return False
        _empty(store, generation_dir(manifests.region_id, folder.name))
    delete(store, manifests.region_id, folder.name)
    return True


def _may_be_named(folder: Folder, latest: RegionManifest) -> bool:
    """Whether a flush may still name a folder: it does so as long as nothing has its number."""
    return folder.generation >= latest.current_generation


def _forbid(store: ObjectStore, manifests: RegionManifestStore, folder: Folder) -> bool:
    """See to it that a folder is not named from now on; returns whether it was not before."""
    mark = f"{generation_dir(manifests.region_id, folder.name)}/{ORPHAN_MARK_NAME}"

    def change(latest: RegionManifest) -> RegionManifest | None:
        return latest if _may_be_named(folder, latest) else None

    store.put(mark, b"")
    try:
        latest = manifests.update(change)
    except ObjectNotFoundError:
        # The region is gone, and with it what would be named.
        return True
    if _may_be_named(folder, latest):
        return True
    store.delete(mark)
    return False


def _empty(store: ObjectStore, folder: str) -> None:
    """Delete what is in a folder but for its bloom filter, and then the mark, which go last.

    A flush that slept before it wrote the filter may do so while this runs, or later: it then
    finds that what it wrote first is gone, or the filter itself.
    """
    last = {f"{folder}/{name}" for name in (BLOOM_FILTER_NAME, ORPHAN_MARK_NAME)}
    store.delete_many(info.key for info in store.list(folder) if info.key not in last)
