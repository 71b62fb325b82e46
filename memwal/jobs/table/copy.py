"""Copy a table while it is in use: for a backup, or to move it to another store.

A copy contains one version of the base table and, of every region, the state that is not merged in
that version: the manifest, the flushed generations and the log after them. It has every write that
was acknowledged before the copy began, and of each region the writes that were acknowledged during
the copy, up to some moment. It has the newest step of each source that the region applied, with a
book for those before its log. Older versions, tags, branches and merged generations are left out:
the next index build extends an index that had not caught up with those generations. Files of the
table that are outside of it, as those of a shallow clone, are in the copy. Blobs that rows name by
an address stay where they are.

Tasks copy the objects; each renews the tag while it runs.

The copy is consistent because of its order, which is that of a protected read (design note 0006):
the base table's version gets a tag, the copy checks that this version is still the newest, and only
then reads the regions' manifests. From then on the tag keeps everything that the manifests name and
that the version lacks. In the other order, a manifest could be older than the merge progress of the
base table, and the copy would take the generations that it flushes next for merged.

At the target, the manifest of the base table is written last and by put-if-absent, after every
object was checked: there, as long as the original, and with the end that a file of Lance must have.
A copy that died is therefore not a table; a second copy to the same address is refused until the
rest is deleted.

| step | dies after it | pauses before it, however long |
|---|---|---|
| place the tag | a tag that no process renews: it expires, and the collector deletes it | the version is gone: starts again |
| check that the version is the newest | as above | another version is: starts again |
| copy objects, look at them | objects at the target that no table names | the tag has expired: an error, not an incomplete copy |
| repeat a task, also after the copy is complete | as above | no object changes: see below |
| copy the manifest | the copy is complete | as above |

A worker that its cluster took for dead may still store objects when the copy is complete and has
clients of its own. Files have names that are never used again, and it stores the same bytes.
Objects that clients replace, a torn entry at the end of a log or a record of abandoned rows, are
stored by put-if-absent: they stay as the clients of the copy left them."""  # noqa: E501

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from uuid import UUID, uuid4

from memwal.base_table.blobs import is_blob_v2
from memwal.base_table.named_files import StoredObject, find_bad_files, refuse, stored_objects
from memwal.base_table.refs import ReadTag, delete_tag, place_tag, renew_tag
from memwal.base_table.region_marks import UNMARKED, RegionMark, read_marks, write_marks
from memwal.base_table.required_regions import check_regions
from memwal.base_table.snapshot import BaseTable, open_base, table_manifest_key
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    ObjectExistsError,
    ObjectNotFoundError,
    TableSetupError,
)
from memwal.format.lance_files import FileKind, NamedFile
from memwal.format.lance_manifest import without_base_paths
from memwal.format.paths import (
    BLOB_SUFFIX,
    CHANGE_TRACE_KEY,
    generation_dir,
    manifest_key,
    wal_key,
)
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_entry import TornEntryError
from memwal.format.wal_layout import AppliedSteps
from memwal.jobs.job import JobResult, task_limit
from memwal.jobs.options import CopyOptions
from memwal.jobs.progress import NO_METER, Meter, Unit, reporting
from memwal.lsm.wal.abandon import abandoned_dir
from memwal.lsm.wal.applied_steps import find_book_for_copy, write_book
from memwal.lsm.wal.log import lost_log_error, read_head, survey_log
from memwal.region.manifest_store import RegionManifestStore, read_manifests
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore, create_settled
from memwal.storage.open import check_put_if_absent

CHUNK_BYTES: Final = 8 << 20
"""Bytes of a large object that are in memory at once."""

_PARALLEL: Final = 8
_TAG_SECONDS: Final = 6 * 3600
_MAX_ATTEMPTS: Final = 5


# Bytes whose copy takes as long as the start of another task.
_TASK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Copy some objects of a table, and check the copies."""

    location: TableLocation
    target: TableLocation
    objects: Mapping[str, StoredObject]  # by their keys at the target
    replaceable: frozenset[str]  # keys whose objects clients of the copy may replace
    tag: ReadTag


@dataclass(frozen=True, slots=True)
class _Region:
    """Objects to copy of a region."""

    manifest: RegionManifest  # as stored at the target: without merged generations
    log: range  # positions of the log entries
    # Position and content of the book of applied steps; None if the region never had a step.
    book: tuple[int, AppliedSteps] | None


def copy_table(
    source: TableLocation, target: TableLocation, options: CopyOptions = CopyOptions()
) -> JobResult:
    """Copy a table with all acknowledged writes, while it is read, written and maintained.

    The two locations may be in different stores, and nothing may be stored at the target. The
    result is that of the target, with metrics ``regions``, ``generations``, ``log_entries``,
    ``objects`` and ``bytes``.

    Raises TableSetupError if the source is not a table with MemWAL, or objects are stored at the
    target; InvalidInputError if the target is inside the source; UnsupportedStoreError if it has no
    put-if-absent; NewerFormatError if it has a field that is not known, which may name files;
    StoreAccessError if the source is read-only, since a copy needs a tag there while it runs;
    CorruptDataError if an entry of a log is missing; and ConflictError if the tag expired between
    two objects: delete the objects at the target and copy again.
    """
    started = time.monotonic()
    latest = open_base(source)
    latest.check_supported()
    latest.check_changeable()
    if f"{target.uri}/".startswith(f"{source.uri}/"):
        raise InvalidInputError(f"{target} is inside the table to copy; choose another address")
    target.store.expect_new_table()
    # A process that wrote to a table that was here may leave a trace after it was deleted.
    if any(info.key != CHANGE_TRACE_KEY for info in target.store.list("")):
        raise TableSetupError(
            f"something is stored at {target}; copy to another address, or delete it if it is the "
            "rest of a copy that died"
        )
    check_put_if_absent(target.store)
    marks = read_marks(source.store)
    base, tag = _pin_latest(source)
    try:
        return _copy(base, marks, tag, target, started, options)
    finally:
        delete_tag(source, tag)


def _pin_latest(source: TableLocation) -> tuple[BaseTable, ReadTag]:
    """Tag the latest version, which keeps its files and the generations it has not merged."""
    for attempt in range(_MAX_ATTEMPTS):
        base = open_base(source)
        tag = ReadTag(_TAG_SECONDS, base.version, uuid4().hex[:12])
        try:
            place_tag(base, tag)
        except ObjectNotFoundError:
            continue
        # The last attempt accepts a version that is not the latest any more: a process that commits
        # that often is not paused, and sees the tag.
        if int(base.dataset.latest_version) == base.version or attempt == _MAX_ATTEMPTS - 1:
            return base, tag
        delete_tag(source, tag)
    raise ConflictError(
        f"versions of {source} are deleted faster than they can be tagged; copy again"
    )


def _copy(
    base: BaseTable,
    marks: Mapping[UUID, RegionMark],
    tag: ReadTag,
    target: TableLocation,
    started: float,
    options: CopyOptions,
) -> JobResult:
    source = base.location
    manifests = read_manifests(source.store)
    check_regions(base, marks, manifests)
    regions = [_plan_region(base, manifest) for manifest in manifests.values()]
    has_blobs = any(map(is_blob_v2, base.schema))
    region_keys = (
        key for region in regions for key in _region_keys(source.store, region, has_blobs=has_blobs)
    )
    objects = stored_objects(base)
    log_keys = frozenset(key for region in regions for key in _log_keys(source.store, region))
    objects |= {key: StoredObject(source, key) for key in (*region_keys, *log_keys)}
    listed = {info.key: info.size for info in source.store.list("")}
    expected = {key: stored.size or listed.get(key, 0) for key, stored in objects.items()}
    total = sum(expected.values())
    # The largest objects first, so that the tasks get about the same.
    keys = sorted(objects, key=lambda key: (-expected[key], key))
    count = min(task_limit(options), max(total // _TASK_BYTES, 1))
    tasks = [
        CopyTask(
            location=source,
            target=target,
            objects={key: objects[key] for key in part},
            replaceable=log_keys.intersection(part),
            tag=tag,
        )
        for part in (keys[number::count] for number in range(count))
    ]
    with reporting(options.progress) as report:
        meter = Meter(report, job="copy", step="copying", unit=Unit.BYTES, total=total)
        copied_bytes = sum(options.run(tasks, partial(run_copy_task, meter=meter)))
        meter.finish()
    for region in regions:
        encoded = region.manifest.encode()
        region_id, version = region.manifest.region_id, region.manifest.version
        if region.book is not None:
            write_book(target.store, region_id, *region.book)
        target.store.create(manifest_key(region_id, version), encoded)
        RegionManifestStore(target.store, region_id).refresh_hint(version)
    books = sum(region.book is not None for region in regions)
    copied = [region.manifest.region_id for region in regions]
    write_marks(target.store, {region_id: marks.get(region_id, UNMARKED) for region_id in copied})
    if not renew_tag(source, tag):
        raise _tag_expired(source)
    manifest = table_manifest_key(source, base.version)
    if options.guard is not None:
        options.guard()
    try:
        target.store.create(manifest, without_base_paths(source.store.get(manifest)))
    except ObjectExistsError as error:
        raise TableSetupError(f"another process created a table at {target} meanwhile") from error
    return JobResult(
        job="copy",
        table=target.uri,
        version=base.version,
        tasks=len(tasks),
        seconds=time.monotonic() - started,
        metrics={
            "regions": len(regions),
            "generations": sum(len(region.manifest.flushed) for region in regions),
            "log_entries": sum(len(region.log) for region in regions),
            "objects": len(objects) + 3 * len(regions) + books + 1,
            "bytes": copied_bytes,
        },
    )


def _plan_region(base: BaseTable, manifest: RegionManifest) -> _Region:
    """Plan the copy of a region: generations and entries that the base table's version lacks."""
    region_id, after = manifest.region_id, manifest.replay_after
    merged = base.details.merged.get(region_id, 0)
    survey = survey_log(base.location.store, region_id, after=after, hint=manifest.wal_last_seen)
    if survey.missing is not None:
        raise CorruptDataError(
            f"entry {survey.missing} of the log of region {region_id} of {base.location} is "
            "missing; run memwal verify before you copy it"
        )
    lost = lost_log_error(
        base.location.store, region_id, manifest.last_logged, newest=survey.newest
    )
    if lost is not None:
        raise lost
    first = after + 1
    if survey.tip == first:
        # Lance finds the end of a log by its newest entry, which is therefore always kept.
        first = survey.newest or first
    pending = tuple(flushed for flushed in manifest.flushed if flushed.generation > merged)
    log = range(first, survey.tip)
    book = find_book_for_copy(base.location.store, region_id, log)
    return _Region(replace(manifest, flushed=pending), log, book)


def _region_keys(store: ObjectStore, region: _Region, *, has_blobs: bool) -> Iterator[str]:
    """Yield the files of a region; ``has_blobs`` if its log may name blobs outside of it."""
    region_id = region.manifest.region_id
    for flushed in region.manifest.flushed:
        files = [info.key for info in store.list(generation_dir(region_id, flushed.path))]
        if not files:
            raise CorruptDataError(
                f"generation {flushed.generation} of region {region_id} is missing; run memwal "
                "verify before you copy the table"
            )
        yield from files
    folders: set[str | None] = set()
    for position in region.log if has_blobs else ():
        # The newest entry may be torn: then it has no rows.
        with suppress(TornEntryError):
            folders.add(read_head(store, region_id, position).blob_folder)
    folders -= {flushed.path for flushed in region.manifest.flushed}
    for folder in filter(None, folders):
        stored = store.list(generation_dir(region_id, folder))
        yield from (info.key for info in stored if info.key.endswith(BLOB_SUFFIX))


def _log_keys(store: ObjectStore, region: _Region) -> Iterator[str]:
    """Yield the log entries of a region, and its records of abandoned rows."""
    region_id = region.manifest.region_id
    for position in region.log:
        yield wal_key(region_id, position)
    for info in store.list(abandoned_dir(region_id)):
        yield info.key


def run_copy_task(task: CopyTask, *, meter: Meter = NO_METER) -> int:
    """Copy the objects of a task, check the copies, and return their bytes.

    Safe to repeat, also beside itself and after the copy is complete.
    """
    source, tag, target = task.location, task.tag, task.target.store
    sizes: dict[str, int] = {}
    with ThreadPoolExecutor(_PARALLEL) as pool:
        key_of = {
            pool.submit(
                _create_object if key in task.replaceable else _copy_object,
                *(stored, target, key, meter),
            ): key
            for key, stored in task.objects.items()
        }
        pending = set(key_of)
        try:
            while pending:
                done, pending = wait(pending, timeout=tag.seconds / 8, return_when=FIRST_EXCEPTION)
                sizes |= {key_of[future]: future.result() for future in done}
                if not renew_tag(source, tag):
                    raise _tag_expired(source)
        finally:
            for future in pending:
                future.cancel()
    _check_copies(task, sizes)
    return sum(sizes.values())


def _check_copies(task: CopyTask, sizes: Mapping[str, int]) -> None:
    """Raise CorruptDataError if a file of Lance is damaged, LostWriteError if its copy is."""
    files = [NamedFile(key, _kind_of(key), size=size) for key, size in sizes.items()]
    bad = find_bad_files(task.target.store, files)
    if not bad:
        return
    keys = {file.key for file in bad}
    damaged = [
        found
        for file in files
        if file.key in keys
        for found in find_bad_files(
            task.objects[file.key].store, [replace(file, key=task.objects[file.key].key)]
        )
    ]
    if damaged:
        raise CorruptDataError(
            f"{len(damaged)} files of {task.location} are damaged ({damaged[0]}), so that the copy "
            "is no table; run memwal verify before you copy it"
        )
    refuse(bad)


def _kind_of(key: str) -> FileKind:
    if key.endswith((".lance", ".idx")):
        return FileKind.LANCE
    if "_deletions/" in key:
        return FileKind.DELETED_ROWS if key.endswith(".arrow") else FileKind.DELETED_BITMAP
    return FileKind.PLAIN


def _copy_object(source: StoredObject, target: ObjectStore, key: str, meter: Meter) -> int:
    first = source.store.get_range(source.key, start=0, length=CHUNK_BYTES)
    if len(first) < CHUNK_BYTES:
        # Durable one by one: nothing names it before all are.
        target.put(key, first)
        meter.advance(len(first))
        return len(first)
    copied = len(first)

    def chunks() -> Iterator[bytes]:
        nonlocal copied
        chunk = first
        while chunk:
            yield chunk
            meter.advance(len(chunk))
            chunk = source.store.get_range(source.key, start=copied, length=CHUNK_BYTES)
            copied += len(chunk)

    target.put_chunks(key, chunks())
    return copied


def _create_object(source: StoredObject, target: ObjectStore, key: str, meter: Meter) -> int:
    data = source.store.get(source.key)
    if create_settled(target, key, data) is not None:
        raise TableSetupError(
            f"another process stores objects at {key} of the target; copy to another address"
        )
    meter.advance(len(data))
    return len(data)


def _tag_expired(source: TableLocation) -> ConflictError:
    return ConflictError(
        f"the tag that protected {source} while it was copied has expired or was deleted; delete "
        "what is at the target and copy again"
    )
