"""Generations that are named, and the folders of those that were.

First the manifest stops naming a generation; a grace period later its folder goes, when every
reader that still holds an older manifest has finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from memwal.errors import ObjectNotFoundError
from memwal.format.region_manifest import RegionManifest
from memwal.maintenance.garbage.ages import Ages, moment
from memwal.maintenance.garbage.decisions import Decision, Kind, Reason
from memwal.maintenance.garbage.folders import Folder
from memwal.maintenance.garbage.history import History
from memwal.maintenance.garbage.needs import Needs
from memwal.region.manifest_store import RegionManifestStore


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
