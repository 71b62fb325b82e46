"""Read the status of a table: backlog, log tips and index lag, in one cheap pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from memwal.base_table.commit import newest_spec
from memwal.base_table.commit_records import was_taken_away
from memwal.base_table.fragments import fragment_sizes, small_runs
from memwal.base_table.named_files import find_cut_indexes, unnamed_bytes
from memwal.base_table.refs import find_lost_refs, list_refs
from memwal.base_table.region_marks import lost_progress
from memwal.base_table.region_snapshot import read_usable_snapshot, snapshot_age
from memwal.base_table.required_regions import read_regions
from memwal.base_table.snapshot import BaseTable
from memwal.errors import ObjectNotFoundError
from memwal.feed.consumer_state import ConsumerState, Phase, held_bytes, read_states
from memwal.feed.token import FeedToken
from memwal.format.paths import (
    BLOOM_FILTER_NAME,
    VERSIONS_DIR,
    generation_dir,
    parse_table_version,
)
from memwal.format.region_manifest import RegionManifest, RegionStatus
from memwal.jobs.foreign_claims import are_protected, find_foreign_claim, protected_from
from memwal.jobs.options import CompactOptions, GcOptions
from memwal.jobs.status import ConsumerStatus, IndexLag, RegionBacklog, TableStatus
from memwal.jobs.unflushed import (
    LOG_CHECK_SECONDS,
    find_missing_entry,
    find_unflushed,
    has_no_writer,
    seconds_unchanged,
)
from memwal.lsm.indexes.catchup import (
    caught_up,
    maintained_index_names,
    unmaintained_index_names,
)
from memwal.lsm.indexes.unusable import find_unusable
from memwal.lsm.wal.log import find_tip
from memwal.reader.sources.cache import LruCache, cache_budget, cached_bytes
from memwal.region.manifest_store import read_each
from memwal.storage.location import TableLocation

_MAX_CACHED_GENERATIONS = 100_000
_MAX_CACHED_TABLES = 10_000
# Two requests at most: a store lists 1,000 objects with one.
_MAX_LISTED = 1_999

_flush_times: LruCache[float] = LruCache(_MAX_CACHED_GENERATIONS)
# When the files of a table's indexes were found whole.
_checked_indexes: LruCache[float] = LruCache(_MAX_CACHED_TABLES)


def read_status(
    location: TableLocation,
    *,
    regions: Collection[UUID] | None = None,
    collection: GcOptions = GcOptions(),
    compaction: CompactOptions = CompactOptions(),
    old_bytes: bool | None = None,
    clock: Callable[[], float] = time.time,
) -> TableStatus:
    """Read the backlog of a table, or of some of its regions.

    One listing has the marks of all regions, which show whether one is lost.
    A region costs three requests for its manifest, or two if this process read it in the last two
    minutes and it has not changed since; one for the tip of the log, if the hint in the manifest is
    exact; and one for the age of its oldest generation, the first time that this process reads it.
    A region with generations that could be collected costs two more, which tell whose its newest
    claim is; one with unflushed rows costs one for the age of its manifest. For entries that no
    flush covers, see :func:`~memwal.jobs.unflushed.find_unflushed`;
    every ten minutes, a process also lists the log, see
    :func:`~memwal.jobs.unflushed.find_missing_entry`, and the files of the indexes.
    Consumers cost a listing, and two requests each.
    With ``regions``, only these are read. A region that was never claimed is counted only.
    ``collection`` has the limits of the garbage collection, ``compaction`` those from which a
    fragment is not small. With ``old_bytes``, all files of the table's versions are listed, a
    request for every 1,000 of them; by default only those on a local disk. ``clock`` returns
    seconds since the epoch.
    """
    # The base table after the manifests: a generation that was merged in between is then not in
    # the backlog.
    found = read_regions(location, regions, without_log=True)
    base, manifests = found.base, found.manifests
    # No job could change the status.
    base.check_changeable()
    snapshot = read_usable_snapshot(location.store, base.details) or {}
    published = {(region_id, manifest.version) for region_id, manifest in snapshot.items()}
    latest = {(region_id, manifest.version) for region_id, manifest in manifests.items()}
    lost = lost_progress(found.marks, base.details.merged)
    now = clock()
    backlogs = read_each(
        location.store,
        lambda manifest: _backlog(
            location, base, manifest, collection, now, lost.get(manifest.region_id)
        ),
        manifests.values(),
    )
    maintained = maintained_index_names(base)
    names = (*maintained, *unmaintained_index_names(base))
    # As recorded: no index is opened, except those that may be stale.
    described = base.dataset.describe_indices() if names else ()
    stale = find_unusable(base).stale if names else ()
    damaged = _damaged_indexes(base) if names else frozenset()
    indexed = {index.name: index.num_rows_indexed for index in described}
    sizes = fragment_sizes(base)
    add_up = location.store.is_local if old_bytes is None else old_bytes
    versions = _stored_versions(location, everything=add_up or location.store.is_local)
    return TableStatus(
        uri=location.uri,
        version=base.version,
        mem_wal=base.index is not None,
        stable_row_ids=base.dataset.has_stable_row_ids,
        regions=tuple(backlogs),
        unwritten_regions=_count_unwritten(base, manifests.values()) if regions is None else 0,
        indexes=tuple(
            replace(_lag(base, name, indexed, stale, maintained), damaged=name in damaged)
            for name in names
        ),
        consumers=_consumers(base, manifests.values(), now) if regions is None else (),
        snapshot_age_seconds=snapshot_age(base.details, now),
        # Regions whose manifest is not the one of the snapshot, deleted regions included.
        changed_regions=None if regions is not None else len({r for r, _ in published ^ latest}),
        fragments=len(sizes.ids),
        small_fragments=len(small_runs(base, sizes, compaction.fragment_limits()).ids),
        min_fragments=compaction.min_fragments,
        deleted_rows=int(sizes.deleted.sum()),
        base_rows=int(sizes.live_rows.sum()),
        base_bytes=None if sizes.unrecorded.any() else int(sizes.stored.sum()),
        versions=None if versions is None else len(versions),
        oldest_version_seconds=max(now - min(versions.values()), 0.0) if versions else None,
        expired_versions=_count_expired(versions, collection, now),
        old_bytes=unnamed_bytes(base) if add_up else None,
        lost_refs=_lost_refs(base, versions),
        enabled_anew=(
            not lost and any(m.flushed for m in manifests.values()) and was_taken_away(base)
        ),
        read_cache_bytes=cached_bytes(),
        read_cache_budget=cache_budget(),
    )


def _consumers(
    base: BaseTable, manifests: Collection[RegionManifest], now: float
) -> tuple[ConsumerStatus, ...]:
    def read(state: ConsumerState) -> ConsumerStatus:
        version = None if state.token is None else FeedToken.parse(state.token).version
        is_held = state.phase is Phase.ACTIVE
        return ConsumerStatus(
            name=state.name,
            epoch=state.epoch,
            owner=state.owner,
            version=version,
            idle_seconds=max(now - state.at.timestamp(), 0.0),
            held_bytes=held_bytes(base, version, manifests) if version and is_held else 0,
            expired=state.reason if state.phase is Phase.EXPIRED else None,
        )

    store = base.location.store
    return tuple(read_each(store, read, read_states(store)))


def _count_unwritten(base: BaseTable, manifests: Collection[RegionManifest]) -> int:
    """Return how many regions of the newest spec no writer has claimed yet."""
    spec = newest_spec(base)
    claimed = sum(spec is not None and m.spec_id == spec.spec_id for m in manifests)
    return max(base.details.num_regions - claimed, 0)


def _stored_versions(location: TableLocation, *, everything: bool) -> dict[int, float] | None:
    """Return when each stored version was written; None if there are too many to list."""
    found = {}
    for number, info in enumerate(location.store.list(VERSIONS_DIR)):
        if number == _MAX_LISTED and not everything:
            return None
        version = parse_table_version(info.key.rpartition("/")[2])
        if version is not None:
            found[version] = info.modified.timestamp()
    return found


def _count_expired(
    versions: Mapping[int, float] | None, collection: GcOptions, now: float
) -> int | None:
    """Return how many versions are older than the version retention; None without one."""
    retention = collection.version_retention
    if versions is None or retention is None:
        return None
    end, newest = now - retention.total_seconds(), max(versions, default=0)
    return sum(written <= end for number, written in versions.items() if number != newest)


def _lost_refs(base: BaseTable, versions: Mapping[int, float] | None) -> tuple[str, ...]:
    location = base.location
    if versions is None or not location.store.is_local:
        return ()
    return tuple(find_lost_refs(base.version, set(versions), list_refs(location)).values())


def _backlog(
    location: TableLocation,
    base: BaseTable,
    manifest: RegionManifest,
    collection: GcOptions,
    now: float,
    lost: int | None,
) -> RegionBacklog:
    merged = base.details.merged.get(manifest.region_id, 0)
    pending = sorted(
        (f for f in manifest.flushed if f.generation > (lost or merged)), key=lambda f: f.generation
    )
    covered = min(
        [merged]
        + [
            caught_up(base, name).get(manifest.region_id, 0)
            for name in maintained_index_names(base)
        ]
    )
    collectable = [f for f in manifest.flushed if f.generation <= covered]
    start = manifest.last_logged + 1
    tip = find_tip(location.store, manifest.region_id, start=start)
    unflushed = find_unflushed(location.store, manifest, tip=tip)
    unchanged = None
    if unflushed is not None:
        unchanged = seconds_unchanged(location.store, manifest, unflushed, now=now)
    oldest = None
    if collectable and are_protected(collection):
        claim = find_foreign_claim(location.store, manifest, tip=tip)
        at = datetime.fromtimestamp(now, UTC)
        oldest = None if claim is None else protected_from(claim, manifest, collection, now=at)
    reclaimable = [f for f in collectable if oldest is None or f.generation < oldest]
    held = [f for f in collectable if oldest is not None and f.generation >= oldest]
    return RegionBacklog(
        region_id=str(manifest.region_id),
        writer_epoch=manifest.writer_epoch,
        sealed=manifest.status != RegionStatus.ACTIVE,
        current_generation=manifest.current_generation,
        merged_generation=merged,
        backlog_generations=len(pending),
        backlog_rows=sum(f.rows or 0 for f in pending),
        backlog_bytes=sum(f.memory_bytes or 0 for f in pending),
        oldest_backlog_seconds=(
            generation_age(location, manifest.region_id, pending[0].path, now) if pending else None
        ),
        unflushed_wal_entries=0 if unflushed is None else tip - 1 - manifest.replay_after,
        retained_generations=len(manifest.flushed) - len(pending),
        oldest_unflushed_seconds=None
        if unflushed is None
        else max(now - unflushed.timestamp(), 0.0),
        unchanged_seconds=None if unchanged is None else max(unchanged, 0.0),
        needs_recovery=unchanged is not None and has_no_writer(base, manifest, unchanged),
        reclaimable_generations=len(reclaimable),
        reclaimable_bytes=sum(f.memory_bytes or 0 for f in reclaimable),
        held_generations=len(held),
        held_bytes=sum(f.memory_bytes or 0 for f in held),
        missing_wal_entry=find_missing_entry(location.store, manifest),
        merged_before=lost,
    )


def generation_age(location: TableLocation, region_id: UUID, path: str, now: float) -> float | None:
    """Return the seconds since a generation was flushed, with one request at most.

    None if it was merged and collected since the manifest was read.
    """
    try:
        flushed_at = _flush_times.get(
            (location.uri, region_id, path), lambda: _flushed_at(location, region_id, path)
        )
    except ObjectNotFoundError:
        return None
    return max(0.0, now - flushed_at)


def _flushed_at(location: TableLocation, region_id: UUID, path: str) -> float:
    """Return when the last object of a flush was stored: the bloom filter, else the newest."""
    folder = generation_dir(region_id, path)
    info = location.store.head(f"{folder}/{BLOOM_FILTER_NAME}")
    times = (
        [info.modified] if info is not None else [i.modified for i in location.store.list(folder)]
    )
    if not times:
        raise ObjectNotFoundError(f"{folder} is gone")
    return max(times).timestamp()


def _damaged_indexes(base: BaseTable) -> frozenset[str]:
    """Return the indexes whose files are not whole.

    On a store that is not local, a process looks every ten minutes while all of them are: the files
    that a commit names were whole then.
    """
    if base.location.store.is_local:
        return find_cut_indexes(base)
    now = time.monotonic()
    checked_at = _checked_indexes.use(base.location.uri)
    if checked_at is not None and now - checked_at < LOG_CHECK_SECONDS:
        return frozenset()
    damaged = find_cut_indexes(base)
    if not damaged:
        _checked_indexes.put(base.location.uri, now)
    return damaged


def _lag(
    base: BaseTable,
    name: str,
    indexed: Mapping[str, int],
    stale: Collection[str],
    maintained: Collection[str],
) -> IndexLag:
    covered = caught_up(base, name)
    behind = [
        generation - covered.get(region_id, 0)
        for region_id, generation in base.details.merged.items()
        if generation > covered.get(region_id, 0) and name in maintained
    ]
    rows = base.dataset.count_rows() - indexed[name] if name in indexed else None
    return IndexLag(
        name=name,
        generations=sum(behind),
        regions=len(behind),
        rows=None if rows is None else max(rows, 0),
        maintained=name in maintained,
        stale=name in stale,
    )
