"""Plans of the reads of a feed: of the table as it is now, or as of a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from memwal.base_table.region_marks import check_progress
from memwal.base_table.snapshot import BaseTable
from memwal.errors import TableSetupError
from memwal.feed.base_changes import expired
from memwal.feed.log_rows import LogRange
from memwal.feed.token import FeedToken, SeenRegion
from memwal.format.region_manifest import INCARNATION_NUMBERS, RegionManifest
from memwal.lsm.wal.follow import Followed, UnflushedLog
from memwal.reader.sources.generation import retry_if_collected
from memwal.reader.sources.log_tails import read_tail, read_tails, unflushed_logs
from memwal.reader.sources.plan import ReadPlan, plan_snapshot
from memwal.reader.sources.snapshot import TableSnapshot, open_snapshot, open_version
from memwal.storage.location import TableLocation
from memwal.util.clock import boot_seconds
from memwal.util.concurrency import run_all


@dataclass(frozen=True, slots=True)
class FeedState:
    """A table at one moment, as a feed reads it."""

    plan: ReadPlan
    logs: Mapping[UUID, Followed]

    @property
    def token(self) -> FeedToken:
        """Token of everything that the plan reads."""
        base = self.plan.base
        regions = {}
        for region_id, manifest in self.plan.snapshot.manifests.items():
            log, flushed = self.logs[region_id], manifest.current_generation - 1
            newest = max((rows.generation for rows in log.rows), default=flushed)
            regions[region_id] = SeenRegion(flushed, max(newest, flushed), log.last_position)
        return FeedToken(base.version, base.digest, regions)

    @property
    def stored(self) -> dict[UUID, int]:
        """Oldest merged generation of each region that is stored."""
        oldest: dict[UUID, int] = {}
        for merged in self.plan.merged:
            known = oldest.get(merged.region_id, merged.generation)
            oldest[merged.region_id] = min(known, merged.generation)
        return oldest

    def seen(self, token: FeedToken) -> dict[UUID, int]:
        """Return the newest generation of each region that the reader of a token has seen whole."""
        seen = {region_id: region.generation for region_id, region in token.regions.items()}
        for region_id, manifest in self.plan.snapshot.manifests.items():
            region = token.regions.get(region_id)
            if region is None:
                continue
            if (
                region.generation >= manifest.current_generation
                or region.position // INCARNATION_NUMBERS != manifest.incarnation
            ):
                raise expired(self.plan.base.location, f"region {region_id} was started over")
            if region.position >= manifest.replay_after:
                # Every generation was flushed from entries that the token has.
                seen[region_id] = manifest.current_generation - 1
        return seen

    def check_whole(self, until: FeedToken) -> None:
        """Raise TokenExpiredError if a generation may have rows of both sides of a token."""
        for region_id, manifest in self.plan.snapshot.manifests.items():
            region = until.regions[region_id]
            if manifest.replay_after > region.position and region.newest > region.generation:
                reason = f"generation {region.newest} of region {region_id} has newer rows as well"
                raise expired(self.plan.base.location, reason)

    def logged_since(self, after: FeedToken, until: FeedToken) -> list[LogRange]:
        """Return the log entries between two tokens, those of earlier region specs first."""
        ranges = []
        regions = self.plan.snapshot.manifests.items()
        for region_id, manifest in sorted(regions, key=lambda item: (item[1].spec_id, item[0])):
            first = manifest.incarnation * INCARNATION_NUMBERS
            seen = after.regions.get(region_id, SeenRegion(first, first, first))
            last = until.regions[region_id].position
            if last > seen.position:
                ranges.append(LogRange(region_id, seen.position, last, seen.generation + 1))
        return ranges


def read_state(location: TableLocation, *, flushed: bool = False) -> FeedState:
    """Plan a read of all rows that were acknowledged before the call, or of the flushed ones.

    Raises ProgressLostError while a decision about lost generations is due: a token made before the
    decision could not tell whether its reader saw their rows.
    """

    def read() -> FeedState:
        began = boot_seconds()
        snapshot = open_snapshot(location)
        check_progress(snapshot.lost)
        if flushed:
            # A generation that is only in the base table would be told twice, and its log be
            # collected: the version of the token does not keep it.
            unflushed = unflushed_logs(snapshot.base, snapshot.manifests)
            logs = {log.region_id: Followed((), log.after) for log in unflushed}
        else:
            logs = read_tails(snapshot.base, snapshot.manifests, began=began, unchecked=False)
        rows = {region_id: followed.rows for region_id, followed in logs.items()}
        return FeedState(plan_snapshot(snapshot, rows, left_out={}), logs)

    return retry_if_collected(read)


def read_state_at(location: TableLocation, until: FeedToken) -> FeedState:
    """Plan a read of the rows that the reader of a token has seen.

    Rows that were not flushed then may be in a generation by now, with newer ones: that is read.
    Raises TokenExpiredError if the version of the base table was cleaned up, or a generation that
    it does not have was collected; and ProgressLostError as :func:`read_state`.
    """

    def read() -> FeedState:
        snapshot = open_snapshot(location)
        check_progress(snapshot.lost)
        base = base_of(location, until)
        manifests: dict[UUID, RegionManifest] = {}
        logs: dict[UUID, UnflushedLog] = {}
        for region_id, region in until.regions.items():
            manifest = snapshot.manifests.get(region_id)
            if manifest is None or region.position // INCARNATION_NUMBERS != manifest.incarnation:
                raise expired(location, f"region {region_id} was started over")
            flushed = tuple(f for f in manifest.flushed if f.generation <= region.newest)
            first = base.details.merged.get(region_id, 0) + 1
            last = min(region.newest, manifest.current_generation - 1)
            if first <= last and min((f.generation for f in flushed), default=last + 1) > first:
                raise expired(location, f"generation {first} of region {region_id} was collected")
            manifests[region_id] = replace(manifest, flushed=flushed)
            if region.position > manifest.replay_after:
                logs[region_id] = replace(UnflushedLog.behind(manifest), last=region.position)
        tails = run_all([partial(read_tail, base, log, listed=True) for log in logs.values()])
        followed = dict(zip(logs, tails, strict=True))
        rows = {region_id: tail.rows for region_id, tail in followed.items()}
        plan = plan_snapshot(TableSnapshot(base, manifests), rows, left_out={})
        return FeedState(plan, followed)

    return retry_if_collected(read)


def base_of(location: TableLocation, token: FeedToken) -> BaseTable:
    """Open the version of the base table that a token names; TokenExpiredError if it is gone."""
    try:
        base = open_version(location, token.version)
    except TableSetupError as error:
        raise expired(location, f"version {token.version} was cleaned up") from error
    if base.digest != token.digest:
        raise expired(location, f"version {token.version} is one of a table that was replaced")
    return base
