"""Collectors of the base table: read tags, stale index files, staged files, and old versions.

Index files that no stored version of the table, or of a branch of it, names are left by index
builds that died, and by clean-ups of versions that did not reach them. A build that is still
running writes its files long before the version that names them, and cannot be observed: only the
age of the files tells. The minimum age is by default the one of Lance's own clean-up, so this
collector is never more eager than that; a clean-up that runs at the same time deletes the same
files. The manifests of all versions have to be read, since any of them may name what the newest
does not. They are read only if there is a candidate, and only if there are not too many.

Staged files are left by writes and commits that died half-way: never named, never read, only taking
space. Staged manifests that never became a version are objects like any other, in every store; a
commit that was paused for longer than their minimum age finds its own staged manifest gone, and
fails as a whole. So does a divided merge, whose tasks store keys. On a local disk there are the
temporary files of memwal and Lance too.

Old versions are cleaned up by Lance, which keeps the newest version, tagged ones, and those that
branches start from, and deletes the data, index and transaction files that only the others name.
None of that is implemented a second time here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar
from uuid import UUID

from memwal.base_table.refs import TAGS_DIR, ReadTag
from memwal.base_table.region_snapshot import external_key
from memwal.base_table.snapshot import lance_errors, open_base
from memwal.errors import LinkRefusedError, ObjectNotFoundError
from memwal.format.lance_manifest import IndexEntry, read_index_section
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import (
    DATA_DIR,
    INDICES_DIR,
    MEM_WAL_DIR,
    MEM_WAL_INDEX_NAME,
    VERSIONS_DIR,
    parse_region_name,
)
from memwal.jobs.gc.collector import GcContext, carry_out, refuse_link
from memwal.jobs.gc.decision import Decision, GarbageKind, Reason, moment
from memwal.jobs.gc.generations import measure
from memwal.jobs.gc.history import StoredVersions
from memwal.jobs.gc.pins import list_read_tags, protection_end
from memwal.jobs.merge.run_files import MERGES_DIR
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectInfo, ObjectStore
from memwal.util.concurrency import map_parallel

TREE_DIR = "tree"
MAX_VERSIONS = 2000
"""More stored versions than this are not read for the sake of stale index files."""


@dataclass(frozen=True, slots=True)
class ReadTagCollector:
    """Collects read tags whose protection has ended; no other tag is ever deleted.

    An expired tag is checked again before it is deleted, since its reader may have renewed it.
    """

    kind: ClassVar[GarbageKind] = GarbageKind.READ
    location: TableLocation

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about each read tag that was listed when the pins were read."""
        grace = context.options.grace
        for tag, size, end in list_read_tags(context.pins.refs, grace):
            decision = self._decide(tag, size, end, context)
            if decision.delete and not context.options.dry_run:
                info = self.location.store.head(tag.key)
                if info is None:
                    continue
                end = protection_end(tag, info.modified, grace)
                decision = self._decide(tag, info.size, end, context)
            yield carry_out(
                decision,
                self.location.store,
                TAGS_DIR,
                partial(self.location.store.delete, tag.key),
                dry_run=context.options.dry_run,
            )

    def _decide(self, tag: ReadTag, size: int, end: datetime, context: GcContext) -> Decision:
        expired = end <= context.now
        return Decision(
            kind=self.kind,
            what=tag.name,
            objects=1,
            bytes=size,
            reason=Reason.UNNEEDED if expired else Reason.READ,
            message=(
                f"the read of version {tag.version} ended, or its process did"
                if expired
                else f"a read protects version {tag.version} while it renews this tag"
            ),
            until=None if expired else moment(end),
        )


@dataclass(frozen=True, slots=True)
class IndexFileCollector:
    """Deletes the folders of indexes that no stored version names."""

    kind: ClassVar[GarbageKind] = GarbageKind.INDEX
    location: TableLocation
    # If more versions are stored, they are not read and nothing is deleted.
    max_versions: int = MAX_VERSIONS

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about each folder that no version names, and delete those that are old enough."""
        store = self.location.store
        # First the folders are listed, then the versions that name them are read: a build that
        # commits in between is seen.
        stored = [
            index_id
            for name in store.list_folders(INDICES_DIR)
            if (index_id := parse_region_name(name)) is not None
        ]
        if not stored:
            return
        versions = StoredVersions.list(self.location)
        by_age = sorted(versions.manifests.values(), key=lambda info: info.modified, reverse=True)
        named = _named_indexes(store, by_age[:1])
        candidates = [index_id for index_id in stored if index_id not in named]
        manifests = [
            *versions.manifests.values(),
            *versions.others,
            *_branch_manifests(self.location),
        ]
        too_many = len(manifests) > self.max_versions
        if candidates and not too_many:
            named |= _named_indexes(store, manifests)
        for index_id in candidates:
            if index_id not in named:
                folder = f"{INDICES_DIR}/{index_id}"
                yield carry_out(
                    self._decide(index_id, context, versions=len(manifests) if too_many else None),
                    store,
                    folder,
                    partial(store.delete_folder, folder),
                    dry_run=context.options.dry_run,
                )

    def _decide(self, index_id: UUID, context: GcContext, *, versions: int | None) -> Decision:
        """Decide about a folder. ``versions`` is the number of versions if too many to be read."""
        extent = measure(self.location.store, f"{INDICES_DIR}/{index_id}")
        age = context.options.index_grace
        until = None
        if versions is not None:
            reason = Reason.TOO_MANY_VERSIONS
            message = (
                f"{versions} versions are stored, any of which may name it; clean old ones up first"
            )
        elif extent.youngest is None or extent.youngest + age > context.now:
            reason = Reason.TOO_YOUNG
            message = "no version names it, and a build may still be writing it"
            if extent.youngest is not None:
                until = moment(extent.youngest + age)
        else:
            reason, message = Reason.UNNEEDED, "no version of the table or of a branch names it"
        return Decision(
            kind=self.kind,
            what=str(index_id),
            objects=extent.objects,
            bytes=extent.bytes,
            reason=reason,
            message=message,
            until=until,
        )


def _branch_manifests(location: TableLocation) -> Iterator[ObjectInfo]:
    """Yield the manifests of every branch; it shares index files with the version it started from.

    Names of branches may contain slashes, so folders are searched at any depth.
    """
    pending = [TREE_DIR]
    while pending:
        folder = pending.pop()
        for name in location.store.list_folders(folder):
            inner = f"{folder}/{name}"
            if name == VERSIONS_DIR:
                versions = StoredVersions.list(location, inner)
                yield from (*versions.manifests.values(), *versions.others)
            elif not name.startswith("_") and name != DATA_DIR:
                pending.append(inner)


def _named_indexes(store: ObjectStore, manifests: Iterable[ObjectInfo]) -> set[UUID]:
    """Read the ids of every index that some manifests name."""

    def read(info: ObjectInfo) -> set[UUID]:
        try:
            entries = read_index_section(store.get(info.key), name=info.key)
            return {entry.uuid for entry in entries} | _region_snapshot_ids(entries)
        except ObjectNotFoundError:
            # Cleaned up meanwhile: what only it named is garbage from then on.
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


@dataclass(frozen=True, slots=True)
class StagedManifestCollector:
    """Deletes the staged manifests of the table that are old enough."""

    kind: ClassVar[GarbageKind] = GarbageKind.STAGING
    location: TableLocation

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about each staged manifest."""
        age = context.options.orphan_grace
        for info in StoredVersions.list(self.location).staged:
            end = info.modified + age
            yield carry_out(
                _decide_by_age(self.kind, info.key, info.size, end, context.now),
                self.location.store,
                VERSIONS_DIR,
                partial(self.location.store.delete, info.key),
                dry_run=context.options.dry_run,
            )


@dataclass(frozen=True, slots=True)
class MergeRunCollector:
    """Deletes the files of divided merges that died, when they are old enough.

    The fragments and deletion files of such a merge are in the folders of the table, and no version
    names them: Lance's clean-up of old versions deletes them by age.
    """

    kind: ClassVar[GarbageKind] = GarbageKind.STAGING
    location: TableLocation

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about each file of a run."""
        store, age = self.location.store, context.options.orphan_grace
        for info in store.list(MERGES_DIR):
            end = info.modified + age
            yield carry_out(
                _decide_by_age(self.kind, info.key, info.size, end, context.now),
                store,
                MERGES_DIR,
                partial(store.delete, info.key),
                dry_run=context.options.dry_run,
            )


@dataclass(frozen=True, slots=True)
class TemporaryFileCollector:
    """Deletes old temporary files of a local table, at any depth; object stores have none."""

    kind: ClassVar[GarbageKind] = GarbageKind.STAGING
    location: TableLocation

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about each temporary file, then delete those that are old enough together."""
        store = self.location.store
        for info in store.list_temporaries(""):
            end = info.modified + context.options.orphan_grace
            decision = _decide_by_age(self.kind, info.key, info.size, end, context.now)
            yield refuse_link(decision, store, info.key.rpartition("/")[0])
        if not context.options.dry_run:
            age = datetime.now(UTC) - (context.now - context.options.orphan_grace)
            store.delete_stale_temporaries("", older_than=age)


def _decide_by_age(
    kind: GarbageKind, what: str, size: int, end: datetime, now: datetime
) -> Decision:
    """Decide about an object that a write may still need until ``end``."""
    old = end <= now
    return Decision(
        kind=kind,
        what=what,
        objects=1,
        bytes=size,
        reason=Reason.UNNEEDED if old else Reason.TOO_YOUNG,
        message="left by a write that died" if old else "a write may still be under way",
        until=None if old else moment(end),
    )


@dataclass(frozen=True, slots=True)
class BaseVersionCollector:
    """Has Lance clean up old versions of the base table, if the options give them an age."""

    kind: ClassVar[GarbageKind] = GarbageKind.BASE_VERSIONS
    location: TableLocation

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Clean up, or ask Lance for the files that it would delete; yields nothing without any."""
        age = context.options.version_retention
        if age is None:
            return
        if context.pins.damaged:
            refs = ", ".join(map(str, context.pins.damaged))
            message = f"Lance cannot tell what to keep while it cannot read {refs}"
            yield self._decision(Reason.TAG, message)
            return
        link = self._find_link()
        if link is not None:
            yield self._decision(Reason.LINK, str(link))
            return
        dataset = open_base(self.location).dataset
        if not context.options.dry_run:
            # Lance keeps the version that is open; another process may have committed it just now,
            # and Lance does not sync its commits.
            self.location.store.barrier()
        bounds: dict[str, object] = {"older_than": age, "error_if_tagged_old_versions": False}
        with lance_errors(f"cleaning up old versions of {self.location}"):
            stats = (
                dataset.explain_cleanup_old_versions(**bounds).stats
                if context.options.dry_run
                else dataset.cleanup_old_versions(**bounds)
            )
        versions, freed = int(stats.old_versions), int(stats.bytes_removed)
        if versions or freed:
            message = "older than the retention, not tagged, and no branch starts from them"
            yield self._decision(Reason.UNNEEDED, message, objects=versions, bytes=freed)

    def _find_link(self) -> LinkRefusedError | None:
        """Return the error for a link to a folder that Lance, which follows links, would clean up.

        Lance opens files by their paths: a link that is made while it cleans up is followed.
        """
        store = self.location.store
        for link in store.list_links(""):
            if link.is_folder and link.key.partition("/")[0] != MEM_WAL_DIR:
                try:
                    store.check_no_link(link.key)
                except LinkRefusedError as error:
                    return error
        return None

    def _decision(
        self, reason: Reason, message: str, *, objects: int = 0, bytes: int = 0
    ) -> Decision:
        return Decision(
            kind=self.kind,
            what="old versions",
            objects=objects,
            bytes=bytes,
            reason=reason,
            message=message,
        )
