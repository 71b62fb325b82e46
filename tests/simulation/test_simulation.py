"""Random worlds keep their promises, and notice when a safeguard is taken out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any
from uuid import UUID

import pytest
from simulation import jobs, writers
from simulation.explore import BrokenPromise, explore
from support.data.sampled import drawn

from memwal.jobs.gc import region
from memwal.jobs.gc.decision import Reason
from memwal.jobs.gc.generations import DroppedFolderCollector, OrphanCollector
from memwal.jobs.gc.pins import Pin, Pins
from memwal.jobs.gc.wal import LogCollector
from memwal.lsm.wal import claim, log
from memwal.region import manifest_store
from memwal.storage.object_store import ObjectStore


class _Endless(dict[UUID, int]):
    """Every region may lose everything."""

    def get(self, key: UUID, default: Any = None) -> Any:
        return 1 << 40


NOTHING_NEEDED = Pin(reason=Reason.NOT_MERGED, message="", generations=_Endless())
FIXED = range(12)
FRESH = int(os.environ.get("MEMWAL_SIMULATION_SEEDS", "3"))


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", FIXED)
def test_a_world_keeps_its_promises(seed: int) -> None:
    explored = explore(seed, steps=1_500)

    assert explored.acknowledged > 20
    assert explored.reads > 20


def test_fresh_worlds_keep_their_promises() -> None:
    for _ in range(FRESH):
        explore(int.from_bytes(os.urandom(4)), steps=1_500)


def test_a_seed_decides_everything() -> None:
    assert explore(7, steps=1_000) == explore(7, steps=1_000)


@pytest.mark.parametrize("seed", drawn(6, range(1_000, 1_100), seed="long lives"))
def test_a_long_life_keeps_its_promises(seed: int) -> None:
    explore(seed, steps=10_000)


# Safeguards, and how the world is without each of them.


def no_sentinel(patch: pytest.MonkeyPatch) -> None:
    def fence(store: ObjectStore, region: UUID, *, after: int, hint: int, **_: Any) -> int:
        return log.find_tip(store, region, start=max(after, hint) + 1) - 1

    patch.setattr(claim, "fence", fence)


def no_look_behind_a_first_manifest(patch: pytest.MonkeyPatch) -> None:
    store = manifest_store.RegionManifestStore
    has_predecessor = store._has_predecessor
    patch.setattr(store, "_has_predecessor", lambda self, v: v == 1 or has_predecessor(self, v))
    patch.setattr(store, "_was_trimmed", lambda self, version, hint: False)


def no_look_after_a_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writers, "CHECK_SECONDS", math.inf)


def no_epoch_at_a_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim.ClaimedRegion, "_check_not_fenced", lambda self, latest: None)


def no_look_for_the_folder(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim.ClaimedRegion, "_is_stored", lambda self, flushed: True)


def no_bound_of_the_log(patch: pytest.MonkeyPatch) -> None:
    decide = LogCollector._decide

    def decided(self: LogCollector, entries: Any, context: Any) -> Any:
        for positions, decision in decide(self, entries, context):
            replayed = decision.reason is Reason.REPLAY
            yield positions, replace(decision, reason=Reason.UNNEEDED) if replayed else decision

    patch.setattr(LogCollector, "_decide", decided)


def only_tags(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jobs, "Pins", lambda pins: Pins((NOTHING_NEEDED, *pins[3:])))
    patch.setattr(region, "region_error", lambda *facts: None)


def no_retention(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jobs, "Pins", lambda pins: Pins(tuple(pins[:2] + pins[3:])))


def no_tags(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jobs, "Pins", lambda pins: Pins(tuple(pins[:3])))


def no_grace(patch: pytest.MonkeyPatch) -> None:
    decide = DroppedFolderCollector._decide

    def decided(self: DroppedFolderCollector, *arguments: Any) -> Any:
        return replace(decide(self, *arguments), reason=Reason.UNNEEDED)

    patch.setattr(DroppedFolderCollector, "_decide", decided)


def no_mark_in_orphans(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OrphanCollector, "_prevent_naming", lambda self, name, generation: True)


def no_pinned_deletes(patch: pytest.MonkeyPatch) -> None:
    commit = jobs.BaseClient.commit

    def unpinned(self: Any, read: Any, *, gone: Any = frozenset(), **given: Any) -> Any:
        if gone:
            return commit(self, self.open(), gone=gone)
        return commit(self, read, **given)

    patch.setattr(jobs.BaseClient, "commit", unpinned)
    patch.setattr(jobs.Client, "divided", 0)


def no_progress_at_the_commit(patch: pytest.MonkeyPatch) -> None:
    commit = jobs.BaseClient.commit

    def rebased(self: Any, read: Any, **given: Any) -> Any:
        given.pop("accept", None)
        return commit(self, read, **given)

    patch.setattr(jobs.BaseClient, "commit", rebased)
    patch.setattr(jobs.Client, "divided", 0)


# What only shows next to many processes that are often paused.
NEEDS_PAUSES = {
    no_grace,
    no_look_behind_a_first_manifest,
    no_look_for_the_folder,
    no_mark_in_orphans,
    no_pinned_deletes,
}


# Where the search begins: a world that once noticed it. Any change can make it another one, and the
# search then goes on to the next.
NOTICED = {
    no_grace: 1,
    no_look_after_a_pause: 75,
    no_look_behind_a_first_manifest: 272,
    no_look_for_the_folder: 18,
    no_mark_in_orphans: 32,
    no_pinned_deletes: 95,
    no_progress_at_the_commit: 30,
    no_retention: 11,
    no_tags: 82,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "take_out",
    [
        no_sentinel,
        no_look_behind_a_first_manifest,
        no_look_after_a_pause,
        no_epoch_at_a_flush,
        no_look_for_the_folder,
        no_bound_of_the_log,
        only_tags,
        no_retention,
        no_tags,
        no_grace,
        no_mark_in_orphans,
        no_pinned_deletes,
        no_progress_at_the_commit,
    ],
)
def test_a_missing_safeguard_is_noticed(
    take_out: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out(monkeypatch)
    # None of them is about the logs that a fresh reader reads.
    monkeypatch.setattr(jobs.Client, "fresh", 0)
    harsh = "pause" if take_out in NEEDS_PAUSES else None
    first = NOTICED.get(take_out, 0)

    with pytest.raises(BrokenPromise):
        for seed in chain(range(first, 300), range(first)):
            explore(seed, steps=6_000, harsh=harsh)
