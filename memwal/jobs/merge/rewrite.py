"""First stage of a divided merge: the newest rows of some regions become new fragments.

No version of the base table names them yet. Their keys, and the keys of tombstones, go into a file
of the run, where the second stage finds what to delete: :mod:`memwal.jobs.merge.match`.

A region that is larger than a task is divided by the hashes of its keys. Each of its tasks reads
all its keys, and its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import MemWalError, ObjectNotFoundError
from memwal.jobs.job import SkippedRegion
from memwal.jobs.merge.picker import RegionSelection, Share, still_pending
from memwal.jobs.merge.region_rows import (
    RegionReader,
    UnreadableGenerationError,
    read_generation_keys,
)
from memwal.jobs.merge.run_files import KeyFile, write_keys
from memwal.jobs.progress import NO_METER, Meter, NoMeter
from memwal.storage.location import TableLocation
from memwal.util.retry import LostRaceError


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """Regions, or a share of one, whose newest rows one worker writes."""

    location: TableLocation
    version: int
    run_id: UUID
    number: int
    regions: tuple[RegionSelection, ...]
    share: Share

    @property
    def bytes(self) -> int:
        """Size in memory of the rows of the task, before the newest of each key are found."""
        return sum(region.bytes for region in self.regions) // self.share.of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Fragments and keys that a task wrote."""

    regions: tuple[RegionSelection, ...]  # what was read
    skipped: Mapping[UUID, SkippedRegion]  # what could not be read, or only in part
    fragments: tuple[FragmentMetadata, ...]
    keys: KeyFile | None
    rows_upserted: int


def run_rewrite_task(task: RewriteTask, *, meter: Meter | NoMeter = NO_METER) -> Rewritten:
    """Write the newest rows of the regions, up to the first generation that cannot be read.

    Safe to repeat: a repetition writes other files, and replaces the file of the keys.
    """
    base = open_base(task.location, version=task.version)
    skipped: dict[UUID, SkippedRegion] = {}
    regions: Sequence[RegionSelection] = task.regions
    while True:
        readers, regions = _open_regions(base, regions, task.share, skipped)
        try:
            fragments = _write(base, readers)
            break
        except UnreadableGenerationError as error:
            # Its keys could be read, and its rows cannot: all start over without it.
            regions = _stop(base, regions, error.region_id, error.generation, error.reason, skipped)
    keys = pa.concat_tables([reader.keys() for reader in readers]) if readers else None
    stored = None
    if keys is not None and keys.num_rows:
        deleted = np.concatenate([reader.deleted[reader.newest] for reader in readers])
        stored = write_keys(task.location.store, task.run_id, task.number, keys, deleted)
    meter.advance(task.bytes)
    return Rewritten(
        regions=tuple(regions),
        skipped=skipped,
        fragments=tuple(fragments),
        keys=stored,
        rows_upserted=sum(int(reader.upserted.sum()) for reader in readers),
    )


def _open_regions(
    base: BaseTable,
    regions: Sequence[RegionSelection],
    share: Share,
    skipped: dict[UUID, SkippedRegion],
) -> tuple[list[RegionReader], list[RegionSelection]]:
    """Read the keys of all regions, each up to the first generation that cannot be read."""
    readers, read = [], []
    for region in regions:
        parts = []
        for generation in region.generations:
            try:
                parts.append(read_generation_keys(base, region.region_id, generation, share))
            except MemWalError as error:
                (region,) = _stop(
                    base, [region], region.region_id, generation.number, error, skipped
                ) or (replace(region, generations=()),)
                break
        if parts:
            readers.append(RegionReader(base, region.region_id, parts))
            read.append(region)
    return readers, read


def _stop(
    base: BaseTable,
    regions: Sequence[RegionSelection],
    region_id: UUID,
    generation: int,
    reason: MemWalError,
    skipped: dict[UUID, SkippedRegion],
) -> list[RegionSelection]:
    """Return the regions without this generation of one, and all later ones."""
    if isinstance(reason, ObjectNotFoundError):
        merged = open_base(base.location).details.merged
        if still_pending(regions, merged) != list(regions):
            raise LostRaceError(str(reason)) from reason
    skipped[region_id] = SkippedRegion(
        region_id=str(region_id), generation=generation, reason=str(reason)
    )
    return still_pending(regions, {}, stops={region_id: generation})


def _write(base: BaseTable, readers: Sequence[RegionReader]) -> list[FragmentMetadata]:
    """Write the rows that enter as new fragments."""
    if not any(reader.upserted.any() for reader in readers):
        return []
    failure: list[UnreadableGenerationError] = []

    def rows() -> Iterator[pa.RecordBatch]:
        try:
            for reader in readers:
                yield from reader.storable()
        except UnreadableGenerationError as error:
            # Lance would tell of it in words of its own.
            failure.append(error)
            raise

    try:
        with lance_errors(f"writing rows of {base.location}"):
            written = write_fragments(
                pa.RecordBatchReader.from_batches(base.schema, rows()),
                base.dataset,
                mode="append",
                storage_options=base.location.lance_options(),
            )
    except MemWalError:
        if failure:
            raise failure[0] from None
        raise
    return list(written)
