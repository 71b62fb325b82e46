"""Restore the base table to a version, and decide about the generations that it lost by that.

Lance restores the merge progress with the rows. Region marks record how far each region was merged
(:mod:`memwal.base_table.region_marks`): a base table that is behind them went back. Reads then
leave out the generations in between, and jobs are held, until a person decides:

* *keep*: the rows of the base table count, and the generations are not merged again. Their marks
  get a ``first`` generation behind them, then the details get the progress of the marks;
* *discard* does the same, and gives up the generations that are flushed and were never merged: they
  may be older than rows that were written to the base table directly while it had no MemWAL;
* *merge again*: the generations are pending again. Their marks get a new era with the progress of
  the base table. That is refused unless all of them are still stored.

A restore by memwal is the same after its first commit: it stores the marks, commits the old version
as the newest by compare-and-swap, and decides; region specs and settings of writers stay as they
are now, or as another process makes them between the two commits. Processes that pause, die or
repeat:

* a process dies after any step: the base table is behind the marks or it is not. If it is, all is
  held, and the decision is made again, by either choice;
* a process repeats: nothing is lost any more, and it changes nothing;
* a process that keeps the rows pauses, and another one has the generations merged again: the marks
  are read after the version on which the details are committed, and the other process commits a
  version after its marks. The commit is refused, and the next attempt finds nothing lost;
* a process that merges again pauses before it writes its marks, and another one keeps the rows: the
  base table is ahead of the marks then, which is normal. Nothing is merged again;
* a collection that read its pins before the base table went back drops generations: it looks for a
  new era after it read the manifest that it replaces. The decision to merge again writes the era,
  then a version of each manifest, and then looks whether all generations are named. So either the
  collection sees the era, or the decision misses a generation and takes itself back;
* a merge that was planned before: its selection has the marks of that time, and it ends when the
  base table is behind them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from lance.dataset import LanceOperation

from memwal.base_table.commit import commit_details, commit_strictly, newest_spec
from memwal.base_table.commit_records import was_taken_away
from memwal.base_table.region_marks import (
    UNMARKED,
    RegionMark,
    lost_progress,
    marks_of,
    raise_marks,
    write_marks,
)
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import ConflictError, InvalidInputError
from memwal.format.memwal_index import IndexDetails
from memwal.format.region_manifest import RegionManifest, RegionStatus
from memwal.jobs.job import JobResult
from memwal.jobs.unflushed import find_unflushed
from memwal.reader.sources.snapshot import open_version
from memwal.region.manifest_store import RegionManifestStore, read_manifests
from memwal.region.spec_fields import is_pending
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore
from memwal.util.retry import LostRaceError, retry_lost_races

Result = TypeVar("Result")

# Fields of the details that a restore does not bring back; those of one line change together.
_SETTINGS: Final = (
    ("region_specs", "num_regions"),
    ("snapshot_ts_millis", "inline_snapshots"),
    ("writer_config_defaults",),
)


@dataclass(frozen=True, slots=True)
class _Loss:
    """Progress that the base table lost, or would lose by a restore."""

    merged: Mapping[UUID, int]  # progress of the base table after the restore
    lost: Mapping[UUID, int]  # how far the regions were merged that were merged further
    marks: Mapping[UUID, RegionMark]

    def missing(self, manifests: Mapping[UUID, RegionManifest]) -> dict[UUID, int]:
        """Return the first generation of each region that is lost and not stored any more."""
        missing = {}
        for region_id, before in self.lost.items():
            manifest = manifests.get(region_id)
            after = self.merged.get(region_id, 0)
            stored = [f.generation for f in manifest.flushed] if manifest is not None else []
            # Collections drop the oldest generations. A number that lacks after one that is stored
            # was skipped: it had no rows.
            if min((n for n in stored if n > after), default=before + 1) > after + 1:
                missing[region_id] = after + 1
        return missing


def restore(
    location: TableLocation,
    version: int | str | None = None,
    *,
    merge_again: bool = False,
    discard_pending: bool = False,
    dry_run: bool = False,
) -> JobResult:
    """Restore the base table to a version, or decide after another client restored one.

    The rows of the base table are those of the version then. Rows that were never merged, flushed
    or not, are seen over them as before. ``version`` is a number or a tag, and has the columns of
    now; without it, the rows stay as they are. Generations that were merged since, and that are not
    in the base table any more, are given up, unless ``merge_again``. With ``discard_pending``, so
    are generations that are flushed and were never merged; rows that are not flushed stay in the
    log. With ``dry_run``, only count the changes that would be made.

    Returns
    -------
    JobResult
        Metrics ``lost_regions``, whose progress goes back, their ``lost_generations`` that are
        still stored, and the ``pending_generations`` and ``unflushed_regions`` with rows that were
        never merged.

    Raises
    ------
    InvalidInputError
        The version cannot be restored, or not all generations can be merged again. Nothing was
        changed.
    ConflictError
        Other commits won the race in every attempt.
    """
    started = time.monotonic()
    if merge_again and discard_pending:
        raise InvalidInputError("generations are either merged again or discarded; name one")
    target = None if version is None else open_version(location, version)
    commits = 0
    current = open_base(location)
    current.require_mem_wal()
    loss = _loss(current, target)
    manifests = read_manifests(location.store)
    if merge_again:
        _check(current, loss, manifests)
    metrics = _count(location.store, loss, manifests)
    is_unclear = bool(loss.lost) or was_taken_away(current)
    if not dry_run:
        before = None
        if target is not None:
            before, commits = _retry(location, partial(_restore_rows, location, target))
        commits += _retry(
            location,
            partial(
                _decide,
                location,
                before,
                target,
                merge_again=merge_again,
                discard_pending=discard_pending,
            ),
        )
    return JobResult(
        job="restore",
        table=location.uri,
        version=open_base(location).version,
        commits=commits,
        seconds=time.monotonic() - started,
        metrics=metrics,
        warnings=_warnings(metrics) if is_unclear and not discard_pending else (),
    )


def _retry(location: TableLocation, attempt: Callable[[], Result]) -> Result:
    return retry_lost_races(
        attempt,
        exhausted=ConflictError(
            f"other commits to {location} came first in each attempt; try again"
        ),
    )


def _loss(base: BaseTable, target: BaseTable | None) -> _Loss:
    """Return the loss of merged generations, or that of a restore of ``target``."""
    marks = marks_of(base)
    if target is None:
        merged = base.details.merged
        return _Loss(merged, lost_progress(marks, merged), marks)
    _check_target(base, target)
    merged = target.details.merged
    before = {**base.details.merged, **lost_progress(marks, base.details.merged)}
    lost = {r: number for r, number in before.items() if number > merged.get(r, 0)}
    return _Loss(merged, lost, marks)


def _check_target(base: BaseTable, target: BaseTable) -> None:
    # Lance restores the fields of a version that it knows.
    target.check_changeable()
    if target.index is None:
        raise InvalidInputError(
            f"MemWAL was not enabled at version {target.version} of {base.location}; write the "
            f"rows of that version again instead: table.at({target.version}).scan()"
        )
    if not target.identified_schema.equals(base.identified_schema, check_metadata=True):
        raise InvalidInputError(
            f"version {target.version} of {base.location} has other columns than the table has "
            f"now; write its rows again instead: table.at({target.version}).scan()"
        )


def _check(base: BaseTable, loss: _Loss, manifests: Mapping[UUID, RegionManifest]) -> None:
    """Raise InvalidInputError if generations cannot be merged again.

    They are not stored, or their region was sealed: other regions may have newer rows of their keys
    by now, which generations of a sealed region would hide until they are merged. While a new spec
    is pending, its regions have no rows yet.
    """
    newest = newest_spec(base)
    for region_id in loss.lost if newest is None or not is_pending(newest) else ():
        manifest = manifests.get(region_id)
        if manifest is not None and manifest.status == RegionStatus.SEALED:
            raise InvalidInputError(
                f"region {region_id} is sealed, and other regions may have newer rows of its keys: "
                "its generations cannot be merged again. Keep the rows of the base table, or "
                "restore a version since the region was sealed"
            )
    for region_id, number in loss.missing(manifests).items():
        raise InvalidInputError(
            f"generation {number} of region {region_id} was merged and collected: it cannot be "
            "merged again. Keep the rows of the base table, or restore a version that has it"
        )


def _restore_rows(location: TableLocation, target: BaseTable) -> tuple[BaseTable, int]:
    """Make a version the newest one; return the one that was the newest, and the commits.

    The marks are stored first: afterwards, nothing else tells which generations were merged.
    """
    base = open_base(location)
    base.require_mem_wal()
    _check_target(base, target)
    raise_marks(location.store, marks_of(base), base.details.merged)
    if target.version == base.version:
        return base, 0
    commit_strictly(base, LanceOperation.Restore(target.version))
    return base, 1


def _decide(
    location: TableLocation,
    before: BaseTable | None,
    target: BaseTable | None,
    *,
    merge_again: bool,
    discard_pending: bool,
) -> int:
    """Decide about the lost generations, and return the number of commits.

    If ``target`` was restored, region specs and settings become those of the version ``before``.
    """
    base = open_base(location)
    base.require_mem_wal()
    loss = _loss(base, None)
    if discard_pending:
        loss = _with_pending(loss, read_manifests(location.store))
    details = base.details
    if before is not None and target is not None:
        details = _keep_settings(details, before.details, target.details)
    if loss.lost and merge_again:
        _check(base, loss, read_manifests(location.store, loss.lost))
        _merge_again(location.store, loss)
    elif loss.lost:
        write_marks(
            location.store,
            {
                region_id: replace(
                    loss.marks.get(region_id, UNMARKED), first=number + 1, merged=number
                )
                for region_id, number in loss.lost.items()
            },
        )
        details = replace(details, merged={**details.merged, **loss.lost})
    if was_taken_away(base):
        # An entry for each region that exists, of generation 0: MemWAL that is enabled anew has no
        # entry, by which the next decision is told from this one.
        regions = dict.fromkeys(read_manifests(location.store), 0)
        details = replace(details, merged={**regions, **details.merged})
    if not loss.lost and details == base.details:
        return 0
    # Also if the details stay as they are: a process that decides differently has to see the marks,
    # and so do readers, which read them once for each version.
    commit_details(base, details)
    return 1


def _keep_settings(
    details: IndexDetails, before: IndexDetails, target: IndexDetails
) -> IndexDetails:
    """Replace the region specs and settings that a restore brought back by those before it.

    Those that are not as in ``target`` any more were changed by another process since the restore,
    and stay: clients may have acted on them.
    """
    for names in _SETTINGS:
        if all(getattr(details, name) == getattr(target, name) for name in names):
            details = replace(details, **{name: getattr(before, name) for name in names})
    return details


def _with_pending(loss: _Loss, manifests: Mapping[UUID, RegionManifest]) -> _Loss:
    """Count generations that are flushed now, and were never merged, as lost too."""
    newest = {r: max(f.generation for f in m.flushed) for r, m in manifests.items() if m.flushed}
    pending = {r: n for r, n in newest.items() if n > loss.lost.get(r, loss.merged.get(r, 0))}
    return replace(loss, lost={**loss.lost, **pending})


def _merge_again(store: ObjectStore, loss: _Loss) -> None:
    """Write marks by which lost generations are pending, unless a concurrent collection drops them.

    Raises LostRaceError if it does; they are lost then as before.
    """
    pending = {
        region_id: RegionMark(
            era=mark.era + 1,
            first=min(mark.first, loss.merged.get(region_id, 0) + 1),
            merged=loss.merged.get(region_id, 0),
        )
        for region_id, mark in loss.marks.items()
        if region_id in loss.lost
    }
    write_marks(store, pending)
    # A collection that did not see the new era replaces the manifest before this or not at all.
    manifests = {
        region_id: RegionManifestStore(store, region_id).update(lambda latest: latest)
        for region_id in pending
    }
    missing = loss.missing(manifests)
    write_marks(
        store,
        {
            region_id: replace(pending[region_id], era=pending[region_id].era + 1, merged=number)
            for region_id, number in loss.lost.items()
            if region_id in missing
        },
    )
    if missing:
        raise LostRaceError("a collection dropped generations that were to be merged again")


def _count(
    store: ObjectStore, loss: _Loss, manifests: Mapping[UUID, RegionManifest]
) -> dict[str, int]:
    lost = pending = 0
    for region_id, manifest in manifests.items():
        after = loss.merged.get(region_id, 0)
        before = loss.lost.get(region_id, after)
        lost += sum(after < f.generation <= before for f in manifest.flushed)
        pending += sum(f.generation > before for f in manifest.flushed)
    unflushed = [m for m in manifests.values() if find_unflushed(store, m) is not None]
    return {
        "lost_regions": len(loss.lost),
        "lost_generations": lost,
        "pending_generations": pending,
        "unflushed_regions": len(unflushed),
    }


def _warnings(metrics: Mapping[str, int]) -> tuple[str, ...]:
    pending, unflushed = metrics["pending_generations"], metrics["unflushed_regions"]
    if not (pending or unflushed):
        return ()
    return (
        f"{pending} generations, and unflushed rows of {unflushed} regions, were never merged: "
        "they count as newer than the rows of the base table, also than those that were written to "
        "it directly since",
    )
