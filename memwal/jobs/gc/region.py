"""Collection of regions: tasks of many regions, and the collectors of one region in order.

Each decision is carried out at once. A region that cannot be read is left alone, and the others go
on. Before every few regions a task checks whether tags or branches have changed, and reads the pins
again if so.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from memwal.errors import CorruptDataError, MemWalError
from memwal.format.paths import APPLIED_DIR, region_dir
from memwal.jobs.gc import generations, wal
from memwal.jobs.gc import manifests as manifest_versions
from memwal.jobs.gc.decision import Decision, Kind, Reason, Tally
from memwal.jobs.gc.generations import Folder
from memwal.jobs.gc.history import History, read_history
from memwal.jobs.gc.options import Ages
from memwal.jobs.gc.pins import Needs, read_needs, read_refs
from memwal.jobs.job import Guard
from memwal.lsm.wal.applied_steps import write_book_before_delete
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore


def check_progress(history: History, removable: int) -> None:
    """Make sure that no more counts as merged than was ever flushed.

    The manifest is read after the base table, and what is merged was flushed before.

    Raises
    ------
    CorruptDataError
        One of the two is not what it was. Generations could go that nobody merged.
    """
    latest = history.latest
    if removable >= latest.current_generation:
        raise CorruptDataError(
            f"generations up to {removable} are said to be merged, and the region's manifest comes "
            f"to {latest.current_generation}; run memwal verify, and restore the one that is wrong"
        )


class RegionCollector:
    """The collectors of one region.

    Parameters
    ----------
    needs : Needs
        What of the table is in use.
    dry_run : bool
        Whether decisions are only made.
    explain : bool
        Whether people want to know the size of what is named, which takes a listing for each.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifests: RegionManifestStore,
        needs: Needs,
        ages: Ages,
        *,
        dry_run: bool,
        explain: bool,
    ) -> None:
        self._store = store
        self._manifests = manifests
        self._region = manifests.region_id
        self._needs = needs
        self._ages = ages
        self._dry_run = dry_run
        self._explain = explain

    def run(self) -> Iterator[Decision]:
        """Collect, and yield each decision after it was carried out.

        Everything is judged by one look at the history, and generations are dropped last: what
        this run drops it cannot delete, whatever the clocks say.

        Raises
        ------
        MemWalError
            Something cannot be read or deleted. The rest of the region is left alone.
        """
        # Folders before the manifest: what is not named then, was not named when it was listed.
        names = self._store.list_folders(region_dir(self._region))
        history = read_history(self._manifests, expired=self._ages.expired)
        if history is None:
            # A claim that died before its first manifest.
            return
        check_progress(history, self._needs.removable(self._region))
        yield from self._folders(history, generations.of_generations(names))
        yield from self._log(history, has_books=APPLIED_DIR in names)
        yield from self._manifest_versions(history)
        yield from self._generations(history)

    def _folders(self, history: History, names: list[str]) -> Iterator[Decision]:
        named = {flushed.path for flushed in history.latest.flushed}
        for name in names:
            if name in named:
                continue
            folder = generations.measure(self._store, self._region, name)
            decision = generations.judge_dropped(folder, history, self._needs, self._ages)
            if decision is None:
                decision = generations.judge_orphan(folder, history, self._ages)
            if decision.goes and not self._dry_run:
                decision = self._deleted(history, folder, decision)
            yield decision

    def _deleted(self, history: History, folder: Folder, decision: Decision) -> Decision:
        """Delete a folder; the decision is another one where it came into use meanwhile."""
        if decision.kind is not Kind.ORPHAN:
            generations.delete(self._store, self._region, folder.name)
            return decision
        if generations.delete_orphan(self._store, self._manifests, history, folder):
            return decision
        return folder.decision(
            Kind.ORPHAN,
            str(self._region),
            reason=Reason.IN_USE,
            words="the region's manifest changed while this looked; the next run tells",
        )

    def _log(self, history: History, *, has_books: bool) -> Iterator[Decision]:
        entries = wal.Entries.list(self._store, self._region)
        for positions, decision in wal.judge_entries(entries, history, self._ages):
            if decision.goes and not self._dry_run:
                if has_books:
                    # No entry is a step that was old enough when there was no book.
                    write_book_before_delete(self._store, self._region, until=int(positions.max()))
                wal.delete(self._store, history, positions)
            yield decision

    def _manifest_versions(self, history: History) -> Iterator[Decision]:
        for versions, decision in manifest_versions.judge_manifests(history):
            if decision.goes and not self._dry_run:
                manifest_versions.delete(self._store, self._manifests, history, versions)
            yield decision

    def _generations(self, history: History) -> Iterator[Decision]:
        sizes: dict[str, Folder] = {}
        if self._explain:
            for flushed in history.latest.flushed:
                sizes[flushed.path] = generations.measure(self._store, self._region, flushed.path)
        decided = list(generations.judge_named(history, self._needs, sizes))
        if not self._dry_run and any(decision.goes for decision in decided):
            generations.drop(self._manifests, self._needs.removable(self._region))
        yield from decided


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
