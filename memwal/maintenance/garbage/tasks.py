"""Collecting many regions in one worker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from memwal.errors import MemWalError
from memwal.maintenance.garbage.ages import Ages
from memwal.maintenance.garbage.decisions import Decision, Kind, Reason, Tally
from memwal.maintenance.garbage.needs import Needs, read_needs
from memwal.maintenance.garbage.refs import read_refs
from memwal.maintenance.garbage.region import RegionCollector
from memwal.maintenance.guard import Guard
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.location import TableLocation

# Reads wait for the store, not for the processor.
_PARALLEL_REGIONS = 16
# Before so many regions each, a look whether tags or branches changed.
_REGIONS_PER_LOOK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectTask:
    """Regions that one worker collects.

    Attributes
    ----------
    regions : tuple of UUID
    needs : Needs
        What was in use when the job was planned; only of these regions.
    """

    location: TableLocation
    regions: tuple[UUID, ...]
    needs: Needs
    ages: Ages
    dry_run: bool
    explain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOutcome:
    """What a task deleted, or would have: figures by name, decisions if they were asked for."""

    figures: dict[str, int]
    decisions: tuple[Decision, ...] = ()
    problems: tuple[str, ...] = ()


def run_collect_task(task: CollectTask, *, guard: Guard | None = None) -> CollectOutcome:
    """Collect the task's regions, side by side. One that cannot be read is left alone.

    ``guard`` is called before each part of them.

    Raises
    ------
    MemWalError
        What is in use changed, and cannot be read.
    """
    tally = Tally(explain=task.explain)
    problems: list[str] = []
    needs = task.needs
    with ThreadPoolExecutor(min(_PARALLEL_REGIONS, max(len(task.regions), 1))) as pool:
        for start in range(0, len(task.regions), _REGIONS_PER_LOOK):
            if guard is not None:
                guard()
            needs = _looked_at_again(task, needs)
            part = task.regions[start : start + _REGIONS_PER_LOOK]
            for outcome in pool.map(partial(_collect, task, needs), part):
                tally.merge(outcome.figures, outcome.decisions)
                problems.extend(outcome.problems)
    return CollectOutcome(
        figures=tally.figures, decisions=tuple(tally.decisions), problems=tuple(problems)
    )


def _looked_at_again(task: CollectTask, needs: Needs) -> Needs:
    """What is in use, read anew if a tag or a branch came or went since it was read."""
    if read_refs(task.location) == needs.refs:
        return needs
    found = read_needs(task.location, task.ages).only(task.regions)
    if not task.dry_run:
        task.location.store.barrier()
    return found


def _collect(task: CollectTask, needs: Needs, region_id: UUID) -> CollectOutcome:
    store = task.location.store
    tally = Tally(explain=task.explain)
    problems: tuple[str, ...] = ()
    collector = RegionCollector(
        store,
        RegionManifestStore(store, region_id),
        needs,
        task.ages,
        dry_run=task.dry_run,
        explain=task.explain,
    )
    try:
        for decision in collector.run():
            tally.add(decision)
    except MemWalError as error:
        problems = (f"region {region_id}: not collected: {error}",)
        tally.add(
            Decision(
                kind=Kind.REGION,
                what=str(region_id),
                region_id=str(region_id),
                goes=False,
                reason=Reason.UNREADABLE,
                words=f"what is in use cannot be read, so that nothing more goes: {error}",
            )
        )
    return CollectOutcome(
        figures=tally.figures, decisions=tuple(tally.decisions), problems=problems
    )
