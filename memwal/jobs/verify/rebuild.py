"""Rebuild a flushed generation from the log, which is kept for as long as the generation is named.

Its rows are those of the entries that its flush moved ``replay_after`` over: between the value in
the manifest version that named it first, and the value in the version before. The collector keeps
both versions as long as it keeps the entries. Of these entries, those of earlier generations are
left out, as a replay does. Those of later generations are not: a replay may have flushed them with
it; and where a writer flushed them as their own generation, that one is newer and wins.

Several processes may do this at once, and die at any step. Each writes a folder of its own, and the
manifest goes from the old folder to one of them, once; the others are left to the collector. A
process that sleeps for so long that its folder is collected finds out before it changes anything,
or names a folder that is gone, as it was before: then the rebuild is to be done again, for the
entries stay.
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
from memwal.lsm.wal.log import survey_log
from memwal.region.manifest_store import (
    RegionManifestStore,
    contiguous_versions,
    last_version_before_flush,
)
from memwal.writer.region_writer.replay import LoggedRows, RowLog
from memwal.writer.region_writer.rows import stored_shape


def rebuild_generation(base: BaseTable, region_id: UUID, lost: FlushedGeneration) -> bool:
    """Write a generation that is lost or damaged again, and let the manifest name that one.

    Whoever claims, writes, flushes, merges or collects goes on meanwhile. The old folder is left
    to the garbage collector. Memory is bounded as for a flush.

    Parameters
    ----------
    lost : FlushedGeneration
        As the manifest names it.

    Returns
    -------
    bool
        False when the manifest does not name it any more, or another process was faster.

    Raises
    ------
    CorruptDataError
        The log does not have all of its rows, or they are not what the manifest says of it.
        Nothing was changed.
    StoreUnavailableError
        What was written was collected meanwhile; to be called again.
    """
    store = base.location.store
    manifests = RegionManifestStore(store, region_id)
    latest = manifests.read_latest()
    if latest is None or not _names(latest, lost):
        return False
    contents = _logged(base, manifests, latest, lost)
    made = write_generation(base, region_id, lost.generation, contents, maintained_indexes(base))
    bloom = f"{generation_dir(region_id, made.path)}/{BLOOM_FILTER_NAME}"

    def change(latest: RegionManifest) -> RegionManifest | None:
        if not _names(latest, lost):
            return None
        if not store.exists(bloom):
            raise StoreUnavailableError(
                f"generation {lost.generation} of region {region_id} was collected before the "
                "manifest could name it; rebuild it again"
            )
        named = (made if _is(flushed, lost) else flushed for flushed in latest.flushed)
        return replace(latest, flushed=tuple(named))

    return _names(manifests.update(change), made)


def _logged(
    base: BaseTable,
    manifests: RegionManifestStore,
    latest: RegionManifest,
    lost: FlushedGeneration,
) -> LoggedRows:
    """The rows of a generation in the log, all of them."""
    store, region_id = base.location.store, manifests.region_id
    after, last = _part(manifests, latest, lost)
    survey = survey_log(store, region_id, after=after, hint=last)
    if survey.missing is not None and survey.missing <= last:
        raise _lost(lost, region_id, f"entry {survey.missing} of the log is missing")
    log = RowLog(store, region_id, stored_shape(base), latest.writer_epoch, lost.generation, survey)
    torn = _first_torn(log, after, last)
    if torn is not None:
        raise _lost(lost, region_id, f"entry {torn} of the log cannot be read")
    contents = LoggedRows(log, after, last)
    keys = contents.keys()
    # Lance counts rows that later ones of the same flush supersede, too.
    counts = {len(keys), len(NewestKeys.of(keys).kept)}
    if not len(keys) or (lost.rows is not None and lost.rows not in counts):
        text = f"entries {after + 1} to {last} of the log have {len(keys)} rows"
        raise _lost(lost, region_id, f"{text}, and the manifest says {lost.rows}")
    return contents


def _first_torn(log: RowLog, after: int, last: int) -> int | None:
    """The first entry that cannot be read. A replay takes one for absent where no rows follow."""
    expected = after + 1
    with suppress(CorruptDataError):
        for position, _ in log.entries(after=after, last=last):
            if position != expected:
                break
            expected += 1
    return expected if expected <= last else None


def _part(
    manifests: RegionManifestStore, latest: RegionManifest, lost: FlushedGeneration
) -> tuple[int, int]:
    """The positions that a flush moved ``replay_after`` over: the one before, and the last."""
    read = cache(manifests.read)
    versions = contiguous_versions(manifests.list_versions(), latest.version)
    try:
        before = last_version_before_flush(read, versions, lost.generation)
        if before is not None and before.version < latest.version:
            flush = read(before.version + 1)
            if _numbers(flush) - _numbers(before) == {lost.generation}:
                return before.replay_after, flush.replay_after
    except ObjectNotFoundError:
        # Trimmed just now, or long ago.
        pass
    text = "the versions of the manifest are gone that tell which part of the log has its rows"
    raise _lost(lost, manifests.region_id, text)


def _numbers(manifest: RegionManifest) -> set[int]:
    return {flushed.generation for flushed in manifest.flushed}


def _names(manifest: RegionManifest, flushed: FlushedGeneration) -> bool:
    return any(_is(other, flushed) for other in manifest.flushed)


def _is(one: FlushedGeneration, other: FlushedGeneration) -> bool:
    return (one.generation, one.path) == (other.generation, other.path)


def _lost(lost: FlushedGeneration, region_id: UUID, why: str) -> CorruptDataError:
    return CorruptDataError(
        f"generation {lost.generation} of region {region_id} cannot be made from the log: {why}. "
        "Nothing was changed: keep every object, and restore the generation from a backup"
    )
