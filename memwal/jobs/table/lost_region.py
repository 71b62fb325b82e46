"""Start a region over whose folder, manifests or newest manifest are lost for good.

A person decides this; no other job does. Rows of the region that the base table does not have are
given up. The new incarnation of the region has generations, epochs, versions and log positions that
no earlier one can have: they begin at the next multiple of 2**32. Objects of an earlier incarnation
that come back are therefore told from it. If it takes the place of the new one, every read and
claim refuses it; if it is copied beside, nothing reads it, and no collection deletes it.

The steps are the mark with a new era, the first entry of the log, and the manifest. A process that
pauses, dies or repeats at each of them:

* it dies before the manifest: the region is lost as before, and a repetition takes the next
  multiple. An entry without a manifest is one that no process reads;
* it pauses before the manifest, and another process starts the region over during the pause: the
  manifest that it stores then has a lower version than that of the other one, and is ignored;
* a writer of the lost incarnation still runs: its epoch is lower, so that it is fenced by its next
  look at the manifest.
"""

from __future__ import annotations

import time
from uuid import UUID

from memwal.base_table.region_marks import UNMARKED, RegionMark, read_mark, write_marks
from memwal.base_table.region_snapshot import read_usable_snapshot
from memwal.base_table.required_regions import region_error
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.paths import manifest_key, wal_dir
from memwal.format.region_manifest import INCARNATION_NUMBERS, RegionManifest
from memwal.format.wal_encoder import encode_sentinel
from memwal.jobs.job import JobResult
from memwal.lsm.wal.log import new_writer_id, put_entry
from memwal.region.manifest_store import RegionManifestStore
from memwal.region.router import RegionAssignment, Router
from memwal.region.spec import RegionSpec
from memwal.storage.location import TableLocation


def start_over(location: TableLocation, region_id: UUID, *, dry_run: bool = True) -> JobResult:
    """Give up the unmerged rows of a lost region, and start it over.

    By default a dry run. Stop the writers of the region before. Readers that use the region
    snapshot (``Table.at_most``) need a new one afterwards.

    The result has the metrics ``merged_generation``, up to which the base table has the rows of the
    region, and ``first_generation`` of the new incarnation. Raises InvalidInputError if the region
    is not lost, or the table never had it.
    """
    started = time.monotonic()
    base = open_base(location)
    base.require_mem_wal()
    manifests = RegionManifestStore(location.store, region_id)
    mark = read_mark(location.store, region_id)
    progress = base.details.merged.get(region_id, 0)
    left = _read_lost(location, manifests, mark, progress)
    mark = mark or UNMARKED
    merged = max(mark.merged, progress)
    used = max(mark.first, merged, *manifests.list_versions())
    before = (used // INCARNATION_NUMBERS + 1) * INCARNATION_NUMBERS
    first = before + 1
    if not dry_run:
        spec_id, fields = _identity(base, region_id, left)
        write_marks(location.store, {region_id: RegionMark(mark.era + 1, first, merged)})
        sentinel = encode_sentinel(writer_epoch=first, writer_id=new_writer_id())
        put_entry(location.store, region_id, before, sentinel, first)
        manifest = RegionManifest(
            region_id=region_id,
            version=first,
            writer_epoch=first,
            current_generation=first,
            replay_after=before,
            wal_last_seen=before,
            spec_id=spec_id,
            region_fields=fields,
        )
        # Not by a commit, which requires the version before.
        location.store.create(manifest_key(region_id, first), manifest.encode())
        manifests.refresh_hint(first)
    return JobResult(
        job="recover",
        table=location.uri,
        version=base.version,
        seconds=time.monotonic() - started,
        metrics={"merged_generation": merged, "first_generation": first},
        warnings=(
            f"rows of region {region_id} that were not merged, in generations after {merged} and "
            f"in its log, {'would be' if dry_run else 'are'} given up; write them again",
        ),
    )


def _read_lost(
    location: TableLocation,
    manifests: RegionManifestStore,
    mark: RegionMark | None,
    progress: int,
) -> RegionManifest | None:
    """Return the newest manifest that is left of a lost region, or raise InvalidInputError."""
    region_id = manifests.region_id
    try:
        newest = manifests.read_latest()
    except CorruptDataError:
        # The newest manifest is lost.
        versions = sorted(manifests.list_versions())
        return manifests.read(versions[-1]) if versions else None
    if region_error(location.store, region_id, newest, mark, progress) is not None:
        return newest
    if newest is None:
        if next(iter(location.store.list(wal_dir(region_id))), None) is not None:
            # Never merged, and without a mark: a claim refuses the log.
            return None
        raise InvalidInputError(
            f"the table never had a region {region_id}; memwal verify names regions that are lost"
        )
    raise InvalidInputError(
        f"region {region_id} is not lost: its manifest is at generation "
        f"{newest.current_generation}. To give up the rows of its log only: memwal abandon"
    )


def _identity(
    base: BaseTable, region_id: UUID, left: RegionManifest | None
) -> tuple[int, tuple[tuple[str, bytes], ...]]:
    """Return the spec and the region values that the lost manifest had.

    They are taken from a manifest that is left, from the region snapshot, from the regions that a
    spec knows in advance, or from rows of the base table. A region without any of these had no row
    there, and is like one that was written by hand.
    """
    snapshot = read_usable_snapshot(base.location.store, base.details) or {}
    manifest = left or snapshot.get(region_id)
    if manifest is not None:
        return manifest.spec_id, manifest.region_fields
    names = {field_id: name for name, field_id in base.field_ids().items()}
    for stored in reversed(base.details.region_specs):
        spec = RegionSpec.from_stored(stored, names)
        found = _find_assignment(base, Router(spec, base.schema), spec, region_id)
        if found is not None:
            return stored.spec_id, found.field_values
    return 0, ()


def _find_assignment(
    base: BaseTable, router: Router, spec: RegionSpec, region_id: UUID
) -> RegionAssignment | None:
    known = router.assignments()
    if known is not None:
        return next((a for a in known if a.region_id == region_id), None)
    for batch in base.dataset.to_batches(columns=list(spec.columns)):
        for assignment, _ in router.route(batch):
            if assignment.region_id == region_id:
                return assignment
    return None
