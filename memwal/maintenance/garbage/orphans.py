"""Folders that no manifest ever named: what a flush left that died, or has still to name.

Which of the two nobody can tell; their age must. A flush that slept for longer may wake while its
folder is deleted. Writers of this package look whether it is whole before they name it, and after;
so the collector first takes away what they look for, then reads the manifest. If that names the
folder now, what was taken is put back. If not, whoever names it from here on finds it incomplete
afterwards, and writes its rows anew.

Lance's writers do not look. They would name a folder that is gone; its rows are then in the log,
whose entries stay as long as the manifest names the generation, and no merge goes past it.
"""

from __future__ import annotations

from memwal.errors import ObjectNotFoundError
from memwal.format.names import BLOOM_FILTER_NAME, generation_dir
from memwal.maintenance.garbage import folders
from memwal.maintenance.garbage.ages import Ages, moment
from memwal.maintenance.garbage.decisions import Decision, Kind, Reason
from memwal.maintenance.garbage.folders import Folder
from memwal.maintenance.garbage.history import History
from memwal.maintenance.garbage.versions import VERSIONS_DIR
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
    if not manifests.is_latest(history.latest):
        return False
    taken = _take_marks(store, generation_dir(manifests.region_id, folder.name))
    latest = manifests.read_latest()
    if latest is not None and any(flushed.path == folder.name for flushed in latest.flushed):
        for key, content in reversed(taken):
            store.put(key, content)
        return False
    folders.delete(store, manifests.region_id, folder.name)
    return True


def _take_marks(store: ObjectStore, folder: str) -> list[tuple[str, bytes]]:
    """Delete what shows that a flush is complete, and return it: the bloom filter comes last."""
    keys = [f"{folder}/{BLOOM_FILTER_NAME}"]
    keys += [info.key for info in store.list(f"{folder}/{VERSIONS_DIR}")]
    taken = []
    for key in keys:
        try:
            taken.append((key, store.get(key)))
        except ObjectNotFoundError:
            # The flush died before it came to that.
            continue
        store.delete(key)
    return taken
