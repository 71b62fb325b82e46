"""Safeguards of memwal, and how a process is without one of them: whoever watches must notice."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from memwal.base_table.snapshot import BaseTable, open_base
from memwal.jobs.gc.decision import Reason
from memwal.jobs.gc.wal import LogCollector
from memwal.jobs.merge import commit
from memwal.lsm.wal import appender, claim, log
from memwal.storage.object_store import ObjectStore
from memwal.util.retry import LostRaceError
from memwal.writer.region_writer import writer

_NAP = 0.3
"""Seconds between two steps that are mostly milliseconds apart; the safeguard is there for them."""


def no_sentinel() -> None:
    """A claim puts nothing into the log that would stop its predecessor."""

    def fence(store: ObjectStore, region: UUID, *, after: int, hint: int, **_: Any) -> int:
        return log.find_tip(store, region, start=max(after, hint) + 1) - 1

    claim.fence = fence


def no_look_after_a_pause() -> None:
    """A writer never looks whether the region is still its own."""
    appender.LogAppender._check_epoch = lambda self: None  # type: ignore[method-assign]


def no_epoch_at_a_flush() -> None:
    """A writer that was fenced goes on to name its generations."""
    claim.ClaimedRegion._check_not_fenced = lambda self, latest: None  # type: ignore[method-assign]


def no_replay() -> None:
    """A claim leaves behind what its predecessor had not flushed."""
    writer.replay = lambda *given, **named: iter(())


def no_bound_of_the_log() -> None:
    """A collector takes all of the log but the newest entry."""
    decide = LogCollector._decide

    def decided(self: LogCollector, entries: Any, context: Any) -> Any:
        for positions, decision in decide(self, entries, context):
            if decision.reason is not Reason.NEWEST_ENTRY:
                decision = replace(decision, reason=Reason.UNNEEDED)
            yield positions, decision

    LogCollector._decide = decided  # type: ignore[method-assign]


def no_pinned_deletes() -> None:
    """A merge deletes from whatever version is the newest by then."""
    delete = commit._delete

    def unpinned(base: BaseTable, keys: Any) -> int:
        time.sleep(_NAP)
        for _ in range(100):
            try:
                return delete(open_base(base.location), keys)
            except LostRaceError:
                continue
        return 0

    commit._delete = unpinned


SAFEGUARDS: dict[str, Callable[[], None]] = {
    take_out.__name__: take_out
    for take_out in (
        no_sentinel,
        no_look_after_a_pause,
        no_epoch_at_a_flush,
        no_replay,
        no_bound_of_the_log,
        no_pinned_deletes,
    )
}
