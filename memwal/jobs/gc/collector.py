"""Interface of the garbage collectors, and their context and region.

A new rule of garbage collection is a class with a ``collect`` method, one line in the list of
:func:`memwal.jobs.gc.region.region_collectors` or :func:`memwal.jobs.gc.job.table_collectors`, and,
if it has an age, a field of the options. A new kind of garbage also needs a member of
:class:`memwal.jobs.gc.decision.GarbageKind`, and a new path its right to delete in
:mod:`memwal.permissions`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar, Protocol
from uuid import UUID

from memwal.base_table.region_marks import RegionMark
from memwal.errors import LinkRefusedError
from memwal.jobs.gc.decision import Decision, GarbageKind, Reason
from memwal.jobs.gc.history import ManifestVersions
from memwal.jobs.gc.pins import Pins
from memwal.jobs.options import GcOptions
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class GcContext:
    """Context that all collectors of a run share."""

    # Without runner and guard, which do not go to workers.
    options: GcOptions
    now: datetime  # when the run began, in UTC; all ages are counted up to this
    pins: Pins  # generations that must stay, and for whom
    marks: Mapping[UUID, RegionMark]  # in force before the merge progress of the pins was read

    @property
    def expired(self) -> datetime:
        """A grace period ago."""
        return self.now - self.options.grace

    def of_regions(self, regions: Collection[UUID]) -> GcContext:
        """Return the context reduced to some regions, which is less to send."""
        marks = {region: self.marks[region] for region in regions if region in self.marks}
        return replace(self, pins=self.pins.of_regions(regions), marks=marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionState:
    """One region as it was read when its collection began; all its collectors decide from this."""

    store: ObjectStore
    manifests: RegionManifestStore
    history: ManifestVersions
    folders: tuple[str, ...]  # names of the region's folders, listed before its manifests were

    @property
    def region_id(self) -> UUID:
        """Id of the region."""
        return self.history.region_id


def carry_out(
    decision: Decision,
    store: ObjectStore,
    folder: str,
    delete: Callable[[], bool | None],
    *,
    dry_run: bool,
) -> Decision:
    """Delete the object of a decision, unless it is kept or this is a dry run; return the decision.

    ``folder`` is the one in which ``delete`` deletes; it returns False if the garbage came into use
    meanwhile. If a symbolic link leads to the folder, nothing is deleted, the decision says so, and
    the collection goes on. The store itself deletes nothing behind a link, also if the link was
    made after this check: the check is for dry runs, and for what ``delete`` writes first.
    """
    decision = refuse_link(decision, store, folder)
    if dry_run or not decision.delete:
        return decision
    try:
        if delete() is False:
            message = "the region's manifest changed meanwhile; the next run decides again"
            return replace(decision, reason=Reason.IN_USE, message=message)
    except LinkRefusedError as error:
        return replace(decision, reason=Reason.LINK, message=str(error))
    return decision


def refuse_link(decision: Decision, store: ObjectStore, folder: str) -> Decision:
    """Turn a decision to delete into one to keep if a symbolic link leads to the folder."""
    if decision.delete:
        try:
            store.check_no_link(folder)
        except LinkRefusedError as error:
            return replace(decision, reason=Reason.LINK, message=str(error))
    return decision


class Collector(Protocol):
    """Collects one kind of garbage. A collector keeps no state besides the table."""

    kind: ClassVar[GarbageKind]

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about each object, folder or range, and delete garbage unless it is a dry run.

        Yields each decision after it was carried out, so that what was deleted is counted although
        a later request fails.
        """
        ...
