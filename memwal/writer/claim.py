"""Claiming a region (spec: Writer Fencing).

The order is manifest, sentinel, replay. With the manifest alone, the fenced writer could still
append once more and be told that its rows are durable, behind the back of the replay.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace
from uuid import UUID

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from memwal.errors import (
    ConflictError,
    MemWalError,
    RegionFencedError,
    RegionSealedError,
    StoreUnavailableError,
)
from memwal.format.region_manifest import RegionManifest, RegionStatus
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.base import ObjectStore
from memwal.writer.log import fence

logger = logging.getLogger(__name__)

_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Claim:
    """A region that is ours until somebody claims it with a higher epoch.

    Attributes
    ----------
    manifest : RegionManifest
        As the claim wrote it: what to replay starts behind its ``replay_after``.
    writer_id : str
        Unique to this claim; stands in every entry of the log.
    next_position : int
        First position of the log that is free for this writer.
    """

    manifest: RegionManifest
    writer_id: str
    next_position: int


def claim_region(
    store: ObjectStore,
    region_id: UUID,
    *,
    spec_id: int = 0,
    region_fields: tuple[tuple[str, bytes], ...] = (),
) -> Claim:
    """Become the one writer of a region.

    Parameters
    ----------
    spec_id, region_fields
        What the manifest of a new region says of its spec and values; an existing manifest keeps
        its own.

    Raises
    ------
    RegionSealedError
        The region takes no more writers.
    RegionFencedError
        Somebody else claimed it at the same time and won.
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
    )
    # After an ambiguous answer the manifest that is there may be ours, and cannot be told from
    # one that another claim wrote: claiming once more costs an epoch and is always right.
    retrying = Retrying(
        retry=retry_if_exception_type((ConflictError, StoreUnavailableError)),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.01, max=2),
        reraise=True,
    )
    manifest = retrying(_raise_epoch, manifests, first)
    writer_id = uuid.uuid4().hex
    if manifest.version == 1:
        return Claim(manifest=manifest, writer_id=writer_id, next_position=1)
    sentinel = retrying(
        fence,
        store,
        region_id,
        epoch=manifest.writer_epoch,
        writer_id=writer_id,
        after=manifest.replay_after,
        hint=manifest.wal_last_seen,
    )
    _note_tip(manifests, manifest.writer_epoch, sentinel)
    return Claim(manifest=manifest, writer_id=writer_id, next_position=sentinel + 1)


def _raise_epoch(manifests: RegionManifestStore, first: RegionManifest) -> RegionManifest:
    latest = manifests.read_latest()
    if latest is None:
        claimed = first
    elif latest.status != RegionStatus.ACTIVE:
        raise RegionSealedError(
            f"region {latest.region_id} is sealed (status {int(latest.status)}) and takes no writer"
        )
    else:
        claimed = replace(latest, version=latest.version + 1, writer_epoch=latest.writer_epoch + 1)
    manifests.commit_exclusively(claimed)
    return claimed


def _note_tip(manifests: RegionManifestStore, epoch: int, position: int) -> None:
    """Record how far the log goes, as a hint that shortens the next claim."""

    def change(latest: RegionManifest) -> RegionManifest | None:
        if latest.writer_epoch != epoch:
            raise RegionFencedError(
                f"region {latest.region_id} was claimed by another writer meanwhile "
                f"(epoch {latest.writer_epoch}, ours was {epoch}); open a new writer"
            )
        if latest.wal_last_seen >= position:
            return None
        return replace(latest, wal_last_seen=position)

    try:
        manifests.update(change)
    except RegionFencedError:
        raise
    except MemWalError as error:
        logger.info("tip of region %s not recorded: %s", manifests.region_id, error)
