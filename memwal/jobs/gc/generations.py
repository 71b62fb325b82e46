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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from memwal.base_table.region_marks import UNMARKED, raise_marks, read_mark
from memwal.errors import ObjectNotFoundError
from memwal.format.paths import (
    BLOB_SUFFIX,
    BLOOM_FILTER_NAME,
    ORPHAN_MARK_NAME,
    generation_dir,
    parse_generation_name,
    parse_wal_name,
    wal_dir,
)
from memwal.format.region_manifest import INCARNATION_NUMBERS, RegionManifest
from memwal.format.wal_entry import TornEntryError
from memwal.jobs.foreign_claims import are_protected, find_foreign_claim, protected_from
from memwal.jobs.gc.collector import Extent, RegionState, decide
from memwal.jobs.gc.decision import Decision, DecisionReason, GarbageKind, Reason
from memwal.jobs.gc.pins import Pin
from memwal.lsm.wal.log import read_head
from memwal.storage.object_store import ObjectStore


def collect_generations(region: RegionState) -> Iterator[Decision]:
    """Drop generations from the manifest, all together, that are merged and that nothing pins."""
    context, latest = region.context, region.history.latest
    removable = context.pins.removable(region.region_id)
    protection = _protection(region, removable)
    if protection is not None:
        removable = min(removable, protection.removable(region.region_id))
    decisions = []
    for flushed in latest.flushed:
        extent = Extent()
        if context.options.explain:
            extent = context.measure(generation_dir(region.region_id, flushed.path))
        pin = context.pins.pinned_by(region.region_id, flushed.generation)
        if pin is None and flushed.generation > removable:
            pin = protection
        message = (
            "merged, indexed, and no version that is kept needs it: it is dropped from the "
            "manifest, and its folder is deleted a grace period later"
        )
        why: DecisionReason = (Reason.UNNEEDED, message, None) if pin is None else pin.keep_reason
        decisions.append(
            decide(region.region_id, GarbageKind.GENERATION, flushed.path, extent, why)
        )
    if not context.options.dry_run and any(decision.delete for decision in decisions):
        # Before: of what the manifest does not name any more, nothing else in the region tells
        # that it was merged. What is removable was merged when the pins were read, so that a
        # mark that is written late, or twice, is true.
        raise_marks(region.store, context.marks, {region.region_id: removable})
        _drop_generations(region, removable)
    yield from decisions


def _are_merged_again(region: RegionState) -> bool:
    """Return whether a person had generations merged again since the pins were read.

    See :mod:`memwal.jobs.table.restore`.
    """
    mark = read_mark(region.store, region.region_id)
    return mark is not None and mark.era != region.context.marks.get(region.region_id, UNMARKED).era


def _protection(region: RegionState, removable: int) -> Pin | None:
    """Return the pin of a claim by another client, if it keeps a droppable generation."""
    latest, options = region.history.latest, region.context.options
    may_drop = any(flushed.generation <= removable for flushed in latest.flushed)
    if not may_drop or not are_protected(options):
        return None
    claim = find_foreign_claim(region.store, latest)
    if claim is None:
        return None
    oldest = protected_from(claim, latest, options, now=region.context.now)
    if oldest is None:
        return None
    return Pin(
        reason=Reason.FOREIGN_CLAIM,
        message=(
            f"a writer that is not memwal's claimed the region (epoch {claim.epoch}), and may "
            "read the base table as of its claim"
        ),
        generations={region.region_id: oldest - 1},
        until=claim.last_entry + options.foreign_claim,
    )


def _drop_generations(region: RegionState, removable: int) -> None:
    """Drop generations up to ``removable`` from the manifest; the writer's epoch stays as it is.

    Drops nothing if the region was claimed since its manifest was read: the writer of that claim
    may be one that needs them. Nor if they are to be merged again, which is asked after the
    manifest that is replaced was read: a decision that comes later replaces it first.
    """
    epoch = region.history.latest.writer_epoch

    def change(latest: RegionManifest) -> RegionManifest | None:
        if latest.writer_epoch != epoch or _are_merged_again(region):
            return None
        remaining = tuple(f for f in latest.flushed if f.generation > removable)
        return replace(latest, flushed=remaining) if len(remaining) < len(latest.flushed) else None

    try:
        region.manifests.update(change)
    except ObjectNotFoundError:
        # The region is gone, and with it the generations that would be dropped.
        return


@dataclass(frozen=True, slots=True)
class _Folder:
    """Folder of a generation that the latest manifest does not name."""

    name: str
    key: str
    generation: int


def collect_dropped_folders(region: RegionState) -> Iterator[Decision]:
    """Delete the folders of generations that were dropped from the manifest.

    A flush registers generation ``current_generation`` and increments it, so a folder whose number
    is below the ``current_generation`` of one grace period ago, and which neither that manifest nor
    the latest one names, was named by none in between and never will be.
    """
    context, history = region.context, region.history
    for folder in _unnamed_folders(region, orphaned=False):
        pin = context.pins.pinned_by(region.region_id, folder.generation)
        then = history.then
        if (
            then is None
            or folder.generation >= then.current_generation
            or any(flushed.path == folder.name for flushed in then.flushed)
        ):
            until = history.written(history.latest.version) + context.options.grace
            why: DecisionReason = (
                Reason.GRACE,
                "a reader may still hold a manifest that names it",
                until,
            )
        elif pin is not None:
            why = pin.keep_reason
        else:
            why = Reason.UNNEEDED, "no manifest has named it for a grace period", None
        extent = context.measure(folder.key)
        yield context.carry_out(
            decide(region.region_id, GarbageKind.FOLDER, folder.name, extent, why),
            folder.key,
            partial(delete_folder, region.store, region.region_id, folder.name),
        )


def _unnamed_folders(region: RegionState, *, orphaned: bool) -> Iterator[_Folder]:
    """Yield the generation folders that the latest manifest does not name.

    ``orphaned`` are the folders that may never have been named. If the manifest names another
    folder as the same generation, this one was left by another attempt to flush it. Folders of an
    earlier incarnation, which was given up and came back, are left out.
    """
    latest = region.history.latest
    named = {flushed.path: flushed.generation for flushed in latest.flushed}
    for name in region.folders:
        generation = parse_generation_name(name)
        if generation is None or generation < latest.incarnation * INCARNATION_NUMBERS:
            continue
        is_orphan = _may_be_named(generation, latest) or generation in named.values()
        if name not in named and is_orphan == orphaned:
            yield _Folder(name, generation_dir(region.region_id, name), generation)


def _may_be_named(generation: int, latest: RegionManifest) -> bool:
    """Return whether a flush may still name a folder: only while no generation has its number."""
    return generation >= latest.current_generation


def delete_folder(store: ObjectStore, region_id: UUID, name: str) -> None:
    """Delete a folder that no flush will name. Half a folder is never taken for a generation.

    The bloom filter, which a flush writes last, is deleted first.
    """
    folder = generation_dir(region_id, name)
    store.delete(f"{folder}/{BLOOM_FILTER_NAME}")
    store.delete_folder(folder)


def collect_orphans(region: RegionState) -> Iterator[Decision]:
    """Delete old folders that the manifest may never have named, unless it now names them."""
    context, age = region.context, region.context.options.orphan_grace
    for folder in _unnamed_folders(region, orphaned=True):
        extent = context.measure(folder.key)
        if extent.youngest is None:
            # It may be the very beginning of a flush; it costs nothing to keep.
            why: DecisionReason = Reason.TOO_YOUNG, "empty: a flush may have just begun", None
        elif extent.youngest + age > context.now:
            message = "no manifest names it, and a flush may still be writing it"
            why = Reason.TOO_YOUNG, message, extent.youngest + age
        elif _has_logged_blobs(region, folder):
            message = "it has blobs of rows that are not flushed"
            why = Reason.REPLAY, message, None
        else:
            message = "no manifest ever named it, and its objects are older than the minimum age"
            why = Reason.UNNEEDED, message, None
        yield context.carry_out(
            decide(region.region_id, GarbageKind.ORPHAN, folder.name, extent, why),
            folder.key,
            partial(_delete_orphan, region, folder),
        )


def _has_logged_blobs(region: RegionState, folder: _Folder) -> bool:
    """Return whether entries that a claim would replay have blobs in a folder.

    Lance's own writer stores large blobs before the entry that names them. If it pauses in between
    for longer than the age of an orphan, the blobs are gone when it appends the entry: a replay
    then fails and names them.
    """
    if not any(info.key.endswith(BLOB_SUFFIX) for info in region.store.list(folder.key)):
        return False
    names = (info.key.rpartition("/")[2] for info in region.store.list(wal_dir(region.region_id)))
    after = region.history.latest.replay_after
    positions = [at for at in map(parse_wal_name, names) if at is not None and at > after]
    try:
        heads = (read_head(region.store, region.region_id, position) for position in positions)
        return any(head.blob_folder == folder.name for head in heads)
    except TornEntryError:
        return True


def _delete_orphan(region: RegionState, folder: _Folder) -> bool:
    """Delete a folder unless a concurrent flush names it. Returns whether it is gone."""
    if _may_be_named(folder.generation, region.history.latest):
        if not _prevent_naming(region, folder):
            return False
        _empty(region.store, folder.key)
    delete_folder(region.store, region.region_id, folder.name)
    return True


def _prevent_naming(region: RegionState, folder: _Folder) -> bool:
    """Make sure that no writer names a folder from now on. Returns False if one has."""
    mark = f"{folder.key}/{ORPHAN_MARK_NAME}"

    def change(latest: RegionManifest) -> RegionManifest | None:
        return latest if _may_be_named(folder.generation, latest) else None

    region.store.put(mark, b"")
    try:
        latest = region.manifests.update(change)
    except ObjectNotFoundError:
        # The region is gone, and with it the manifest that could name the folder.
        return True
    if _may_be_named(folder.generation, latest):
        return True
    region.store.delete(mark)
    return False


def _empty(store: ObjectStore, folder: str) -> None:
    """Delete the contents of a folder, its bloom filter and the mark last.

    A flush that was paused before it wrote the filter may do so while this runs, or later: it then
    finds that its earlier files are gone, or the filter itself.
    """
    last = {f"{folder}/{name}" for name in (BLOOM_FILTER_NAME, ORPHAN_MARK_NAME)}
    store.delete_many(info.key for info in store.list(folder) if info.key not in last)
