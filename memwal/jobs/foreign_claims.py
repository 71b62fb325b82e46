"""Claims of other clients, whose writers may still read generations that are merged.

Lance's own writer opens the table when it claims a region, and reads the base table at that version
for as long as it lives, together with the generations that the region's manifest names. Of a
generation that was merged after its claim, only the manifest and the folder have the rows for it.
Whether such a writer lives cannot be observed. Writers of memwal write their id into each log
entry and read the newest version of the base table, so they need no protection.

While the newest claim of a region is not one of memwal's, its merged generations are therefore
kept, until the region is claimed again, or its log had no new entry for ``foreign_claim_seconds``,
or they are larger than ``foreign_claim_bytes``: then the oldest go.

The generations that the newest manifest names are all that such a writer may need: the others were
dropped before the claim, since a drop is refused if the region was claimed after the claim was
read. A claim that is under way, without its fence, counts as another client's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.paths import wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.options import GcOptions
from memwal.lsm.wal.log import find_tip, read_head
from memwal.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class ForeignClaim:
    """Newest claim of a region, by a client other than memwal."""

    epoch: int
    last_entry: datetime  # when the newest entry of the log was written, by the store's clock


def find_foreign_claim(
    store: ObjectStore, manifest: RegionManifest, *, tip: int | None = None
) -> ForeignClaim | None:
    """Return the newest claim of a region if another client made it.

    Reads the newest entry of the log, which is never collected: a small request, and a second one
    if another client wrote it. Without the ``tip`` of the log, its first free position, one more
    finds it if the hint in the manifest is exact. Returns None for a claim of memwal, and for a
    region without a log.
    """
    region_id = manifest.region_id
    if tip is None:
        start = manifest.last_logged + 1
        tip = find_tip(store, region_id, start=start)
    newest = tip - 1
    if newest == 0:
        return None
    try:
        head = read_head(store, region_id, newest)
    except ObjectNotFoundError:
        return None
    except CorruptDataError:
        pass  # A torn entry does not tell whose it is.
    else:
        if head.writer_id is not None and head.writer_epoch >= manifest.writer_epoch:
            return None
    info = store.head(wal_key(region_id, newest))
    return None if info is None else ForeignClaim(manifest.writer_epoch, info.modified)


def protected_from(
    claim: ForeignClaim, manifest: RegionManifest, options: GcOptions, *, now: datetime
) -> int | None:
    """Return the oldest generation that is kept for a claim; None if none is kept."""
    if claim.last_entry + options.foreign_claim <= now:
        return None
    size = 0
    oldest: int | None = None
    for flushed in sorted(manifest.flushed, key=lambda flushed: flushed.generation, reverse=True):
        size += flushed.memory_bytes or 0
        if size > options.foreign_claim_bytes:
            break
        oldest = flushed.generation
    return oldest


def are_protected(options: GcOptions) -> bool:
    """Return whether the limits keep anything for claims of other clients."""
    return options.foreign_claim > timedelta() and options.foreign_claim_bytes > 0
