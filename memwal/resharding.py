"""Divide a table into regions by another region spec, or by its first one.

A key must never have unmerged rows in two regions, since regions merge in any order and the older
row could win. The steps are therefore:

1. Commit the new spec as *pending*. From then on no new writer can open the table.
2. Flush, seal and merge the regions of the earlier specs. Open writers continue until their regions
   are sealed.
3. Commit the new spec as in force. All rows acknowledged before are now in the base table.

Every step can be repeated, so the next call finishes one that died.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from memwal.base_table.commit import is_same_spec, newest_spec, update_details
from memwal.base_table.region_marks import check_progress, find_lost_progress
from memwal.base_table.required_regions import read_regions
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.boundary.public import public
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    RegionFencedError,
    RegionSealedError,
    TableSetupError,
)
from memwal.format.memwal_index import IndexDetails
from memwal.format.region_manifest import RegionManifest, RegionStatus
from memwal.jobs.job import JobResult, TaskRunner, run_in_process
from memwal.jobs.merge.job import merge
from memwal.jobs.options import MergeOptions
from memwal.lsm.wal.claim import seal_region
from memwal.region.manifest_store import RegionManifestStore, read_manifests
from memwal.region.router import RegionAssignment, Router
from memwal.region.spec import RegionSpec
from memwal.region.spec_fields import is_pending, without_pending
from memwal.region.spec_text import as_region_spec
from memwal.storage.location import TableLocation
from memwal.storage.open import check_reachable
from memwal.table import Table
from memwal.writer.region_writer.options import WriterOptions
from memwal.writer.table_writer import TableWriter

logger = logging.getLogger(__name__)

# Each region that is being sealed needs a MemTable in memory.
_MAX_OPEN_REGIONS: Final = 16

# If another writer claims a region before it is sealed, sealing is repeated.
_MAX_ATTEMPTS: Final = 10


@public
def add_region_spec(
    uri: str | os.PathLike[str],
    spec: RegionSpec | str,
    *,
    storage_options: Mapping[str, str] | None = None,
    run: TaskRunner = run_in_process,
) -> Table:
    """Replace the region spec of a table, for all rows that are written from now on.

    Open writers continue until their regions are sealed, and then fail with
    :class:`RegionFencedError` or :class:`RegionSealedError`; new writers are refused until the spec
    is in force. Most of the backlog is merged before that, so that the pause is short. LanceDB and
    pylance cannot write to a table with several specs; close their writers before. If the spec is
    the newest of the table already, nothing changes.

    Parameters
    ----------
    uri, storage_options
        As for :func:`memwal.open`.
    spec : RegionSpec or str
        Rule that maps new rows to regions, as for :func:`memwal.create`. Its id becomes the
        highest existing one plus 1.
    run : callable
        Runs the merge tasks.

    Raises
    ------
    InvalidInputError
        The spec does not fit the table.
    TableSetupError
        There is no table or no MemWAL; or the change to another spec has to be finished first.
    CorruptDataError
        A generation of an earlier region cannot be merged. The table takes no writes until it is
        repaired and this function is called again.
    ConflictError
        Other processes won the race in every attempt; call again.
    """
    location = TableLocation(os.fspath(uri), storage_options or {})
    spec = as_region_spec(spec)
    check_reachable(location.store)
    base = open_base(location)
    base.require_mem_wal()
    check_progress(find_lost_progress(base))
    spec.check_keys(base.primary_key)
    spec.bind(base.field_ids(), base.schema)
    newest = newest_spec(base)
    if newest is None or not is_pending(newest):
        if newest is not None and is_same_spec(newest, spec, base):
            return Table(location)
        merge(location, MergeOptions(run=run))
    spec_id = _store_pending(location, spec)
    _seal_all(location, spec_id)
    result = merge(location, MergeOptions(run=run))
    if result.warnings:
        raise CorruptDataError(
            f"{location} takes no writes until its earlier regions are merged: "
            f"{'; '.join(result.warnings)}; repair them and call add_region_spec again"
        )
    _put_in_force(location, spec_id)
    return Table(location)


@public
def retire_region(
    uri: str | os.PathLike[str],
    region_id: UUID,
    *,
    storage_options: Mapping[str, str] | None = None,
    run: TaskRunner = run_in_process,
) -> JobResult:
    """Flush, seal and merge a region, for good: for regions that clients made for the same rows.

    Where two regions have rows of one key, nothing records which row is newer. The rows of the
    region that is retired first count as the older ones. Its writer is fenced, and no client can
    claim it again; LanceDB always writes to the regions that it derives, so keep those if it is in
    use. After an interruption call it again.

    Parameters
    ----------
    uri, storage_options
        As for :func:`memwal.open`.
    region_id : UUID
        The region to retire.
    run : callable
        Runs the merge tasks.

    Returns
    -------
    JobResult
        The result of the merge.

    Raises
    ------
    InvalidInputError
        There is no such region.
    TableSetupError
        There is no table or no MemWAL.
    CorruptDataError
        The log or a generation of the region cannot be read; repair the table and call it again.
    ConflictError
        Other writers claimed the region in every attempt; stop them and call it again.
    """
    location = TableLocation(os.fspath(uri), storage_options or {})
    check_reachable(location.store)
    base = open_base(location)
    base.require_mem_wal()
    if RegionManifestStore(location.store, region_id).read_latest() is None:
        raise InvalidInputError(
            f"{location} has no region {region_id}; memwal status lists those that were claimed"
        )
    newest = newest_spec(base)
    _seal_each(
        base, newest.spec_id if newest is not None else 0, lambda m: m.region_id == region_id
    )
    result = merge(location, MergeOptions(run=run, regions=[region_id]))
    if result.warnings:
        raise CorruptDataError(
            f"region {region_id} of {location} is sealed and not merged: "
            f"{'; '.join(result.warnings)}; repair it and retire the region again"
        )
    return result


def _store_pending(location: TableLocation, spec: RegionSpec) -> int:
    """Store the spec as pending, so that no writer starts with an earlier one; return its id."""

    def change(base: BaseTable) -> IndexDetails:
        newest = newest_spec(base)
        if newest is not None and is_pending(newest):
            if not is_same_spec(newest, spec, base):
                names = {field_id: name for name, field_id in base.field_ids().items()}
                raise TableSetupError(
                    f"{location} is changing to another region spec, "
                    f"{RegionSpec.from_stored(newest, names)}; finish that change first"
                )
            return base.details
        if newest is not None and is_same_spec(newest, spec, base):
            return base.details
        stored = replace(spec, pending=True).bind(
            base.field_ids(), base.schema, spec_id=newest.spec_id + 1 if newest is not None else 1
        )
        return replace(base.details, region_specs=(*base.details.region_specs, stored))

    newest = newest_spec(update_details(location, change))
    if newest is None:
        raise ConflictError(
            f"another process removed the region specs of {location} meanwhile; call "
            "add_region_spec again"
        )
    return newest.spec_id


def _seal_all(location: TableLocation, spec_id: int) -> None:
    """Flush and seal every region of the earlier specs."""
    base = read_regions(location).base
    for assignment, earlier in _earlier_regions(base, spec_id):
        _seal_unclaimed(location, assignment, earlier)
    _seal_each(base, spec_id, lambda manifest: manifest.spec_id != spec_id)


def _seal_each(base: BaseTable, spec_id: int, chosen: Callable[[RegionManifest], bool]) -> None:
    """Flush and seal the chosen regions; ``spec_id`` is that of the newest spec."""
    location = base.location
    problem: MemWalError | None = None
    for _ in range(_MAX_ATTEMPTS):
        active = [
            manifest.region_id
            for manifest in read_regions(location).manifests.values()
            if chosen(manifest) and manifest.status == RegionStatus.ACTIVE
        ]
        if not active:
            return
        for start in range(0, len(active), _MAX_OPEN_REGIONS):
            try:
                _flush_and_seal(base, active[start : start + _MAX_OPEN_REGIONS], spec_id)
            except (RegionFencedError, RegionSealedError, InvalidInputError) as error:
                logger.info("sealing regions of %s is repeated: %s", location, error)
                problem = error
    raise ConflictError(
        f"writers claimed regions of {location} while they were sealed, {_MAX_ATTEMPTS} times; "
        "stop these writers and try again"
    ) from problem


def _earlier_regions(base: BaseTable, spec_id: int) -> list[tuple[RegionAssignment, int]]:
    """Return the regions of all other specs, as far as they do not depend on the data."""
    names = {field_id: name for name, field_id in base.field_ids().items()}
    regions: list[tuple[RegionAssignment, int]] = []
    for stored in base.details.region_specs:
        if stored.spec_id != spec_id:
            spec = RegionSpec.from_stored(stored, names)
            router = Router(spec, base.schema)
            regions += [(region, stored.spec_id) for region in router.assignments() or ()]
    return regions


def _seal_unclaimed(location: TableLocation, assignment: RegionAssignment, spec_id: int) -> None:
    """Seal a region without a manifest, so that no writer can claim it for the first time."""
    manifests = RegionManifestStore(location.store, assignment.region_id)
    if manifests.read_latest() is not None:
        return
    sealed = RegionManifest(
        region_id=assignment.region_id,
        version=1,
        writer_epoch=1,
        spec_id=spec_id,
        region_fields=assignment.field_values,
        status=RegionStatus.SEALED,
    )
    try:
        manifests.commit(sealed)
    except ConflictError:
        logger.info("region %s was claimed meanwhile; it is flushed first", assignment.region_id)


def _flush_and_seal(base: BaseTable, regions: Sequence[UUID], spec_id: int) -> None:
    """Claim regions, which fences their writers, replay and flush them, and seal them."""
    # The writer claims the given regions and routes no rows, so its spec has no effect.
    specs = [RegionSpec.unsharded().bind({}, base.schema, spec_id=spec_id)] if spec_id else []
    details = replace(base.details, region_specs=tuple(specs))
    named = replace(base, details=details)
    with TableWriter(named, options=WriterOptions(), region=regions[0]) as writer:
        writer.claim([RegionAssignment(region_id) for region_id in regions])
    for region_id in regions:
        seal_region(base.location.store, region_id)


def _put_in_force(location: TableLocation, spec_id: int) -> None:
    def change(base: BaseTable) -> IndexDetails:
        for manifest in read_manifests(location.store).values():
            merged = base.details.merged.get(manifest.region_id, 0)
            if manifest.spec_id != spec_id and (
                manifest.status == RegionStatus.ACTIVE
                or any(flushed.generation > merged for flushed in manifest.flushed)
            ):
                raise ConflictError(
                    f"region {manifest.region_id} of {location} is not sealed and merged; call "
                    "add_region_spec again"
                )
        specs = tuple(
            without_pending(stored) if stored.spec_id == spec_id else stored
            for stored in base.details.region_specs
        )
        return replace(base.details, region_specs=specs)

    update_details(location, change)
