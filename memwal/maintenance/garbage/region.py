"""Collecting one region: its collectors one after another, each decision carried out at once."""

from __future__ import annotations

from collections.abc import Iterator

from memwal.errors import CorruptDataError
from memwal.format.names import APPLIED_DIR, region_dir
from memwal.maintenance.garbage import (
    folders,
    generations,
    log_entries,
    manifest_versions,
    orphans,
)
from memwal.maintenance.garbage.ages import Ages
from memwal.maintenance.garbage.decisions import Decision, Kind, Reason
from memwal.maintenance.garbage.folders import Folder
from memwal.maintenance.garbage.history import History, read_history
from memwal.maintenance.garbage.needs import Needs
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.base import ObjectStore
from memwal.writer.applied import keep_applied


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
        yield from self._folders(history, folders.of_generations(names))
        yield from self._log(history, has_books=APPLIED_DIR in names)
        yield from self._manifest_versions(history)
        yield from self._generations(history)

    def _folders(self, history: History, names: list[str]) -> Iterator[Decision]:
        named = {flushed.path for flushed in history.latest.flushed}
        for name in names:
            if name in named:
                continue
            folder = folders.measure(self._store, self._region, name)
            decision = generations.judge_dropped(folder, history, self._needs, self._ages)
            if decision is None:
                decision = orphans.judge_orphan(folder, history, self._ages)
            if decision.goes and not self._dry_run:
                decision = self._deleted(history, folder, decision)
            yield decision

    def _deleted(self, history: History, folder: Folder, decision: Decision) -> Decision:
        """Delete a folder; the decision is another one where it came into use meanwhile."""
        if decision.kind is not Kind.ORPHAN:
            folders.delete(self._store, self._region, folder.name)
            return decision
        if orphans.delete(self._store, self._manifests, history, folder):
            return decision
        return folder.decision(
            Kind.ORPHAN,
            str(self._region),
            reason=Reason.IN_USE,
            words="the region's manifest changed while this looked; the next run tells",
        )

    def _log(self, history: History, *, has_books: bool) -> Iterator[Decision]:
        entries = log_entries.Entries.list(self._store, self._region)
        for positions, decision in log_entries.judge_entries(entries, history, self._ages):
            if decision.goes and not self._dry_run:
                if has_books:
                    # No entry is a step that was old enough when there was no book.
                    keep_applied(self._store, self._region, until=int(positions.max()))
                log_entries.delete(self._store, history, positions)
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
                sizes[flushed.path] = folders.measure(self._store, self._region, flushed.path)
        decided = list(generations.judge_named(history, self._needs, sizes))
        if not self._dry_run and any(decision.goes for decision in decided):
            generations.drop(self._manifests, self._needs.removable(self._region))
        yield from decided
