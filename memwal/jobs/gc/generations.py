"""Collectors of generations: dropped from the manifest, folders once named, and orphans.

First the manifest stops naming a generation. A grace period later its folder is deleted, when every
reader that still holds an older manifest has finished.

An orphan is a folder that no manifest ever named: left by a flush that died, or written by a flush
that has yet to name it. Which of the two cannot be observed; the age of the folder must decide. A
flush that was paused for longer than that age may go on while its folder is deleted. The collector
therefore first writes a mark into the folder, and then a new version of the region's manifest in
which nothing is changed. Writers of this package read the manifest, check that the folder has no
mark and still exists, and name it in the very next version. A writer that checked before the mark
was written finds that version taken, and checks again.

Lance's writers do not check. They would name a folder that is gone; its rows are then in the log,
whose entries stay as long as the manifest names the generation, and no merge goes past it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import ClassVar
from uuid import UUID

from memwal.base_table.region_marks import UNMARKED, raise_marks, read_mark
from memwal.errors import ObjectNotFoundError
from memwal.format.paths import (
    BLOOM_FILTER_NAME,
    ORPHAN_MARK_NAME,
    generation_dir,
    parse_generation_name,
)
from memwal.format.region_manifest import (
    INCARNATION_NUMBERS,
    FlushedGeneration,
    RegionManifest,
)
from memwal.jobs.foreign_claims import are_protected, find_foreign_claim, protected_from
from memwal.jobs.gc.collector import GcContext, RegionState, carry_out
from memwal.jobs.gc.decision import Decision, GarbageKind, Reason, moment
from memwal.jobs.gc.history import ManifestVersions
from memwal.jobs.gc.pins import Pin
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Extent:
    """Number, size and youngest modification time of the objects below a prefix."""

    objects: int = 0
    bytes: int = 0
    youngest: datetime | None = None


def measure(store: ObjectStore, prefix: str) -> Extent:
    """List the objects below a prefix, and keep only their totals."""
    objects, size = 0, 0
    youngest: datetime | None = None
    for info in store.list(prefix):
        objects += 1
        size += info.size
        youngest = info.modified if youngest is None else max(youngest, info.modified)
    return Extent(objects, size, youngest)


@dataclass(frozen=True, slots=True)
class GenerationCollector:
    """Drops generations from the manifest that are merged and that nothing pins."""

    kind: ClassVar[GarbageKind] = GarbageKind.GENERATION
    region: RegionState

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about each generation that the latest manifest names, and drop them together."""
        region = self.region
        extents: dict[str, Extent] = {}
        if context.options.explain:
            for flushed in region.history.latest.flushed:
                folder = generation_dir(region.region_id, flushed.path)
                extents[flushed.path] = measure(region.store, folder)
        removable = context.pins.removable(region.region_id)
        protection = self._protection(removable, context)
        if protection is not None:
            removable = min(removable, protection.removable(region.region_id))
        decisions = [
            self._decide(flushed, extents.get(flushed.path, Extent()), context, protection)
            for flushed in region.history.latest.flushed
        ]
        if not context.options.dry_run and any(decision.delete for decision in decisions):
            epoch = region.history.latest.writer_epoch
            # Before: of what the manifest does not name any more, nothing else in the region tells
            # that it was merged. What is removable was merged when the pins were read, so that a
            # mark that is written late, or twice, is true.
            raise_marks(region.store, context.marks, {region.region_id: removable})
            drop_generations(region.manifests, removable, epoch=epoch, needed=self._needed(context))
        yield from decisions

    def _needed(self, context: GcContext) -> Callable[[], bool]:
        """Return a call that tells whether dropped generations are to be merged again.

        So it is if a person decided that since the pins were read: see
        :mod:`memwal.jobs.table.restore`.
        """
        region = self.region
        era = context.marks.get(region.region_id, UNMARKED).era

        def is_new_era() -> bool:
            mark = read_mark(region.store, region.region_id)
            return mark is not None and mark.era != era

        return is_new_era

    def _protection(self, removable: int, context: GcContext) -> Pin | None:
        """Return the pin of a claim by another client, if it keeps a droppable generation."""
        region, latest = self.region, self.region.history.latest
        may_drop = any(flushed.generation <= removable for flushed in latest.flushed)
        if not may_drop or not are_protected(context.options):
            return None
        claim = find_foreign_claim(region.store, latest)
        if claim is None:
            return None
        oldest = protected_from(claim, latest, context.options, now=context.now)
        if oldest is None:
            return None
        ends = claim.last_entry + context.options.foreign_claim
        return Pin(
            reason=Reason.FOREIGN_CLAIM,
            message=(
                f"a writer that is not memwal's claimed the region (epoch {claim.epoch}), and may "
                "read the base table as of its claim"
            ),
            generations={region.region_id: oldest - 1},
            until=moment(ends),
        )

    def _decide(
        self,
        flushed: FlushedGeneration,
        extent: Extent,
        context: GcContext,
        protection: Pin | None,
    ) -> Decision:
        region_id = self.region.region_id
        pin = context.pins.pinned_by(region_id, flushed.generation)
        if pin is None and protection is not None:
            is_protected = flushed.generation > protection.removable(region_id)
            pin = protection if is_protected else None
        if pin is None:
            reason, until = Reason.UNNEEDED, None
            message = (
                "merged, indexed, and no version that is kept needs it: it is dropped from the "
                "manifest, and its folder is deleted a grace period later"
            )
        else:
            reason, message, until = pin.reason, pin.message, pin.until
        return _decision(self.kind, self.region, flushed.path, extent, reason, message, until)


def _decision(
    kind: GarbageKind,
    region: RegionState,
    folder: str,
    extent: Extent,
    reason: Reason,
    message: str,
    until: str | None,
) -> Decision:
    return Decision(
        kind=kind,
        what=folder,
        region_id=str(region.region_id),
        objects=extent.objects,
        bytes=extent.bytes,
        reason=reason,
        message=message,
        until=until,
    )


def drop_generations(
    manifests: RegionManifestStore, removable: int, *, epoch: int, needed: Callable[[], bool]
) -> None:
    """Drop generations up to ``removable`` from the manifest; the writer's epoch stays as it is.

    Drops nothing if the region was claimed since the manifest with this ``epoch`` was read: the
    writer of that claim may be one that needs them. Nor if they are ``needed``, which is asked
    after the manifest that is replaced was read: a decision that comes later replaces it first.
    """

    def change(latest: RegionManifest) -> RegionManifest | None:
        if latest.writer_epoch != epoch or needed():
            return None
        remaining = tuple(f for f in latest.flushed if f.generation > removable)
        return replace(latest, flushed=remaining) if len(remaining) < len(latest.flushed) else None

    try:
        manifests.update(change)
    except ObjectNotFoundError:
        # The region is gone, and with it what would be dropped.
        return


@dataclass(frozen=True, slots=True)
class DroppedFolderCollector:
    """Deletes the folders of generations that were dropped from the manifest.

    A flush registers generation ``current_generation`` and increments it, so a folder whose number
    is below the ``current_generation`` of one grace period ago, and which neither that manifest nor
    the latest one names, was named by none in between and never will be.
    """

    kind: ClassVar[GarbageKind] = GarbageKind.FOLDER
    region: RegionState

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about each folder that a manifest named once."""
        region = self.region
        for name, generation in _unnamed_folders(region):
            if _may_never_have_been_named(generation, region.history.latest):
                continue
            folder = generation_dir(region.region_id, name)
            extent = measure(region.store, folder)
            yield carry_out(
                self._decide(name, generation, extent, context),
                region.store,
                folder,
                partial(delete_folder, region.store, region.region_id, name),
                dry_run=context.options.dry_run,
            )

    def _decide(self, name: str, generation: int, extent: Extent, context: GcContext) -> Decision:
        region, history = self.region, self.region.history
        pin = context.pins.pinned_by(region.region_id, generation)
        until = None
        if not _is_past_grace(name, generation, history):
            reason, message = Reason.GRACE, "a reader may still hold a manifest that names it"
            until = moment(history.written(history.latest.version) + context.options.grace)
        elif pin is not None:
            reason, message, until = pin.reason, pin.message, pin.until
        else:
            reason, message = Reason.UNNEEDED, "no manifest has named it for a grace period"
        return _decision(self.kind, region, name, extent, reason, message, until)


def _is_past_grace(name: str, generation: int, history: ManifestVersions) -> bool:
    """Return whether the manifest of one grace period ago had already dropped a folder."""
    then = history.then
    return (
        then is not None
        and generation < then.current_generation
        and all(flushed.path != name for flushed in then.flushed)
    )


def _unnamed_folders(region: RegionState) -> Iterator[tuple[str, int]]:
    """Yield name and number of each generation folder that the latest manifest does not name.

    Folders of an earlier incarnation, which was given up and came back, are left out.
    """
    latest = region.history.latest
    named = {flushed.path for flushed in latest.flushed}
    for name in region.folders:
        generation = parse_generation_name(name)
        if generation is None or generation < latest.incarnation * INCARNATION_NUMBERS:
            continue
        if name not in named:
            yield name, generation


def _may_never_have_been_named(generation: int, latest: RegionManifest) -> bool:
    """Return whether the folder of a generation, unnamed by now, may never have been named.

    If the manifest names another folder as this generation, this one was left by another attempt to
    flush it.
    """
    return _may_be_named(generation, latest) or any(
        flushed.generation == generation for flushed in latest.flushed
    )


def _may_be_named(generation: int, latest: RegionManifest) -> bool:
    """Return whether a flush may still name a folder: only while no generation has its number."""
    return generation >= latest.current_generation


def delete_folder(store: ObjectStore, region_id: UUID, name: str) -> None:
    """Delete a folder that no flush will name. Half of it is never taken for a generation.

    The bloom filter, which a flush writes last, is deleted first.
    """
    folder = generation_dir(region_id, name)
    store.delete(f"{folder}/{BLOOM_FILTER_NAME}")
    store.delete_folder(folder)


@dataclass(frozen=True, slots=True)
class OrphanCollector:
    """Deletes old folders that the manifest does not name and may never have named."""

    kind: ClassVar[GarbageKind] = GarbageKind.ORPHAN
    region: RegionState

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about each such folder. One that is named meanwhile is kept."""
        region = self.region
        for name, generation in _unnamed_folders(region):
            if not _may_never_have_been_named(generation, region.history.latest):
                continue
            folder = generation_dir(region.region_id, name)
            extent = measure(region.store, folder)
            yield carry_out(
                self._decide(name, extent, context),
                region.store,
                folder,
                partial(self._delete, name, generation),
                dry_run=context.options.dry_run,
            )

    def _decide(self, name: str, extent: Extent, context: GcContext) -> Decision:
        age = context.options.orphan_grace
        reason, until = Reason.TOO_YOUNG, None
        if extent.youngest is None:
            # It may be the very beginning of a flush; it costs nothing to keep.
            message = "empty: a flush may have just begun"
        elif extent.youngest + age > context.now:
            message = "no manifest names it, and a flush may still be writing it"
            until = moment(extent.youngest + age)
        else:
            reason = Reason.UNNEEDED
            message = "no manifest ever named it, and its objects are older than the minimum age"
        return _decision(self.kind, self.region, name, extent, reason, message, until)

    def _delete(self, name: str, generation: int) -> bool:
        """Delete a folder unless a concurrent flush names it. Returns whether it is gone."""
        region = self.region
        if _may_be_named(generation, region.history.latest):
            if not self._prevent_naming(name, generation):
                return False
            self._empty(generation_dir(region.region_id, name))
        delete_folder(region.store, region.region_id, name)
        return True

    def _prevent_naming(self, name: str, generation: int) -> bool:
        """Make sure that no writer names a folder from now on. Returns False if one has."""
        region = self.region
        mark = f"{generation_dir(region.region_id, name)}/{ORPHAN_MARK_NAME}"

        def change(latest: RegionManifest) -> RegionManifest | None:
            return latest if _may_be_named(generation, latest) else None

        region.store.put(mark, b"")
        try:
            latest = region.manifests.update(change)
        except ObjectNotFoundError:
            # The region is gone, and with it the manifest that could name the folder.
            return True
        if _may_be_named(generation, latest):
            return True
        region.store.delete(mark)
        return False

    def _empty(self, folder: str) -> None:
        """Delete the contents of a folder, its bloom filter and the mark last.

        A flush that was paused before it wrote the filter may do so while this runs, or later: it
        then finds that what it wrote first is gone, or the filter itself.
        """
        store = self.region.store
        last = {f"{folder}/{name}" for name in (BLOOM_FILTER_NAME, ORPHAN_MARK_NAME)}
        store.delete_many(info.key for info in store.list(folder) if info.key not in last)
