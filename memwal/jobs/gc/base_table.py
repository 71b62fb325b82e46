"""Collectors of the base table: stale index files, staged files, and old versions.

Index files that no stored version of the table, or of a branch of it, names are left by index
builds that died, and by clean-ups of versions that did not reach them. A build that is still
running writes its files long before the version that names them, and no process can be asked about
it: only the age of the files tells. The minimum age is by default the one of Lance's own clean-up,
so this collector is never more eager than that; a clean-up that runs at the same time deletes the
same files. The manifests of all versions have to be read, since any of them may name what the
newest does not. They are read only if there is a candidate, and only if there are not too many.

Staged files are left by writes and commits that died half-way: never named, never read, only taking
space. Manifests that were staged and never became a version are objects like any other, in every
store; a commit that slept for longer than their minimum age finds its own staged manifest gone, and
fails as a whole. On a local disk there are the temporary files of memwal and Lance too.

Old versions are cleaned up by Lance, which keeps the newest version, tagged ones, and those that
branches start from, and deletes the data, index and transaction files that only the others name.
None of that is implemented a second time here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from memwal.base_table.region_snapshot import external_key
from memwal.base_table.snapshot import open_base, translate_lance_error
from memwal.errors import InvalidInputError, ObjectNotFoundError
from memwal.format.lance_manifest import IndexEntry, read_index_section
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import DATA_DIR, MEM_WAL_INDEX_NAME, parse_region_name
from memwal.jobs.gc.decision import Decision, Kind, Reason
from memwal.jobs.gc.generations import measure_prefix
from memwal.jobs.gc.history import VERSIONS_DIR, StoredVersions
from memwal.jobs.gc.options import Ages, moment
from memwal.storage import local_files
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectInfo, ObjectStore


def clean_base_versions(
    location: TableLocation, *, older_than: timedelta, dry_run: bool
) -> Decision | None:
    """Have Lance clean old versions up, or tell what it would; None when there are none."""
    dataset = open_base(location).dataset
    if not dry_run:
        # Lance keeps the version that is open, and somebody may have committed it just now.
        location.store.barrier()
    options: dict[str, Any] = {"older_than": older_than, "error_if_tagged_old_versions": False}
    try:
        stats = (
            dataset.explain_cleanup_old_versions(**options).stats
            if dry_run
            else dataset.cleanup_old_versions(**options)
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise translate_lance_error(error, f"cleaning old versions of {location} up") from error
    versions, freed = int(stats.old_versions), int(stats.bytes_removed)
    if not versions and not freed:
        return None
    return Decision(
        kind=Kind.BASE_VERSIONS,
        what="old versions",
        objects=versions,
        bytes=freed,
        goes=True,
        reason=Reason.UNNEEDED,
        words="older than the retention, neither tagged nor where a branch starts",
    )


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
    elif youngest is None or youngest + ages.index_grace > ages.now:
        reason = Reason.TOO_YOUNG
        words = "no version names it, and a build may still be writing it"
        until = None if youngest is None else moment(youngest + ages.index_grace)
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


def judge_staged_manifests(versions: StoredVersions, ages: Ages) -> Iterator[Decision]:
    """Decide about staged manifests of the table."""
    for info in versions.staged:
        yield _decision(info.key, info.size, info.modified, ages)


def judge_temporaries(location: TableLocation, ages: Ages) -> Iterator[Decision]:
    """Decide about the temporary files of a local table, at any depth; object stores have none."""
    root = location.local_path
    if root is None:
        return
    for file in local_files.walk(str(root)):
        if not local_files.is_staging(file.name):
            continue
        try:
            status = file.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        modified = datetime.fromtimestamp(status.st_mtime, UTC)
        yield _decision(os.path.relpath(file.path, root), status.st_size, modified, ages)


def delete_temporaries(store: ObjectStore, ages: Ages) -> None:
    """Delete the temporary files that are old enough."""
    age = datetime.now(UTC) - (ages.now - ages.guard)
    store.delete_stale_temporaries("", older_than=age)


def _decision(what: str, size: int, modified: datetime, ages: Ages) -> Decision:
    old = modified + ages.guard <= ages.now
    return Decision(
        kind=Kind.STAGING,
        what=what,
        objects=1,
        bytes=size,
        goes=old,
        reason=Reason.UNNEEDED if old else Reason.TOO_YOUNG,
        words=("the rest of a write that died" if old else "a write may still be under way"),
        until=None if old else moment(modified + ages.guard),
    )
