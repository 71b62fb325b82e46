"""Safeguards of memwal, each with the edit that takes it out: tests that watch must notice."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from memwal.base_table.snapshot import BaseTable, open_base
from memwal.format.paths import BLOOM_FILTER_NAME, generation_dir
from memwal.jobs.gc import generations, wal
from memwal.jobs.gc.decision import GarbageKind, Reason
from memwal.jobs.merge import merge_insert
from memwal.lsm.wal import appender, claim, follow, log
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectStore
from memwal.util.retry import LostRaceError
from memwal.writer.region_writer import writer

_NAP = 0.3
"""Seconds between two steps that are mostly milliseconds apart; the safeguard is there for them."""

UNNEEDED = (Reason.UNNEEDED, "", None)
"""Why a collector deletes."""

TakeOut = Callable[[pytest.MonkeyPatch], None]


# Log


def no_sentinel(patch: pytest.MonkeyPatch) -> None:
    """A claim puts nothing into the log that would stop its predecessor."""

    def fence(store: ObjectStore, region: UUID, *, after: int, hint: int, **_: Any) -> int:
        return log.find_tip(store, region, start=max(after, hint) + 1) - 1

    patch.setattr(claim, "fence", fence)


def no_look_after_a_pause(patch: pytest.MonkeyPatch) -> None:
    """A writer never looks whether the region is still its own."""
    patch.setattr(appender.LogAppender, "_check_epoch", lambda self: None)


def no_epoch_at_a_flush(patch: pytest.MonkeyPatch) -> None:
    """A writer that was fenced goes on to name its generations."""
    patch.setattr(claim.ClaimedRegion, "_check_not_fenced", lambda self, latest: None)


def no_replay(patch: pytest.MonkeyPatch) -> None:
    """A claim leaves behind what its predecessor had not flushed."""
    patch.setattr(writer, "replay", lambda *given, **named: iter(()))


def no_bound_of_the_log(patch: pytest.MonkeyPatch) -> None:
    """A collector takes all of the log but the newest entry."""
    decide = wal._decide_log

    def decided(entries: Any, region: Any) -> Any:
        for selected, why in decide(entries, region):
            yield selected, why if why[0] is Reason.NEWEST_ENTRY else UNNEEDED

    patch.setattr(wal, "_decide_log", decided)


def no_newest_entry(patch: pytest.MonkeyPatch) -> None:
    """A collector takes the newest entry of a log as well."""
    decide = wal._decide_log

    def decided(entries: Any, region: Any) -> Any:
        flushed = entries["position"] <= region.history.latest.replay_after
        for selected, why in decide(entries, region):
            taken = why[0] is Reason.NEWEST_ENTRY and bool(flushed.all())
            yield selected, UNNEEDED if taken else why

    patch.setattr(wal, "_decide_log", decided)


def no_forgetting(patch: pytest.MonkeyPatch) -> None:
    """A reader keeps what it knows of a log although a flush came since."""
    patch.setattr(follow._CachedTail, "fits", lambda self, log, row_schema: True)


# Manifests


def no_look_behind_a_first_manifest(patch: pytest.MonkeyPatch) -> None:
    """The first manifest counts whatever others there are, and no hint is asked."""
    has_predecessor = RegionManifestStore._has_predecessor
    patch.setattr(
        RegionManifestStore,
        "_has_predecessor",
        lambda self, version: version == 1 or has_predecessor(self, version),
    )
    no_hint(patch)


def no_hint(patch: pytest.MonkeyPatch) -> None:
    """No hint is asked whether a manifest was made, or is, the newest."""
    patch.setattr(RegionManifestStore, "_was_trimmed", lambda self, version, hint: False)


# Folders


def no_look_for_the_folder(patch: pytest.MonkeyPatch) -> None:
    """A flush names its folder without a look whether it is there."""
    patch.setattr(claim.ClaimedRegion, "_is_stored", lambda self, flushed: True)


def no_look_for_the_mark(patch: pytest.MonkeyPatch) -> None:
    """A flush looks for the bloom filter of its folder alone."""

    def is_stored(self: Any, flushed: Any) -> bool:
        folder = generation_dir(self._region_id, flushed.path)
        return bool(self._store.exists(f"{folder}/{BLOOM_FILTER_NAME}"))

    patch.setattr(claim.ClaimedRegion, "_is_stored", is_stored)


def no_mark_in_orphans(patch: pytest.MonkeyPatch) -> None:
    """A collector deletes an orphan at once."""
    patch.setattr(generations, "_prevent_naming", lambda region, folder: True)


def no_version_behind_a_mark(patch: pytest.MonkeyPatch) -> None:
    """A collector marks an orphan, and commits no manifest behind the mark."""
    update = RegionManifestStore.update

    def updated(self: RegionManifestStore, change: Any, **options: Any) -> Any:
        latest = self.read_latest()
        assert latest is not None
        return latest if change(latest) is latest else update(self, change, **options)

    patch.setattr(RegionManifestStore, "update", updated)


def no_grace(patch: pytest.MonkeyPatch) -> None:
    """A collector deletes the folder of a generation as soon as no manifest names it."""
    decide = generations.decide

    def decided(region: Any, kind: GarbageKind, what: str, extent: Any, why: Any) -> Any:
        why = UNNEEDED if kind is GarbageKind.FOLDER else why
        return decide(region, kind, what, extent, why)

    patch.setattr(generations, "decide", decided)


# Merge


def no_pinned_deletes(patch: pytest.MonkeyPatch) -> None:
    """A merge deletes from whatever version is the newest by then."""
    delete = merge_insert._delete

    def unpinned(base: BaseTable, *more: Any) -> Counter[str]:
        time.sleep(_NAP)
        for _ in range(100):
            try:
                return delete(open_base(base.location), *more)
            except LostRaceError:
                continue
        return Counter()

    patch.setattr(merge_insert, "_delete", unpinned)
