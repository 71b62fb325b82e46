"""Claim or seal a region, and publish generations while the claim holds (spec: Writer Fencing).

The order of a claim is manifest, region mark, sentinel, replay. With the manifest alone, the fenced
writer could append once more and acknowledge the rows as durable after the replay had read the log.
Gaps in the log are checked before all these steps: the writer that the claim would fence still
holds the missing rows in memory.

The mark (:mod:`memwal.base_table.region_marks`) makes a region noticed that is lost later. No row
is accepted before it is stored. A process that dies between manifest and mark leaves a region
without rows and without a mark, which the next claim or merge plan writes; one that pauses there
writes a mark that is in force already, or smaller.

A generation is published in the manifest only if its folder has no orphan mark and still has its
bloom filter, checked in this order. A garbage collector that takes the folder for an orphan writes
a mark into it, commits the next manifest version, and deletes everything in the folder, the bloom
filter second to last and the mark last. Without a mark, the collector has either finished, and then
the filter is gone; or it has not begun, and then only one of the two next manifest versions is
created. If it is the collector's, the writer's commit fails and the writer checks again. If it is
the writer's, the collector finds the generation published and removes its mark.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol
from uuid import UUID

from memwal.base_table.region_marks import RegionMark, read_mark, write_marks
from memwal.base_table.required_regions import check_any_found, region_error
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    RegionFencedError,
    RegionSealedError,
    StoreUnavailableError,
    TableReplacedError,
)
from memwal.format.paths import (
    BLOOM_FILTER_NAME,
    ORPHAN_MARK_NAME,
    generation_dir,
    manifest_dir,
    manifest_key,
    region_dir,
    region_marks_dir,
    wal_dir,
)
from memwal.format.region_manifest import FlushedGeneration, RegionManifest, RegionStatus
from memwal.lsm.wal.log import (
    LogSurvey,
    fence,
    fenced_error,
    gap_error,
    lost_log_error,
    needs_replay,
    new_writer_id,
    read_log,
    survey_log,
)
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectStore
from memwal.util.clock import boot_seconds
from memwal.util.retry import Result, retry_errors

logger = logging.getLogger(__name__)

# A claim may lose many races against a writer with small MemTables: see _EpochRaise.
_MAX_ATTEMPTS = 100
# No attempt starts after this time: a single one takes minutes if the store never answers.
_MAX_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of a region, in force until another writer claims it with a higher epoch."""

    manifest: RegionManifest  # newest version; the replay starts behind its ``replay_after``
    writer_id: str  # unique to this claim; written into every log entry
    next_position: int  # first free position of the log behind the fence
    survey: LogSurvey = field(repr=False)  # listing of the log before the fence
    verified_at: float  # time at which the claim was certainly in force, by the clock of the claim

    @property
    def has_entries(self) -> bool:
        """True if the log has entries to replay, beside the fence."""
        return self.next_position - 1 > self.manifest.replay_after + 1


def claim_region(
    store: ObjectStore,
    region_id: UUID,
    *,
    spec_id: int = 0,
    region_fields: tuple[tuple[str, bytes], ...] = (),
    merged: int = 0,
    replay: bool = True,
    recovers: bool = False,
    clock: Callable[[], float] = boot_seconds,
) -> Claim:
    """Claim a region: become its only writer.

    ``spec_id`` and ``region_fields`` are for the manifest of a new region; an existing manifest
    keeps its own. ``merged`` is the highest generation of the region that the base table had merged
    at an earlier time. With ``replay`` the log will be replayed, and must therefore have no gap.
    ``recovers`` marks the claim as one of a recovery, see :mod:`memwal.lsm.wal.log`.

    Raises
    ------
    RegionSealedError
        The region is sealed.
    RegionFencedError
        Another writer claimed the region at the same time and won.
    RegionLostError
        The region has a mark or merge progress and no manifest. It never starts over by itself:
        its generations would have numbers that the lost ones have too.
    CorruptDataError
        A log entry is missing, or the manifest is older than ``merged`` or the region's mark. The
        region stays with its present writer.
    ConflictError
        Other processes committed the region's manifest first in every attempt.
    """
    manifests = RegionManifestStore(store, region_id)
    first = RegionManifest(
        region_id=region_id,
        version=1,
        writer_epoch=1,
        spec_id=spec_id,
        region_fields=region_fields,
    )
    # Before the manifest, which is written before it.
    mark = read_mark(store, region_id)
    raising = _EpochRaise(store, manifests, first, mark, merged, replay, clock)
    try:
        unfenced = _retry(raising.attempt)
    except ConflictError as error:
        raise ConflictError(
            f"region {region_id} was not claimed: in each of up to {_MAX_ATTEMPTS} attempts within "
            f"{_MAX_SECONDS:.0f} s, other processes committed its manifest first. Stop its present "
            "writer, or give that one larger MemTables, and claim again"
        ) from error
    if mark is None:
        write_marks(store, {region_id: RegionMark(merged=merged)})
    writer_id = new_writer_id(recovers=recovers)
    if unfenced.manifest.version == 1:
        return replace(unfenced, writer_id=writer_id)
    sentinel = _retry(
        partial(
            fence,
            store,
            region_id,
            epoch=unfenced.manifest.writer_epoch,
            writer_id=writer_id,
            after=unfenced.manifest.replay_after,
            hint=unfenced.next_position - 1,
        )
    )
    claim = replace(unfenced, writer_id=writer_id, next_position=sentinel + 1)
    return _record_tip(manifests, claim, clock)


def _retry(step: Callable[[], Result]) -> Result:
    # After an ambiguous answer of the store, the stored manifest may be ours, and cannot be
    # distinguished from that of another claim: claiming again costs an epoch and is always right.
    return retry_errors(
        step,
        (ConflictError, StoreUnavailableError),
        _MAX_ATTEMPTS,
        first_wait=0.01,
        longest_wait=0.5,
        seconds=_MAX_SECONDS,
    )


@dataclass(slots=True)
class _EpochRaise:
    """Attempts to commit the manifest of the next epoch.

    A writer with small MemTables commits a manifest every few milliseconds, and its log may take
    seconds to list. A claim that listed the log in each attempt would lose every race against it.
    The first attempt lists the log. Each later one reads the newest manifest, requests the few
    entries that were appended since, and commits at once; it lists the log again only if they are
    many, or one of them is missing.

    That is as safe as listing again. The survey says that every position up to its tip was used,
    and which of them was the first that was missing when it was made. Entries are only removed up
    to ``replay_after``, which never decreases. A position behind the ``replay_after`` of the newest
    manifest is therefore still there if the survey found it; and if the survey found it missing, it
    was missing while no flush had covered it, so that no collector had deleted it. Positions up to
    ``replay_after`` do not matter any more. The manifest that the attempt read is certainly the one
    that its commit follows, since the commit creates exactly the next version: a process that is
    paused between the two either finds that version taken, or taken and trimmed, which the commit
    notices, and reads again; or nothing was flushed or collected between the two. Entries that the
    writer appends between the look and the commit are found by the fence, and read by the replay.
    """

    store: ObjectStore
    manifests: RegionManifestStore
    first: RegionManifest  # manifest of a new region
    mark: RegionMark | None
    merged: int
    replay: bool
    clock: Callable[[], float]
    survey: LogSurvey | None = None  # of the last attempt

    def attempt(self) -> Claim:
        """Commit the manifest of the next epoch, and return the claim, which has no fence yet."""
        latest = self.manifests.read_latest()
        if latest is not None and latest.status != RegionStatus.ACTIVE:
            raise RegionSealedError(
                f"region {latest.region_id} is sealed (status {int(latest.status)}) and takes no "
                "writer; write to the regions of the table's newest region spec"
            )
        if latest is None:
            check_any_found(self.store)
        base = self.first if latest is None else latest
        survey = self.survey = survey_log(
            self.store,
            base.region_id,
            after=base.replay_after,
            hint=base.wal_last_seen,
            earlier=self.survey,
            is_new=latest is None,
        )
        damage = self._find_damage(latest, survey)
        if damage is not None:
            # The entries may have been flushed and collected, or the region claimed for the first
            # time, since the manifest was read.
            if self._find_damage(self.manifests.read_latest(), survey) is not None:
                raise damage
            raise ConflictError(f"the manifest of region {base.region_id} changed during a claim")
        claimed = base
        if latest is not None:
            claimed = replace(
                latest, version=latest.version + 1, writer_epoch=latest.writer_epoch + 1
            )
            # The previous manifest may come from a writer that does not sync.
            self.store.barrier(up_to=manifest_key(latest.region_id, latest.version))
        verified_at = self.clock()
        self.manifests.commit_exclusively(claimed)
        return Claim(claimed, "", survey.tip, survey, verified_at)

    def _find_damage(
        self, latest: RegionManifest | None, survey: LogSurvey
    ) -> CorruptDataError | None:
        """Return the error for a manifest that is too old, or a log that lacks entries."""
        region_id = self.first.region_id
        error = region_error(self.store, region_id, latest, self.mark, self.merged)
        if error is not None:
            return error
        if latest is None:
            if survey.tip == 1:
                return None
            return CorruptDataError(
                f"region {region_id} has no manifest in {manifest_dir(region_id)}, but its log "
                f"goes on to entry {survey.tip - 1}. Nothing was changed: restore the manifest "
                "from a backup, or give the rows of the log up with memwal recover TABLE "
                f"--region-lost {region_id}"
            )
        if not self.replay:
            return None
        if survey.missing is not None and survey.missing > latest.replay_after:
            return gap_error(latest.region_id, survey.missing, newest=survey.tip - 1)
        return lost_log_error(self.store, region_id, latest.last_logged, newest=survey.newest)


def _record_tip(manifests: RegionManifestStore, claim: Claim, clock: Callable[[], float]) -> Claim:
    """Record the tip of the log in the manifest, as a hint that shortens the next claim."""
    epoch, position = claim.manifest.writer_epoch, claim.next_position - 1

    def change(latest: RegionManifest) -> RegionManifest | None:
        _check_epoch(latest, epoch)
        if latest.wal_last_seen >= position:
            return None
        return replace(latest, wal_last_seen=position)

    verified_at = clock()
    try:
        manifest = manifests.update(change, recent=claim.manifest.version)
        return replace(claim, manifest=manifest, verified_at=verified_at)
    except RegionFencedError:
        raise
    except MemWalError as error:
        logger.info("tip of region %s not recorded: %s", manifests.region_id, error)
        return claim


def seal_region(store: ObjectStore, region_id: UUID) -> RegionManifest:
    """Seal a region: fence its writer and refuse further claims.

    Its generations are read and merged as before. A sealed region cannot be reopened: Lance seals
    the regions of a table that is being dropped, and the spec has no way back. Returns the manifest
    of the sealed region, unchanged if it was sealed before.

    Raises
    ------
    InvalidInputError
        The region was never claimed, or its log has unflushed rows: open a writer and close it,
        which flushes them, and seal again.
    RegionFencedError
        Another writer claimed the region at the same time and won.
    RegionSealedError
        Another process sealed the region at the same time.
    CorruptDataError
        See :func:`claim_region` and :func:`memwal.lsm.wal.log.read_log`.
    """
    latest = RegionManifestStore(store, region_id).read_latest()
    if latest is None:
        raise InvalidInputError(f"region {region_id} was never claimed; there is nothing to seal")
    if latest.status == RegionStatus.SEALED:
        return latest
    # Checked before the claim, so that an active writer is not fenced in vain.
    _check_flushed(store, latest, epoch=latest.writer_epoch)
    claim = claim_region(store, region_id)
    return seal_claimed(store, region_id, epoch=claim.manifest.writer_epoch)


def seal_claimed(store: ObjectStore, region_id: UUID, *, epoch: int) -> RegionManifest:
    """Seal a region for the writer that claimed it, which must not append afterwards.

    Raises InvalidInputError if the log has unflushed rows: flush first.
    """

    def change(latest: RegionManifest) -> RegionManifest | None:
        _check_epoch(latest, epoch)
        if latest.status == RegionStatus.SEALED:
            return None
        _check_flushed(store, latest, epoch=epoch)
        return replace(latest, status=RegionStatus.SEALED)

    return RegionManifestStore(store, region_id).update(change)


def _check_flushed(store: ObjectStore, manifest: RegionManifest, *, epoch: int) -> None:
    for position, entry in read_log(
        store, manifest.region_id, after=manifest.replay_after, epoch=epoch
    ):
        if needs_replay(entry, current_generation=manifest.current_generation):
            raise InvalidInputError(
                f"region {manifest.region_id} has rows that are not flushed, from entry "
                f"{position} of its log on; open its writer, close it, and seal the region again"
            )


def _check_epoch(latest: RegionManifest, epoch: int) -> None:
    if latest.writer_epoch != epoch:
        raise fenced_error(latest.region_id, epoch, latest.writer_epoch)


def check_not_lost(store: ObjectStore, region_id: UUID, merged: int) -> None:
    """Raise RegionLostError if a claim would, before it makes a folder."""
    mark = read_mark(store, region_id)
    latest = RegionManifestStore(store, region_id).read_latest()
    error = region_error(store, region_id, latest, mark, merged)
    if error is not None:
        raise error
    if latest is None:
        check_any_found(store)


def claimed_folders(region_id: UUID) -> tuple[str, ...]:
    """Return the folders that a writer holds from its claim on, see :meth:`ObjectStore.hold`."""
    return (
        region_dir(region_id),
        manifest_dir(region_id),
        wal_dir(region_id),
        region_marks_dir(region_id),
    )


class Publishable(Protocol):
    """Rows that become a generation: its number, and the last log position that it covers."""

    @property
    def generation(self) -> int: ...

    @property
    def last_position(self) -> int: ...


class ClaimedRegion:
    """Region that a writer has claimed: verifies the epoch and publishes generations.

    Safe to use from several threads.
    """

    def __init__(self, store: ObjectStore, claimed: RegionManifest) -> None:
        self.epoch = claimed.writer_epoch
        self._store = store
        self._region_id = claimed.region_id
        self._manifests = RegionManifestStore(store, claimed.region_id)
        self._lock = threading.Lock()
        self._newest_seen = claimed

    def verify(self) -> None:
        """Raise RegionFencedError if the claim was not in force any more when this was called.

        In an object store, where folders have no identity, this check notices a table that was
        deleted, or replaced by a copy from before the claim. A copy from after the claim cannot be
        told from the table itself.
        """
        self._store.check_held()
        with self._lock:
            newest_seen = self._newest_seen
        if self._manifests.is_latest(newest_seen):
            return
        latest = self._manifests.read_latest()
        if latest is None:
            raise TableReplacedError(
                f"the manifest of region {self._region_id} is gone: the table was moved or "
                "deleted. Check what is at its address, and open a new writer"
            )
        self._check_not_fenced(latest)
        self._remember(latest)

    def check_held(self) -> None:
        """Raise TableReplacedError if the table was moved or replaced since the claim."""
        self._store.check_held()

    def publish_generation(self, rows: Publishable, write: Callable[[], FlushedGeneration]) -> None:
        """Write rows as a generation and publish it in the manifest.

        ``write`` writes the rows into a new folder, complete and durable. Raises RegionFencedError
        if another writer claimed the region, which then replays the rows. Raises
        StoreUnavailableError if this process was paused for so long that the garbage collector took
        the folder for the rest of a failed flush, and deleted it: call again.
        Raises TableReplacedError if the table was moved or replaced.
        """
        add = partial(self._manifest_with, rows=rows, flushed=write())
        # Before a manifest is read, which may be that of another table by now.
        self._store.check_held()
        self._update(add)

    def skip_generation(self, rows: Publishable) -> None:
        """Record that a generation has no rows, so that its log entries are not replayed any more.

        Raises RegionFencedError if another writer claimed the region.
        """

        self._update(partial(self._manifest_behind, rows=rows))

    def _manifest_with(
        self, latest: RegionManifest, *, rows: Publishable, flushed: FlushedGeneration
    ) -> RegionManifest | None:
        """Return the manifest with the generation added; None if an earlier commit added it."""
        following = self._manifest_behind(latest, rows=rows)
        if following is None:
            return None
        if not self._is_stored(flushed):
            raise StoreUnavailableError(
                f"generation {rows.generation} of region {self._region_id} was collected before "
                "it was in the manifest; it is written again"
            )
        return replace(following, flushed=(*latest.flushed, flushed))

    def _manifest_behind(
        self, latest: RegionManifest, *, rows: Publishable
    ) -> RegionManifest | None:
        """Return the manifest that leaves a generation behind; None if an earlier commit did."""
        self._check_not_fenced(latest)
        if latest.current_generation > rows.generation:
            # An earlier commit succeeded although the store reported no success.
            return None
        return replace(
            latest,
            current_generation=rows.generation + 1,
            replay_after=max(latest.replay_after, rows.last_position),
            wal_last_seen=max(latest.wal_last_seen, rows.last_position),
        )

    def _is_stored(self, flushed: FlushedGeneration) -> bool:
        """Return whether the generation folder is complete and not being collected as an orphan.

        The garbage collector writes a mark into an orphan, commits a new manifest version, then
        deletes the folder with the bloom filter second to last and the mark last. Checking the mark
        first and the filter second therefore never accepts a half-deleted folder.
        """
        folder = generation_dir(self._region_id, flushed.path)
        is_marked = self._store.exists(f"{folder}/{ORPHAN_MARK_NAME}")
        return not is_marked and self._store.exists(f"{folder}/{BLOOM_FILTER_NAME}")

    def _check_not_fenced(self, latest: RegionManifest) -> None:
        _check_epoch(latest, self.epoch)

    def _update(self, change: Callable[[RegionManifest], RegionManifest | None]) -> None:
        """Change the manifest, beginning with the newest one that this process has seen."""
        with self._lock:
            recent = self._newest_seen.version
        self._remember(self._manifests.update(change, recent=recent))

    def _remember(self, manifest: RegionManifest) -> None:
        with self._lock:
            if manifest.version > self._newest_seen.version:
                self._newest_seen = manifest
