"""Collectors of the base table: read tags, stale index files, staged files, and old versions.

Index files that no stored version of the table, or of a branch of it, names are left by index
builds that died, and by clean-ups of versions that did not reach them. A build that is still
running writes its files long before the version that names them, and cannot be observed: only the
age of the files tells. The minimum age is by default the one of Lance's own clean-up, so this
collector is never more eager than that; a clean-up that runs at the same time deletes the same
files. The manifests of all versions have to be read, since any of them may name files that the
newest does not. They are read only if there is a candidate, and only if there are not too many.

Staged files are left by writes and commits that died half-way: never named, never read, only taking
space. Staged manifests that never became a version are objects like any other, in every store; a
commit that was paused for longer than their minimum age finds its own staged manifest gone, and
fails as a whole. So does a divided merge, whose tasks store keys. On a local disk there are the
temporary files of memwal and Lance too.

Old versions are cleaned up by Lance, which keeps the newest version, tagged versions, and versions
that branches start from, and deletes the data, index and transaction files that only the others
name. None of that is implemented a second time here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from memwal.base_table.refs import TAGS_DIR
from memwal.base_table.region_snapshot import external_key
from memwal.base_table.snapshot import lance_errors, open_base
from memwal.errors import LinkRefusedError, ObjectNotFoundError
from memwal.format.lance_manifest import IndexEntry, read_index_section
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import (
    INDICES_DIR,
    MEM_WAL_DIR,
    MEM_WAL_INDEX_NAME,
    STAGED_ROWS_DIR,
    VERSIONS_DIR,
    parse_region_name,
)
from memwal.jobs.gc.collector import Extent, GcContext, decide
from memwal.jobs.gc.decision import Decision, DecisionReason, GarbageKind, Reason
from memwal.jobs.gc.history import StoredVersions, branch_manifests
from memwal.jobs.gc.pins import list_read_tags
from memwal.jobs.merge.run_files import MERGES_DIR
from memwal.storage.object_store import ObjectInfo, ObjectStore
from memwal.util.concurrency import map_parallel

MAX_VERSIONS = 2000
"""More stored versions than this are not read for the sake of stale index files."""


def collect_read_tags(context: GcContext) -> Iterator[Decision]:
    """Delete read tags whose protection has ended; no other tag is ever deleted.

    An expired tag is checked again before it is deleted, since its reader may have renewed it.
    """
    store, grace = context.location.store, context.options.grace
    for tag, size, end in list_read_tags(context.pins.refs, grace):
        if end <= context.now and not context.options.dry_run:
            info = store.head(tag.key)
            if info is None:
                continue
            end = tag.expires_at(info.modified) + grace
        message = f"a read protects version {tag.version} while it renews this tag"
        why: DecisionReason = Reason.READ, message, end
        if end <= context.now:
            message = f"the read of version {tag.version} ended, or its process did"
            why = Reason.UNNEEDED, message, None
        yield context.carry_out(
            decide(None, GarbageKind.READ, tag.name, Extent(1, size), why),
            TAGS_DIR,
            partial(store.delete, tag.key),
        )


def collect_index_files(
    context: GcContext, *, max_versions: int = MAX_VERSIONS
) -> Iterator[Decision]:
    """Delete the folders of indexes that no stored version names, and that are old enough.

    If more than ``max_versions`` are stored, they are not read, and nothing is deleted.
    """
    store = context.location.store
    # First the folders are listed, then the versions that name them are read: a build that
    # commits in between is seen.
    stored = [
        index_id
        for name in store.list_folders(INDICES_DIR)
        if (index_id := parse_region_name(name)) is not None
    ]
    if not stored:
        return
    versions = StoredVersions.list(context.location)
    by_age = sorted(versions.manifests.values(), key=lambda info: info.modified, reverse=True)
    named = _named_indexes(store, by_age[:1])
    candidates = [index_id for index_id in stored if index_id not in named]
    manifests = [
        *versions.manifests.values(),
        *versions.others,
        *branch_manifests(context.location),
    ]
    too_many = len(manifests) > max_versions
    if candidates and not too_many:
        named |= _named_indexes(store, manifests)
    for index_id in candidates:
        if index_id in named:
            continue
        folder = f"{INDICES_DIR}/{index_id}"
        extent, age = context.measure(folder), context.options.index_grace
        if too_many:
            message = (
                f"{len(manifests)} versions are stored, any of which may name it; clean old ones "
                "up first"
            )
            why: DecisionReason = Reason.TOO_MANY_VERSIONS, message, None
        elif extent.youngest is None or extent.youngest + age > context.now:
            message = "no version names it, and a build may still be writing it"
            until = None if extent.youngest is None else extent.youngest + age
            why = Reason.TOO_YOUNG, message, until
        else:
            why = Reason.UNNEEDED, "no version of the table or of a branch names it", None
        yield context.carry_out(
            decide(None, GarbageKind.INDEX, str(index_id), extent, why),
            folder,
            partial(store.delete_folder, folder),
        )


def _named_indexes(store: ObjectStore, manifests: Iterable[ObjectInfo]) -> set[UUID]:
    """Read the ids of every index that some manifests name."""

    def read(info: ObjectInfo) -> set[UUID]:
        try:
            entries = read_index_section(store.get(info.key), name=info.key)
            return {entry.uuid for entry in entries} | _region_snapshot_ids(entries)
        except ObjectNotFoundError:
            # Cleaned up since: files that only it named are garbage from then on.
            return set()

    return set().union(*map_parallel(read, manifests))


def _region_snapshot_ids(entries: Iterable[IndexEntry]) -> set[UUID]:
    """Return the ids of the index folders that hold region snapshots of their own."""
    ids = set()
    for entry in entries:
        if entry.name == MEM_WAL_INDEX_NAME:
            key = external_key(IndexDetails.decode(entry.details))
            index_id = parse_region_name(key.split("/")[1]) if key is not None else None
            ids |= {index_id} if index_id is not None else set()
    return ids


def collect_staged_files(context: GcContext) -> Iterator[Decision]:
    """Delete the files of writes, commits and divided merges that died, when they are old enough.

    The fragments and deletion files of such a merge are in the folders of the table, and no version
    names them: Lance's clean-up of old versions deletes them by age. Temporary files of a local
    table are decided about one by one, at any depth, and deleted together.
    """
    store, age = context.location.store, context.options.orphan_grace
    staged = StoredVersions.list(context.location).staged
    folders = {folder: store.list(folder) for folder in (MERGES_DIR, STAGED_ROWS_DIR)}
    for folder, objects in ((VERSIONS_DIR, staged), *folders.items()):
        for info in objects:
            decision = _decide_by_age(info, context)
            yield context.carry_out(decision, folder, partial(store.delete, info.key))
    for info in store.list_temporaries(""):
        folder = info.key.rpartition("/")[0]
        yield context.carry_out(_decide_by_age(info, context), folder, lambda: None)
    if not context.options.dry_run:
        store.delete_stale_temporaries("", older_than=datetime.now(UTC) - (context.now - age))


def _decide_by_age(info: ObjectInfo, context: GcContext) -> Decision:
    """Decide about an object that a write may still need while it is young."""
    end = info.modified + context.options.orphan_grace
    why: DecisionReason = Reason.TOO_YOUNG, "a write may still be under way", end
    if end <= context.now:
        why = Reason.UNNEEDED, "left by a write that died", None
    return decide(None, GarbageKind.STAGING, info.key, Extent(1, info.size), why)


def collect_base_versions(context: GcContext) -> Iterator[Decision]:
    """Have Lance clean up old versions of the base table, if the options give them an age.

    In a dry run, Lance is asked for the files that it would delete. Yields nothing without any.
    """
    location, age = context.location, context.pins.version_age
    decide_all = partial(decide, None, GarbageKind.BASE_VERSIONS, "old versions")
    if age is None:
        return
    if context.pins.damaged:
        refs = ", ".join(map(str, context.pins.damaged))
        message = f"Lance cannot tell what to keep while it cannot read {refs}"
        yield decide_all(Extent(), (Reason.TAG, message, None))
        return
    link = _find_link(location.store)
    if link is not None:
        yield decide_all(Extent(), (Reason.LINK, str(link), None))
        return
    dataset = open_base(location).dataset
    if not context.options.dry_run:
        # Lance keeps the version that is open; another process may have committed it just now,
        # and Lance does not sync its commits.
        location.store.barrier()
    bounds: dict[str, object] = {"older_than": age, "error_if_tagged_old_versions": False}
    with lance_errors(f"cleaning up old versions of {location}"):
        stats = (
            dataset.explain_cleanup_old_versions(**bounds).stats
            if context.options.dry_run
            else dataset.cleanup_old_versions(**bounds)
        )
    extent = Extent(int(stats.old_versions), int(stats.bytes_removed))
    if extent != Extent():
        message = "older than the retention, not tagged, and no branch starts from them"
        yield decide_all(extent, (Reason.UNNEEDED, message, None))


def _find_link(store: ObjectStore) -> LinkRefusedError | None:
    """Return the error for a link to a folder that Lance, which follows links, would clean up.

    Lance opens files by their paths: a link that is made while it cleans up is followed.
    """
    for link in store.list_links(""):
        if link.is_folder and link.key.partition("/")[0] != MEM_WAL_DIR:
            try:
                store.check_no_link(link.key)
            except LinkRefusedError as error:
                return error
    return None
