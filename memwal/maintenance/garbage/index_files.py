"""Index files that no stored version of the table, or of a branch of it, names.

They are left by index builds that died, and by clean-ups of versions that did not get to them. A
build that is still running writes its files long before the version that names them, for which
nobody can ask: only their age tells. The guard is by default the one of Lance's own clean-up, so
that this is never more eager than that; a clean-up that runs at the same time takes the same.

The manifests of all versions have to be read for it, since any may name what the newest does not.
They are read only if there is a candidate, and only if they are not too many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from memwal.errors import InvalidInputError, ObjectNotFoundError
from memwal.format.index_details import IndexDetails
from memwal.format.names import DATA_DIR, MEM_WAL_INDEX_NAME, parse_region_name
from memwal.format.table_manifest import IndexEntry, read_index_section
from memwal.maintenance.garbage.ages import Ages, moment
from memwal.maintenance.garbage.decisions import Decision, Kind, Reason
from memwal.maintenance.garbage.folders import measure_prefix
from memwal.maintenance.garbage.versions import VERSIONS_DIR, StoredVersions
from memwal.storage.base import ObjectInfo, ObjectStore
from memwal.storage.location import TableLocation
from memwal.table_index.region_snapshot import external_key

INDICES_DIR = "_indices"
TREE_DIR = "tree"
MAX_VERSIONS = 2000
"""More stored versions than this are not read for the sake of stale index files."""

_PARALLEL_READS = 16


def judge_index_files(
    location: TableLocation, ages: Ages, *, max_versions: int = MAX_VERSIONS
) -> Iterator[Decision]:
    """Decide about folders of indexes that the newest version does not name."""
    store = location.store
    # First what is stored, then who names it: a build that commits in between is seen.
    found = {
        name: index_id
        for name in store.list_folders(INDICES_DIR)
        if (index_id := parse_region_name(name)) is not None
    }
    if not found:
        return
    versions = StoredVersions.list(location)
    named = _named(store, _newest_first(versions.manifests.values())[:1])
    candidates = {name: index_id for name, index_id in found.items() if index_id not in named}
    manifests = [*versions.manifests.values(), *versions.others, *_of_branches(location)]
    too_many = len(manifests) > max_versions
    if candidates and not too_many:
        named |= _named(store, manifests)
    for name, index_id in candidates.items():
        if index_id not in named:
            yield _judge(store, name, ages, too_many=len(manifests) if too_many else None)


def delete(store: ObjectStore, name: str) -> None:
    """Delete the folder of an index."""
    if parse_region_name(name) is None:
        raise InvalidInputError(f"{name!r} is not the name of an index folder")
    store.delete_folder(f"{INDICES_DIR}/{name}")


def _judge(store: ObjectStore, name: str, ages: Ages, *, too_many: int | None) -> Decision:
    extent = measure_prefix(store, f"{INDICES_DIR}/{name}")
    youngest = extent.youngest
    until = None
    if too_many is not None:
        reason = Reason.TOO_MANY_VERSIONS
        words = f"{too_many} versions are stored, any of which may name it; clean old ones up first"
    elif youngest is None or youngest + ages.index_age > ages.now:
        reason = Reason.TOO_YOUNG
        words = "no version names it, and a build may still be writing it"
        until = None if youngest is None else moment(youngest + ages.index_age)
    else:
        reason, words = Reason.UNNEEDED, "no version of the table or of a branch names it"
    return Decision(
        kind=Kind.INDEX,
        what=name,
        objects=extent.objects,
        bytes=extent.bytes,
        goes=reason is Reason.UNNEEDED,
        reason=reason,
        words=words,
        until=until,
    )


def _of_branches(location: TableLocation) -> Iterator[ObjectInfo]:
    """Manifests of every branch, which share the index files of the version they started from.

    Names of branches may have slashes in them, so that folders are looked into at any depth.
    """
    pending = [TREE_DIR]
    while pending:
        folder = pending.pop()
        for name in location.store.list_folders(folder):
            inner = f"{folder}/{name}"
            if name == VERSIONS_DIR:
                found = StoredVersions.list(location, inner)
                yield from (*found.manifests.values(), *found.others)
            elif not name.startswith("_") and name != DATA_DIR:
                pending.append(inner)


def _named(store: ObjectStore, manifests: Iterable[ObjectInfo]) -> set[UUID]:
    """Ids of every index that these manifests name."""

    def read(info: ObjectInfo) -> set[UUID]:
        try:
            entries = read_index_section(store.get(info.key), name=info.key)
            return {entry.uuid for entry in entries} | _snapshots(entries)
        except ObjectNotFoundError:
            # Cleaned up meanwhile: what only it named is garbage from then on.
            return set()

    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        return set().union(*pool.map(read, manifests))


def _snapshots(entries: Iterable[IndexEntry]) -> set[UUID]:
    """Ids of the folders with the region snapshots that details lead to."""
    found = set()
    for entry in entries:
        if entry.name == MEM_WAL_INDEX_NAME:
            key = external_key(IndexDetails.decode(entry.details))
            index_id = parse_region_name(key.split("/")[1]) if key is not None else None
            found |= {index_id} if index_id is not None else set()
    return found


def _newest_first(manifests: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    return sorted(manifests, key=lambda info: info.modified, reverse=True)
