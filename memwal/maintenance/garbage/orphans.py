"""Folders that no manifest ever named: what a flush left that died, or has still to name.

Which of the two nobody can tell; their age must. A flush that slept for longer may wake while its
folder is deleted. So the collector first puts a mark into the folder, and then a new version of the
region's manifest, in which nothing is changed. Writers of this package read the manifest, look that
the folder has no mark and is still there, and name it in the very next version: one that looked
before the mark finds that version taken, and looks again.

Lance's writers do not look. They would name a folder that is gone; its rows are then in the log,
whose entries stay as long as the manifest names the generation, and no merge goes past it.
"""

from __future__ import annotations

from memwal.errors import ObjectNotFoundError
from memwal.format.names import BLOOM_FILTER_NAME, ORPHAN_MARK_NAME, generation_dir
from memwal.format.region_manifest import RegionManifest
from memwal.maintenance.garbage import folders
from memwal.maintenance.garbage.ages import Ages, moment
from memwal.maintenance.garbage.decisions import Decision, Kind, Reason
from memwal.maintenance.garbage.folders import Folder
from memwal.maintenance.garbage.history import History
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.base import ObjectStore


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


def delete(
    store: ObjectStore, manifests: RegionManifestStore, history: History, folder: Folder
) -> bool:
    """Delete such a folder, unless it is named meanwhile; returns whether it is gone."""
    if _may_be_named(folder, history.latest):
        if not _forbid(store, manifests, folder):
            return False
        _empty(store, generation_dir(manifests.region_id, folder.name))
    folders.delete(store, manifests.region_id, folder.name)
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
