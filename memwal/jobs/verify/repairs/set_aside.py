"""Put rows of a log that cannot be stored into quarantine, so that the region can be claimed.

Another client can write rows that no flush can store, e.g. with a null key. They cannot be skipped,
since that client acknowledged them, and a log entry is never rewritten: a writer that was paused
may read it back to learn whether its append succeeded. The steps are therefore:

1. Claim the region: manifest, fence, as every writer does. Its present writer, of any client, is
   fenced, and claims the region again; all that it acknowledged is in the log.
2. Insert the unusable rows of the log behind ``replay_after`` into the quarantine table, durably.
   The key of such a row is its region, its entry and its number in the entry.
3. Flush the other rows, one generation after another, as a replay that does not fit into memory
   does: each becomes a generation that the manifest names, and ``replay_after`` moves behind it. A
   generation without any usable row only moves ``replay_after``.

A process that dies

* after 1 leaves a claimed region with the whole log;
* in or after 2 leaves the same, and rows in quarantine that the next repair finds there;
* in 3 leaves some generations flushed, and the rest of the log as it was. The folder of a flush
  that was not published is an orphan.

A process that is paused in 2 or 3 while another one claims the region changes nothing when it goes
on: the epoch is checked before the insert into the quarantine, which commits directly behind the
version that was read before that check, and by the compare-and-swap of the manifest. Two repairs
at once are two claims: the later one fences the earlier. A writer of memwal that claims the region
between the steps is refused by the unusable rows, as before. Lance's own writer replays from
``replay_after`` and skips earlier generations, so after step 3 it does not read these rows again.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import xxhash

from memwal.base_table.snapshot import BaseTable, open_base
from memwal.format.paths import wal_key
from memwal.jobs.table.recover import flush_log
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.claim import Claim, claim_region
from memwal.lsm.wal.log import fenced_error, needs_replay, read_log
from memwal.lsm.wal.logged_rows import UnusableRows, split_entry
from memwal.quality.quarantine import Quarantine, entry_folder, logged_rows
from memwal.region.manifest_store import RegionManifestStore


def set_aside_unusable_rows(base: BaseTable, region_id: UUID, quarantine: Quarantine) -> int:
    """Quarantine the rows of a region's log that cannot be stored, and flush all others.

    Returns the number of unusable rows; if there are none, nothing is changed.

    Raises RegionFencedError if another writer claimed the region during the repair; call this
    again. Raises MemWalError if the region cannot be claimed or flushed for another reason.
    """
    store, row_schema = base.location.store, RowSchema.of(base)
    latest = RegionManifestStore(store, region_id).read_latest()
    if latest is None or not any(_unusable_rows(base, latest.replay_after, region_id, row_schema)):
        return 0
    claim = claim_region(store, region_id, merged=base.details.merged.get(region_id, 0))
    # A writer may have written a new column before the claim.
    base = open_base(base.location, seen=base)
    row_schema = RowSchema.of(base)
    count = 0
    for unusable in _unusable_rows(base, claim.manifest.replay_after, region_id, row_schema):
        _quarantine(base, claim, unusable, quarantine)
        count += len(unusable.numbers)
    flush_log(base, store, claim, skip_unusable=True)
    return count


def _unusable_rows(
    base: BaseTable, after: int, region_id: UUID, row_schema: RowSchema
) -> Iterator[UnusableRows]:
    """Yield the unusable rows of the unflushed entries behind ``after``."""
    store = base.location.store
    manifest = RegionManifestStore(store, region_id).read_latest()
    if manifest is None:
        return
    for position, entry in read_log(store, region_id, after=after, epoch=manifest.writer_epoch):
        if needs_replay(entry, current_generation=manifest.current_generation):
            _, unusable = split_entry(row_schema, region_id, position, entry)
            if unusable is not None:
                yield unusable


def _quarantine(
    base: BaseTable, claim: Claim, unusable: UnusableRows, quarantine: Quarantine
) -> None:
    store, manifest = base.location.store, claim.manifest
    # Positions are used again in a table that is created anew in the same place.
    entry = store.get(wal_key(manifest.region_id, unusable.position))
    folder = entry_folder(unusable.position, xxhash.xxh32(entry).intdigest())
    rows = logged_rows(
        manifest.region_id,
        folder,
        unusable.rows.select(base.schema.names),
        generation=manifest.current_generation,
        numbers=unusable.numbers,
        reasons=unusable.reasons,
    )

    def is_ours() -> bool:
        latest = RegionManifestStore(store, manifest.region_id).read_latest()
        epoch = 0 if latest is None else latest.writer_epoch
        if epoch != manifest.writer_epoch:
            raise fenced_error(manifest.region_id, manifest.writer_epoch, epoch)
        return True

    quarantine.write(rows, still_pending=is_ours)
