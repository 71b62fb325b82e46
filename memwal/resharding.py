"""Divide a table into regions by another region spec, or by its first one.

A key must never have unmerged rows in two regions, since regions merge in any order and the older
row could win. The new spec is therefore stored as *pending* first, the regions of the earlier specs
are emptied, sealed and merged, and only then the new spec comes into force. Between the two commits
the table takes no writes; what was acknowledged before is in the base table after. Every step can
be repeated, so a call that died is finished by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from memwal.base_table.details import update_details
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    RegionFencedError,
    RegionSealedError,
    TableSetupError,
)
from memwal.format.memwal_index import IndexDetails, StoredRegionSpec
from memwal.format.region_manifest import RegionManifest, RegionStatus
from memwal.jobs.job import TaskRunner, run_in_process
from memwal.jobs.merge.job import merge
from memwal.jobs.options import MergeOptions
from memwal.lsm.wal.claim import seal_region
from memwal.region.manifest_store import RegionManifestStore, read_manifests
from memwal.region.router import RegionAssignment, Router
from memwal.region.spec import RegionSpec
from memwal.region.spec_fields import is_pending, without_pending
from memwal.storage.location import TableLocation
from memwal.table import Table
from memwal.writer.region_writer.options import WriterOptions
from memwal.writer.table_writer import TableWriter

logger = logging.getLogger(__name__)

# Each region that is emptied holds a MemTable in memory.
_EMPTIED_AT_ONCE: Final = 16

# A region that is claimed by somebody else in between is emptied again.
_ROUNDS: Final = 10


def add_region_spec(
    uri: str,
    spec: RegionSpec,
    *,
    storage_options: Mapping[str, str] | None = None,
    run: TaskRunner = run_in_process,
) -> Table:
    """Divide a table into regions in another way from now on.

    Writers that are open go on until their regions are emptied, and then fail with
    :class:`RegionFencedError` or :class:`RegionSealedError`; new ones are refused until the spec
    is in force. Most of the backlog is merged before that, so that the pause is short. LanceDB and
    pylance no longer write to a table that has several specs; close their writers before.

    Parameters
    ----------
    uri : str
    spec : RegionSpec
        How new rows map to regions. Its id is the highest one so far plus 1.
    run : callable
        Runs the merge tasks.
    storage_options : mapping of str to str, optional
        As Lance takes them; they go wherever the table goes.

    Returns
    -------
    Table
        With the spec in force. When it is the newest one already, nothing happens.

    Raises
    ------
    InvalidInputError
        The spec does not fit the table.
    TableSetupError
        There is no table or no MemWAL; or another spec is on its way, which has to be finished.
    CorruptDataError
        A generation of an earlier region cannot be merged. The table takes no writes until it is
        repaired and this is called again.
    ConflictError
        Other processes were always faster; call again.
    """
    location = TableLocation(uri, storage_options or {})
    base = open_base(location)
    base.require_mem_wal()
    spec.check_keys(base.primary_key)
    spec.bind(base.field_ids(), base.schema)
    newest = _newest(base)
    if newest is None or not is_pending(newest):
        if newest is not None and _is(newest, spec, base):
            return Table(location)
        merge(location, MergeOptions(run=run))
    spec_id = _announce(location, spec)
    _seal_all(location, spec_id)
    result = merge(location, MergeOptions(run=run))
    if result.problems:
        raise CorruptDataError(
            f"{location} takes no writes until its earlier regions are merged: "
            f"{'; '.join(result.problems)}; repair them and call add_region_spec again"
        )
    _put_in_force(location, spec_id)
    return Table(location)


def _newest(base: BaseTable) -> StoredRegionSpec | None:
    return max(base.details.region_specs, key=lambda stored: stored.spec_id, default=None)


def _is(stored: StoredRegionSpec, spec: RegionSpec, base: BaseTable) -> bool:
    bound = spec.bind(base.field_ids(), base.schema, spec_id=stored.spec_id)
    pending = replace(spec, pending=True).bind(
        base.field_ids(), base.schema, spec_id=stored.spec_id
    )
    return stored in (bound, pending)


def _announce(location: TableLocation, spec: RegionSpec) -> int:
    """Store the spec as pending: from then on nobody may begin to use an earlier one."""

    def change(base: BaseTable) -> IndexDetails:
        newest = _newest(base)
        if newest is not None and is_pending(newest):
            if not _is(newest, spec, base):
                raise TableSetupError(
                    f"{location} is on its way to another region spec, {_shown(newest, base)}; "
                    "finish that one first"
                )
            return base.details
        if newest is not None and _is(newest, spec, base):
            return base.details
        stored = replace(spec, pending=True).bind(
            base.field_ids(), base.schema, spec_id=newest.spec_id + 1 if newest is not None else 1
        )
        return replace(base.details, region_specs=(*base.details.region_specs, stored))

    newest = _newest(update_details(location, change))
    if newest is None:
        raise ConflictError(f"the region specs of {location} were taken away meanwhile")
    return newest.spec_id


def _shown(stored: StoredRegionSpec, base: BaseTable) -> str:
    names = {field_id: name for name, field_id in base.field_ids().items()}
    return str(RegionSpec.from_stored(stored, names))


def _seal_all(location: TableLocation, spec_id: int) -> None:
    """Seal every region of another spec, with nothing in its log that is not flushed."""
    base = open_base(location)
    for assignment, earlier in _known_regions(base, spec_id):
        _seal_unclaimed(location, assignment, earlier)
    problem: MemWalError | None = None
    for _ in range(_ROUNDS):
        active = [
            manifest.region_id
            for manifest in read_manifests(location.store).values()
            if _is_active(manifest, spec_id)
        ]
        if not active:
            return
        for start in range(0, len(active), _EMPTIED_AT_ONCE):
            try:
                _seal(base, active[start : start + _EMPTIED_AT_ONCE], spec_id)
            except (RegionFencedError, RegionSealedError, InvalidInputError) as error:
                logger.info("regions of %s are emptied again: %s", location, error)
                problem = error
    raise ConflictError(
        f"regions of {location} were claimed while they were emptied, {_ROUNDS} times; stop their "
        "writers and call add_region_spec again"
    ) from problem


def _known_regions(base: BaseTable, spec_id: int) -> list[tuple[RegionAssignment, int]]:
    names = {field_id: name for name, field_id in base.field_ids().items()}
    known: list[tuple[RegionAssignment, int]] = []
    for stored in base.details.region_specs:
        if stored.spec_id != spec_id:
            spec = RegionSpec.from_stored(stored, names)
            router = Router(spec, base.schema)
            known += [(region, stored.spec_id) for region in router.assignments() or ()]
    return known


def _seal_unclaimed(location: TableLocation, assignment: RegionAssignment, spec_id: int) -> None:
    """Leave no region of an earlier spec for somebody to claim for the first time."""
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
        logger.info("region %s was claimed just now; it is emptied", assignment.region_id)


def _is_active(manifest: RegionManifest, spec_id: int) -> bool:
    return manifest.spec_id != spec_id and manifest.status == RegionStatus.ACTIVE


def _seal(base: BaseTable, regions: Sequence[UUID], spec_id: int) -> None:
    """Claim regions, which fences their writers, replay and flush them, and seal them."""
    # The writer is given its regions; the spec that it would route rows by is of no account.
    unsharded = RegionSpec.unsharded().bind({}, base.schema, spec_id=spec_id)
    details = replace(base.details, region_specs=(unsharded,))
    with TableWriter(replace(base, details=details), options=WriterOptions()) as writer:
        writer.claim([RegionAssignment(region_id) for region_id in regions])
    for region_id in regions:
        seal_region(base.location.store, region_id)


def _put_in_force(location: TableLocation, spec_id: int) -> None:
    def change(base: BaseTable) -> IndexDetails:
        for manifest in read_manifests(location.store).values():
            merged = base.details.merged.get(manifest.region_id, 0)
            if _is_active(manifest, spec_id) or (
                manifest.spec_id != spec_id
                and any(flushed.generation > merged for flushed in manifest.flushed)
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
