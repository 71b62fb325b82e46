"""Claims of recoveries, which a writer that was fenced by one may claim back.

A recovery claims a region whose rows wait in the log although no writer seems to live, replays and
flushes them, and never appends. Whether a writer lives cannot be observed, so that it may fence a
writer that was only slow. Such a writer claims the region back, where it would stop for any other
claim: two producers that fenced each other for ever would both look healthy.

The sentinel of a recovery's claim has a writer id of its own kind. The newest entry of a log is
never collected. So if the newest claim of a region is a recovery's, the newest entry is its
sentinel; anybody who claimed the region since then has put an entry behind it. A recovery that
died between its manifest and its sentinel is not recognised: the writer stops, as for any claim,
and the rows stay in the log.

Claiming back is an ordinary claim: manifest, sentinel, replay. It is right whatever the recovery
did, and whether it still runs: what the recovery has flushed is not replayed, the rest is, and a
recovery that goes on is fenced itself and flushes nothing more.
"""

from __future__ import annotations

import uuid
from typing import Final
from uuid import UUID

from memwal.errors import ObjectNotFoundError
from memwal.format.wal_entry import TornEntryError
from memwal.lsm.wal.log import find_tip, read_head
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectStore

_RECOVERY: Final = "recovery-"


def new_writer_id(*, recovers: bool = False) -> str:
    """Return the id of a new claim, by a writer or by a recovery."""
    return (_RECOVERY if recovers else "") + uuid.uuid4().hex


def is_recovered(store: ObjectStore, region_id: UUID) -> bool:
    """Return whether the newest claim of a region is a recovery's."""
    manifest = RegionManifestStore(store, region_id).read_latest()
    if manifest is None:
        return False
    tip = find_tip(store, region_id, start=manifest.last_logged + 1)
    try:
        head = read_head(store, region_id, tip - 1)
    except (ObjectNotFoundError, TornEntryError):
        return False
    is_newest = head.writer_epoch == manifest.writer_epoch
    return is_newest and (head.writer_id or "").startswith(_RECOVERY)
