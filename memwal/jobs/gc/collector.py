"""Context and region of the garbage collectors, and the decisions that they make and carry out.

A collector is a function that decides about each object, folder or range of one kind of garbage,
and deletes garbage unless it is a dry run. It keeps no state besides the table, and yields each
decision after it was carried out, so that a deletion is counted although a later request fails.

A new rule of garbage collection is such a function, one line in
:data:`memwal.jobs.gc.job.REGION_COLLECTORS` or :data:`memwal.jobs.gc.job.TABLE_COLLECTORS`, and, if
it has an age, a field of the options. A new kind of garbage also needs a member of
:class:`memwal.jobs.gc.decision.GarbageKind`, and a new path its right to delete in
:mod:`memwal.permissions`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from memwal.base_table.region_marks import RegionMark
from memwal.errors import LinkRefusedError
from memwal.jobs.gc.decision import Decision, DecisionReason, GarbageKind, Reason
from memwal.jobs.gc.history import ManifestVersions
from memwal.jobs.gc.pins import Pins
from memwal.jobs.options import GcOptions
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Extent:
    """Number, size and youngest modification time of some objects."""

    objects: int = 0
    bytes: int = 0
    youngest: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GcContext:
    """Context that all collectors of a run share."""

    location: TableLocation
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

    def measure(self, prefix: str) -> Extent:
        """List the objects below a prefix, and keep only their totals."""
        objects, size = 0, 0
        youngest: datetime | None = None
        for info in self.location.store.list(prefix):
            objects += 1
            size += info.size
            youngest = info.modified if youngest is None else max(youngest, info.modified)
        return Extent(objects, size, youngest)

    def carry_out(
        self, decision: Decision, folder: str, delete: Callable[[], bool | None]
    ) -> Decision:
        """Delete the object of a decision, unless it is kept or this is a dry run.

        Returns the decision. ``folder`` is the one in which ``delete`` deletes; it returns False if
        the garbage came into use since the decision. If a symbolic link leads to the folder,
        nothing is deleted, the decision says so, and the collection goes on. The store itself
        deletes nothing behind a link, also if the link was made after this check: the check is for
        dry runs, and for the objects that ``delete`` writes first.
        """
        if not decision.delete:
            return decision
        try:
            self.location.store.check_no_link(folder)
            if not self.options.dry_run and delete() is False:
                message = "the region's manifest changed meanwhile; the next run decides again"
                return replace(decision, reason=Reason.IN_USE, message=message)
        except LinkRefusedError as error:
            return replace(decision, reason=Reason.LINK, message=str(error))
        return decision


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionState:
    """One region as it was read when its collection began; all its collectors decide from this."""

    context: GcContext
    manifests: RegionManifestStore
    history: ManifestVersions
    folders: tuple[str, ...]  # names of the region's folders, listed before its manifests were

    @property
    def region_id(self) -> UUID:
        """Id of the region."""
        return self.history.region_id

    @property
    def store(self) -> ObjectStore:
        """Store of the table."""
        return self.context.location.store


def decide(
    region_id: UUID | None, kind: GarbageKind, what: str, extent: Extent, why: DecisionReason
) -> Decision:
    """Make a decision about objects of a region; None for those of the table itself."""
    reason, message, until = why
    return Decision(
        kind=kind,
        what=what,
        region_id=None if region_id is None else str(region_id),
        objects=extent.objects,
        bytes=extent.bytes,
        reason=reason,
        message=message,
        until=None if until is None else until.isoformat(timespec="seconds"),
    )
