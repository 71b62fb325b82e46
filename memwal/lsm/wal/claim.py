"""Claim or seal a region, and publish generations while the claim holds (spec: Writer Fencing).

The order of a claim is manifest, sentinel, replay. With the manifest alone, the fenced writer could
still append once more and be told that its rows are durable, after the replay had read the log.
Gaps in the log are checked before all three steps: a writer that would be fenced still holds in
memory what is missing.

A generation is named in the manifest only if its folder has no orphan mark and still has its bloom
filter, checked in this order. A collector that takes the folder for an orphan writes a mark into
it, commits the next manifest version, and deletes everything in the folder, the bloom filter second
to last and the mark last. Without a mark, the collector has either finished, and then the filter is
gone; or it has not begun, and then only one of the two next manifest versions is created. If it is
the collector's, the writer's commit fails and the writer checks again. If it is the writer's, the
collector finds the generation named and withdraws its mark.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol
from uuid import UUID

from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    RegionFencedError,
    RegionSealedError,
    StoreUnavailableError,
)
from memwal.format.paths import (
    BLOOM_FILTER_NAME,
    ORPHAN_MARK_NAME,
    generation_dir,
    manifest_dir,
    manifest_key,
)
from memwal.format.region_manifest import FlushedGeneration, RegionManifest, RegionStatus
from memwal.lsm.wal.log import (
    LogSurvey,
    fence,
    fenced_by,
    log_gap,
    needs_replay,
    read_log,
    survey_log,
)
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectStore
from memwal.util.clock import boot_seconds

logger = logging.getLogger(__name__)

_ATTEMPTS = 20
# No further attempt begins after this time: one alone takes minutes where a store never answers.
_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Claim:
    """A region that is ours until somebody claims it with a higher epoch.

    Attributes
    ----------
    manifest : RegionManifest
        The newest one: what to replay starts behind its ``replay_after``.
    writer_id : str
        Unique to this claim; stands in every entry of the log.
    next_position : int
        First position of the log that is free for this writer, behind the fence.
    survey : LogSurvey
        What the log looked like before the fence.
    verified_at : float
        When the region was ours for certain, by the clock of the claim.
    """

    manifest: RegionManifest
    writer_id: str
    next_position: int
    survey: LogSurvey = field(repr=False)
    verified_at: float


def claim_region(
    store: ObjectStore,
    region_id: UUID,
    *,
    spec_id: int = 0,
    region_fields: tuple[tuple[str, bytes], ...] = (),
    merged: int = 0,
    replay: bool = True,
    clock: Callable[[], float] = boot_seconds,
) -> Claim:
    """Become the one writer of a region.

    Parameters
    ----------
    spec_id, region_fields
        What the manifest of a new region says of its spec and values; an existing manifest keeps
        its own.
    merged : int, default 0
        Up to which generation the base table had it merged, some time before. Numbers up to it are
        used up, also where the region's folder was lost and begins anew: what is flushed under one
        of them would count as merged, and be seen by nobody.
    replay : bool, default True
        Whether the log will be replayed, so that it must be whole.
    clock : callable
        Seconds that go on while the machine sleeps.

    Raises
    ------
    RegionSealedError
        The region takes no more writers.
    RegionFencedError
        Somebody else claimed it at the same time and won.
    CorruptDataError
        An entry of the log is missing, or the manifest is, or it is older than what is merged;
        whoever has the region keeps it.
    ConflictError
        Too many processes claim this region at once.
    """
    manifests = RegionManifestStore(store, region_id)
    first = RegionManifest(
        region_id=region_id,
        version=1,
        writer_epoch=1,
        spec_id=spec_id,
        region_fields=region_fields,
        current_generation=merged + 1,
    )
    # After an ambiguous answer the manifest that is there may be ours, and cannot be told from
    # one that another claim wrote: claiming once more costs an epoch and is always right.
    retrying = Retrying(
        retry=retry_if_exception_type((ConflictError, StoreUnavailableError)),
        stop=stop_after_attempt(_ATTEMPTS) | stop_after_delay(_SECONDS),
        wait=wait_random_exponential(multiplier=0.01, max=2),
        reraise=True,
    )
    raised = retrying(_raise_epoch, store, manifests, first, replay, clock)
    writer_id = uuid.uuid4().hex
    if raised.manifest.version == 1:
        return replace(raised, writer_id=writer_id)
    sentinel = retrying(
        fence,
        store,
        region_id,
        epoch=raised.manifest.writer_epoch,
        writer_id=writer_id,
        after=raised.manifest.replay_after,
        hint=raised.next_position - 1,
    )
    claim = replace(raised, writer_id=writer_id, next_position=sentinel + 1)
    return _with_noted_tip(manifests, claim, clock)


def _raise_epoch(
    store: ObjectStore,
    manifests: RegionManifestStore,
    first: RegionManifest,
    replay: bool,
    clock: Callable[[], float],
) -> Claim:
    """Commit the manifest of the next epoch. The claim that comes back has no fence yet."""
    latest = manifests.read_latest()
    if latest is not None and latest.status != RegionStatus.ACTIVE:
        raise RegionSealedError(
            f"region {latest.region_id} is sealed (status {int(latest.status)}) and takes no "
            "writer; write to the regions of the table's newest region spec"
        )
    known = first if latest is None else latest
    survey = survey_log(store, known.region_id, after=known.replay_after, hint=known.wal_last_seen)
    damage = _damage(known, latest, survey, upcoming=first.current_generation, replay=replay)
    if damage is not None:
        # Unless somebody flushed meanwhile, and a collector took what is missing.
        if latest is None and manifests.read_latest() is None:
            raise damage
        if latest is not None and manifests.is_latest(latest):
            raise damage
        raise ConflictError(f"the manifest of region {known.region_id} changed during a claim")
    claimed = (
        first
        if latest is None
        else replace(latest, version=latest.version + 1, writer_epoch=latest.writer_epoch + 1)
    )
    if latest is not None:
        # The manifest before may be by somebody who syncs nothing.
        store.barrier(up_to=manifest_key(latest.region_id, latest.version))
    moment = clock()
    manifests.commit_exclusively(claimed)
    return Claim(claimed, "", survey.tip, survey, moment)


def _damage(
    known: RegionManifest,
    latest: RegionManifest | None,
    survey: LogSurvey,
    *,
    upcoming: int,
    replay: bool,
) -> CorruptDataError | None:
    region_id = known.region_id
    if known.current_generation < upcoming:
        return CorruptDataError(
            f"the manifest of region {region_id} comes to generation {known.current_generation}, "
            f"and the base table has merged {upcoming - 1} already: it is older than the base "
            "table. Nothing was changed: restore both from one backup, or move the region's "
            "folder away, after which it begins anew"
        )
    if latest is None and survey.tip > 1:
        return CorruptDataError(
            f"region {region_id} has no manifest in {manifest_dir(region_id)}, but its log goes "
            f"on to entry {survey.tip - 1}. Nothing was changed: restore the manifest from a "
            "backup, or move the region's folder away"
        )
    if replay and survey.missing is not None:
        return log_gap(region_id, survey.missing, newest=survey.tip - 1)
    return None


def _with_noted_tip(
    manifests: RegionManifestStore, claim: Claim, clock: Callable[[], float]
) -> Claim:
    """Record how far the log goes, as a hint that shortens the next claim."""
    epoch, position = claim.manifest.writer_epoch, claim.next_position - 1

    def change(latest: RegionManifest) -> RegionManifest | None:
        _check_epoch(latest, epoch)
        if latest.wal_last_seen >= position:
            return None
        return replace(latest, wal_last_seen=position)

    moment = clock()
    try:
        return replace(claim, manifest=manifests.update(change), verified_at=moment)
    except RegionFencedError:
        raise
    except MemWalError as error:
        logger.info("tip of region %s not recorded: %s", manifests.region_id, error)
        return claim


def seal_region(store: ObjectStore, region_id: UUID) -> RegionManifest:
    """Make a region take no more writers. Whoever has it is fenced.

    Its generations are read and merged as before. There is no way back: Lance seals a region
    whose table is being dropped, and nothing in the spec opens one again.

    Returns
    -------
    RegionManifest
        As it is now; of a region that was sealed already, as it was found.

    Raises
    ------
    InvalidInputError
        The region was never claimed, or its log has rows that no generation has: open a writer
        and close it, which flushes them, and seal again.
    RegionFencedError
        Somebody else claimed the region at the same time and won.
    RegionSealedError
        Somebody else sealed it at the same time.
    CorruptDataError
        See :func:`claim_region` and :func:`memwal.lsm.wal.log.read_log`.
    """
    latest = RegionManifestStore(store, region_id).read_latest()
    if latest is None:
        raise InvalidInputError(f"region {region_id} was never claimed; there is nothing to seal")
    if latest.status == RegionStatus.SEALED:
        return latest
    # Looked at before the claim, so that a writer that is at work is not fenced for nothing.
    _check_flushed(store, latest, epoch=latest.writer_epoch)
    claim = claim_region(store, region_id)
    return seal_claimed(store, region_id, epoch=claim.manifest.writer_epoch)


def seal_claimed(store: ObjectStore, region_id: UUID, *, epoch: int) -> RegionManifest:
    """Seal a region for the writer that has it. Nothing may be appended from then on.

    Parameters
    ----------
    epoch : int
        Of the claim.

    Raises
    ------
    InvalidInputError
        The log has rows that no generation has; flush first.
    RegionFencedError
        Another writer claimed the region.
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
        raise fenced_by(latest.region_id, epoch, latest.writer_epoch)


class Nameable(Protocol):
    """What becomes a generation: its number, and the last position of the log that it covers."""

    @property
    def generation(self) -> int: ...

    @property
    def last_position(self) -> int: ...


class Tenure:
    """A claimed region: looks whether it is still ours, and names generations in the manifest.

    Safe to use from several threads.

    Parameters
    ----------
    claimed : RegionManifest
        As the claim wrote it.
    """

    def __init__(self, store: ObjectStore, claimed: RegionManifest) -> None:
        self.epoch = claimed.writer_epoch
        self._store = store
        self._region_id = claimed.region_id
        self._manifests = RegionManifestStore(store, claimed.region_id)
        self._lock = threading.Lock()
        self._known = claimed

    def verify(self) -> None:
        """Make sure that the region was ours when this was called.

        Raises
        ------
        RegionFencedError
            Another writer claimed it.
        """
        with self._lock:
            known = self._known
        if self._manifests.is_latest(known):
            return
        latest = self._manifests.read_latest()
        if latest is None:
            raise RegionFencedError(f"the manifest of region {self._region_id} is gone")
        self._check(latest)
        self._learn(latest)

    def name_generation(self, table: Nameable, write: Callable[[], FlushedGeneration]) -> None:
        """Write a MemTable as a generation and name it in the manifest.

        Parameters
        ----------
        write : callable
            Writes the rows into a new folder, complete and durable.

        Raises
        ------
        RegionFencedError
            Another writer claimed the region; it replays the rows.
        StoreUnavailableError
            This process slept for so long that the folder was taken for the rest of a flush that
            died, and collected. To be called again.
        """
        self._learn(self._manifests.update(partial(self._with, table=table, flushed=write())))

    def _with(
        self, latest: RegionManifest, *, table: Nameable, flushed: FlushedGeneration
    ) -> RegionManifest | None:
        """The manifest with the generation."""
        self._check(latest)
        if latest.current_generation > table.generation:
            # An earlier try got through though the store did not say so.
            return None
        if not self._is_stored(flushed):
            raise StoreUnavailableError(
                f"generation {table.generation} of region {self._region_id} was collected before "
                "the manifest could name it; it is written again"
            )
        return replace(
            latest,
            current_generation=table.generation + 1,
            replay_after=max(latest.replay_after, table.last_position),
            wal_last_seen=max(latest.wal_last_seen, table.last_position),
            flushed=(*latest.flushed, flushed),
        )

    def _is_stored(self, flushed: FlushedGeneration) -> bool:
        """Whether a generation is still there, and stays when the next version names it.

        A collector that takes it for an orphan leaves a mark, takes that version, and deletes
        everything in the folder, the bloom filter last, before the mark: asked for in this order.
        """
        folder = generation_dir(self._region_id, flushed.path)
        marked = self._store.exists(f"{folder}/{ORPHAN_MARK_NAME}")
        return not marked and self._store.exists(f"{folder}/{BLOOM_FILTER_NAME}")

    def _check(self, latest: RegionManifest) -> None:
        if latest.writer_epoch != self.epoch:
            raise RegionFencedError(
                f"region {self._region_id} was claimed by another writer (epoch "
                f"{latest.writer_epoch}, ours is {self.epoch}); open a new writer to claim it back"
            )

    def _learn(self, manifest: RegionManifest) -> None:
        with self._lock:
            if manifest.version > self._known.version:
                self._known = manifest
