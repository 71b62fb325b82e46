"""First stage of a divided merge: the newest rows of some regions become new fragments.

No version of the base table names them yet. Their keys, and the keys of tombstones, go into a file
of the run, where the second stage finds what to delete: :mod:`memwal.jobs.merge.match`.

A region that is larger than a task is divided by its rows. Each of its tasks reads its own rows,
and the keys of all later ones: :mod:`memwal.jobs.merge.region_rows`.

In a table with stable row ids, a task stores the keys only. When they were matched, a second task
writes the rows: :mod:`memwal.jobs.merge.kept_ids`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from memwal.base_table.blobs import write_options
from memwal.base_table.commit import write_rows_behind
from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import MemWalError
from memwal.inputs.dictionaries import divide_by_values
from memwal.jobs.job import SkippedRegion
from memwal.jobs.merge.kept_ids import KeptIds, read_ids, with_ids
from memwal.jobs.merge.picker import Part, RegionSelection, stop_before
from memwal.jobs.merge.region_rows import (
    RegionReader,
    UnreadableGenerationError,
    open_region,
    skip_from,
)
from memwal.jobs.merge.run_files import KeyFile, read_decision, write_keys
from memwal.jobs.progress import NO_METER, Meter
from memwal.storage.location import TableLocation
from memwal.util.arrays import Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """Regions, or a share of one, whose newest rows one worker writes."""

    location: TableLocation
    version: int
    run_id: UUID
    number: int
    part: Part
    keys_only: bool = False
    # Of each region the file that tells which rows enter; None without a quality gate.
    decisions: Mapping[UUID, str] | None = None
    kept: tuple[KeptIds, ...] = ()  # ids of the rows whose keys were matched


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Fragments and keys that a task wrote."""

    task: RewriteTask
    skipped: Mapping[UUID, SkippedRegion]  # generations that could not be read, or only in part
    regions: tuple[RegionSelection, ...] = ()  # rows that were read
    fragments: tuple[FragmentMetadata, ...] = ()
    keys: KeyFile | None = None
    rows_upserted: int = 0
    bytes_written: int = 0


def run_rewrite_task(task: RewriteTask, *, meter: Meter = NO_METER) -> Rewritten:
    """Write the newest rows of the regions, up to the first generation that cannot be read.

    Safe to repeat: a repetition writes other files.
    """
    base = open_base(task.location, version=task.version)
    skipped: dict[UUID, SkippedRegion] = {}
    regions: Sequence[RegionSelection] = task.part.regions
    while True:
        readers = _open_regions(base, regions, task, skipped)
        try:
            if skipped and task.decisions is not None:
                # The gate has to decide anew, without the generation that cannot be read.
                readers = []
            fragments = []
            if not task.keys_only:
                rows = [(reader, reader.upserted) for reader in readers]
                fragments = _write(base, rows, task.part.bytes)
            break
        except UnreadableGenerationError as error:
            # Its keys could be read, and its rows cannot: all start over without it.
            skip_from(base, error.region, error.generation, error.reason, skipped)
            regions = stop_before(regions, {error.region.region_id: error.generation})
    keys = None
    if readers and base.primary_key:
        keys = pa.concat_tables([reader.keys() for reader in readers])
    stored = None
    if keys is not None and keys.num_rows:
        deleted = np.concatenate([reader.deleted[reader.newest] for reader in readers])
        stored = write_keys(task.location, task.run_id, task.number, keys, deleted)
    if not task.keys_only:
        meter.advance(task.part.bytes)
    return Rewritten(
        task=task,
        regions=tuple(reader.selection for reader in readers),
        skipped=skipped,
        fragments=tuple(fragments),
        keys=stored,
        rows_upserted=sum(int(reader.upserted.sum()) for reader in readers),
        bytes_written=base.stored.io_stats_snapshot().written_bytes,
    )


def run_rows_task(task: RewriteTask, *, meter: Meter = NO_METER) -> Rewritten:
    """Write rows whose keys were matched: first updated rows, with their ids, then new rows.

    Safe to repeat: a repetition writes other files. Writes none if a generation cannot be read any
    more.
    """
    base = open_base(task.location, version=task.version)
    skipped: dict[UUID, SkippedRegion] = {}
    readers = _open_regions(base, task.part.regions, task, skipped)
    if skipped:
        return Rewritten(task=task, skipped=skipped)
    store = task.location.store
    ids, is_kept = read_ids(store, task.kept, sum(int(r.newest.sum()) for r in readers))
    replacing, new, kept_ids = [], [], [np.empty(0, np.uint64)]
    start = 0
    for reader in readers:
        # The keys of a region are those of its newest rows, in their order.
        rows = np.flatnonzero(reader.newest)
        of_region = slice(start, start + len(rows))
        start += len(rows)
        entering = is_kept[of_region] & ~reader.deleted[rows]
        replaces = np.zeros(len(reader.newest), np.bool_)
        replaces[rows[entering]] = True
        replacing.append((reader, replaces))
        new.append((reader, reader.upserted & ~replaces))
        kept_ids.append(ids[of_region][entering])
    try:
        fragments = _write(base, [*replacing, *new], task.part.bytes)
    except UnreadableGenerationError as error:
        skip_from(base, error.region, error.generation, error.reason, skipped)
        return Rewritten(task=task, skipped=skipped)
    meter.advance(task.part.bytes)
    identified = with_ids(fragments, np.concatenate(kept_ids))
    return Rewritten(
        task=task,
        skipped={},
        fragments=tuple(identified),
        bytes_written=base.stored.io_stats_snapshot().written_bytes,
    )


def _open_regions(
    base: BaseTable,
    regions: Sequence[RegionSelection],
    task: RewriteTask,
    skipped: dict[UUID, SkippedRegion],
) -> list[RegionReader]:
    """Read the keys of all regions, each up to the first generation that cannot be read."""
    readers = []
    for region in regions:
        entering = None
        if task.decisions is not None:
            entering = read_decision(task.location.store, task.decisions[region.region_id])
        reader = open_region(base, region, task.part.share, skipped, entering=entering)
        if reader is not None:
            readers.append(reader)
    return readers


def _write(
    base: BaseTable, chosen: Sequence[tuple[RegionReader, Mask]], size: int
) -> list[FragmentMetadata]:
    """Write rows of some regions as new fragments, in this order; ``size`` is about their bytes.

    What they read is counted by ``base.dataset``, and what is written by ``base.stored``.
    """
    if not any(mask.any() for _, mask in chosen):
        return []
    failure: list[UnreadableGenerationError] = []

    def rows() -> Iterator[pa.RecordBatch]:
        try:
            for reader, mask in chosen:
                yield from reader.storable(mask)
        except UnreadableGenerationError as error:
            # Lance would tell of it in words of its own.
            failure.append(error)
            raise

    try:
        with (
            lance_errors(f"writing rows of {base.location}"),
            write_rows_behind(base.location, size),
        ):
            reader = pa.RecordBatchReader.from_batches(base.schema, rows())
            written = [
                fragment
                for part in divide_by_values(reader, base.stored.schema)
                for fragment in write_fragments(
                    part,
                    base.stored,
                    mode="append",
                    storage_options=base.location.lance_options(),
                    **write_options(base.schema),
                )
            ]
    except MemWalError:
        if failure:
            raise failure[0] from None
        raise
    return written
