"""Rebuild a flushed generation from the log, which is kept for as long as the generation is named.

Its rows are those of the log entries over which its flush advanced ``replay_after``: between the
value in the manifest version that named it first, and the value in the version before. The
collector keeps both versions as long as it keeps the entries. Of these entries, entries of earlier
generations are skipped, as in a replay. Entries of later generations are not: a replay may have
flushed them with it; and if a writer flushed them as their own generation, that one is newer and
wins.

Several processes may do this at once, and die at any step. Each writes a folder of its own, and the
manifest switches from the old folder to one of them, once; the others are left to the collector. A
process that sleeps for so long that its folder is collected notices it before it changes anything,
or names a folder that is gone, as it was before: then the rebuild has to be repeated, which is
possible since the entries stay.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache
from uuid import UUID

from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, ObjectNotFoundError, StoreUnavailableError
from memwal.format.paths import BLOOM_FILTER_NAME, generation_dir
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.lsm.flush.generation import write_generation
from memwal.lsm.flush.key_index import NewestKeys
from memwal.lsm.indexes.maintained import maintained_indexes
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.log import survey_log
from memwal.lsm.wal.replay import LoggedRows, LogReader
from memwal.region.manifest_store import (
    RegionManifestStore,
    contiguous_versions,
    last_version_before_flush,
)


def rebuild_generation(base: BaseTable, region_id: UUID, lost: FlushedGeneration) -> bool:
    """Rebuild a lost or damaged generation in a new folder, and switch the manifest to it.

    Writers, mergers and collectors may be at work during the rebuild. The old folder is left to the
    garbage collector. Memory is bounded as for a flush. Returns False if the manifest does not name
    the generation any more, or another process rebuilt it.

    Raises CorruptDataError if the log does not have all of its rows, or not as many as the manifest
    records: nothing was changed. Raises StoreUnavailableError if the new folder was collected
    during the rebuild; call this again.
    """
    store = base.location.store
    manifests = RegionManifestStore(store, region_id)
    latest = manifests.read_latest()
    if latest is None or not _lists(latest, lost):
        return False
    contents = _read_logged_rows(base, manifests, latest, lost)
    made = write_generation(base, region_id, lost.generation, contents, maintained_indexes(base))
    bloom = f"{generation_dir(region_id, made.path)}/{BLOOM_FILTER_NAME}"

    def change(latest: RegionManifest) -> RegionManifest | None:
        if not _lists(latest, lost):
            return None
        if not store.exists(bloom):
            raise StoreUnavailableError(
                f"generation {lost.generation} of region {region_id} was collected before the "
                "manifest could name it; rebuild it again"
            )
        named = (made if _is_same(flushed, lost) else flushed for flushed in latest.flushed)
        return replace(latest, flushed=tuple(named))

    return _lists(manifests.update(change), made)


def _read_logged_rows(
    base: BaseTable,
    manifests: RegionManifestStore,
    latest: RegionManifest,
    lost: FlushedGeneration,
) -> LoggedRows:
    store, region_id = base.location.store, manifests.region_id
    after, last = _log_range(manifests, latest, lost)
    survey = survey_log(store, region_id, after=after, hint=last)
    if survey.missing is not None and survey.missing <= last:
        raise _cannot_rebuild(lost, region_id, f"entry {survey.missing} of the log is missing")
    log = LogReader(
        store,
        region_id,
        RowSchema.of(base),
        latest.writer_epoch,
        lost.generation,
        survey,
        # A flush over entries with unusable rows was made by the repair that quarantined them.
        skip_unusable=True,
    )
    torn = _first_torn(log, after, last)
    if torn is not None:
        raise _cannot_rebuild(lost, region_id, f"entry {torn} of the log cannot be read")
    contents = LoggedRows(log, after, last)
    keys = contents.keys()
    # Lance also counts rows that later ones of the same flush supersede.
    counts = {len(keys), len(NewestKeys.of(keys).positions)}
    if not len(keys) or (lost.rows is not None and lost.rows not in counts):
        text = f"entries {after + 1} to {last} of the log have {len(keys)} rows"
        raise _cannot_rebuild(lost, region_id, f"{text}, but the manifest records {lost.rows}")
    return contents


def _first_torn(log: LogReader, after: int, last: int) -> int | None:
    """Return the first entry that cannot be read, or None.

    A replay takes a torn entry for absent if no rows follow; here it is an error.
    """
    expected = after + 1
    with suppress(CorruptDataError):
        for position, _ in log.entries(after=after, last=last):
            if position != expected:
                break
            expected += 1
    return expected if expected <= last else None


def _log_range(
    manifests: RegionManifestStore, latest: RegionManifest, lost: FlushedGeneration
) -> tuple[int, int]:
    """Return the values of ``replay_after`` before and after the flush of a generation."""
    read = cache(manifests.read)
    versions = contiguous_versions(manifests.list_versions(), latest.version)
    try:
        before = last_version_before_flush(read, versions, lost.generation)
        if before is not None and before.version < latest.version:
            flush = read(before.version + 1)
            if _flushed_numbers(flush) - _flushed_numbers(before) == {lost.generation}:
                return before.replay_after, flush.replay_after
    except ObjectNotFoundError:
        # A version was trimmed, just now or before.
        pass
    text = "the versions of the manifest that record its part of the log are gone"
    raise _cannot_rebuild(lost, manifests.region_id, text)


def _flushed_numbers(manifest: RegionManifest) -> set[int]:
    return {flushed.generation for flushed in manifest.flushed}


def _lists(manifest: RegionManifest, flushed: FlushedGeneration) -> bool:
    return any(_is_same(other, flushed) for other in manifest.flushed)


def _is_same(left: FlushedGeneration, right: FlushedGeneration) -> bool:
    return (left.generation, left.path) == (right.generation, right.path)


def _cannot_rebuild(lost: FlushedGeneration, region_id: UUID, why: str) -> CorruptDataError:
    return CorruptDataError(
        f"generation {lost.generation} of region {region_id} cannot be rebuilt from the log: "
        f"{why}. Nothing was changed: keep every object, and restore the generation from a backup"
    )
