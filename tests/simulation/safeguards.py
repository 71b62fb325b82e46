"""Safeguards that the models of a simulated table repeat, each with the edit that takes it out."""

from typing import Any
from uuid import UUID

import pytest
from simulation import jobs
from simulation.store import SimulatedStore

from memwal.feed import consumer
from memwal.feed.consumer import Consumer
from memwal.feed.consumer_state import ConsumerState, read_state
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.gc import job
from memwal.jobs.gc.decision import Reason
from memwal.jobs.gc.pins import Pin, Pins
from memwal.region.manifest_store import RegionManifestStore


class _Endless(dict[UUID, int]):
    """Every region may lose everything."""

    def get(self, key: UUID, default: Any = None) -> Any:
        return 1 << 40


NOTHING_NEEDED = Pin(reason=Reason.NOT_MERGED, message="", generations=_Endless())


def only_tags(patch: pytest.MonkeyPatch) -> None:
    """A collector keeps what tags need, and nothing else."""
    patch.setattr(jobs, "Pins", lambda pins, refs: Pins((NOTHING_NEEDED, *pins[3:]), refs))
    patch.setattr(job, "region_error", lambda *facts: None)


def no_index(patch: pytest.MonkeyPatch) -> None:
    """What the newest version has merged counts as superfluous, indexed or not."""
    patch.setattr(jobs, "Pins", lambda pins, refs: Pins(tuple(pins[:1]), refs))


def no_retention(patch: pytest.MonkeyPatch) -> None:
    """A collector keeps nothing for versions that were the newest until lately."""
    patch.setattr(jobs, "Pins", lambda pins, refs: Pins(tuple(pins[:2] + pins[3:]), refs))


def no_tags(patch: pytest.MonkeyPatch) -> None:
    """A collector keeps nothing for tags."""
    patch.setattr(jobs, "Pins", lambda pins, refs: Pins(tuple(pins[:3]), refs))


def no_second_look(patch: pytest.MonkeyPatch) -> None:
    """A fresh reader does not look at the manifest again."""

    class Believed(RegionManifestStore):
        def is_latest(self, manifest: RegionManifest) -> bool:
            return True

    patch.setattr(jobs, "RegionManifestStore", Believed)


def no_pinned_deletes(patch: pytest.MonkeyPatch) -> None:
    """A merge deletes from whatever version is the newest by then."""
    commit = jobs.BaseClient.commit

    def unpinned(self: Any, read: Any, *, gone: Any = frozenset(), **given: Any) -> Any:
        if gone:
            return commit(self, self.open(), gone=gone)
        return commit(self, read, **given)

    patch.setattr(jobs.BaseClient, "commit", unpinned)
    patch.setattr(jobs.Client, "divided", 0)


def no_progress_at_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A marked commit is rebased over any other."""
    commit = jobs.BaseClient.commit

    def rebased(self: Any, read: Any, **given: Any) -> Any:
        given.pop("accept", None)
        return commit(self, read, **given)

    patch.setattr(jobs.BaseClient, "commit", rebased)
    patch.setattr(jobs.Client, "divided", 0)


def no_consumer_hold(patch: pytest.MonkeyPatch) -> None:
    """A consumer places no tags."""
    patch.setattr(consumer, "place_tag", lambda base, tag: True)


def no_consumer_epoch(patch: pytest.MonkeyPatch) -> None:
    """A consumer does not look whether another process claimed it."""

    def believed(self: Consumer) -> ConsumerState:
        state = read_state(self._location.store, self._name)
        assert state is not None
        self._state = state
        return state

    patch.setattr(Consumer, "_owned", believed)


def no_consumer_compare(patch: pytest.MonkeyPatch) -> None:
    """The state of a consumer replaces any other."""

    def put(self: SimulatedStore, key: str, data: bytes, expected: bytes) -> None:
        self._put(key, data)

    patch.setattr(SimulatedStore, "_replace", put)
