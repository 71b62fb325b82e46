"""Rows of one merge commit: the newest row of each key of the selected generations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import MemWalError, ObjectNotFoundError
from memwal.format.paths import TOMBSTONE
from memwal.format.values import VERSIONS_WITHOUT_NULL_STRUCTS, fill_null_structs
from memwal.jobs.job import SkippedRegion
from memwal.jobs.merge.picker import Candidate, RegionSelection, still_pending
from memwal.jobs.merge.region_rows import skip_reason
from memwal.lsm.newest_rows import newest_row_positions
from memwal.quality.checks import Mask
from memwal.quality.gate import RegionRows
from memwal.quality.ledger import Ledger
from memwal.reader.sources.generation import open_to_merge
from memwal.region.rows import key_column
from memwal.util.memory import native_memory_pool
from memwal.util.retry import LostRaceError

# merge_insert charges its memory pool with the whole buffer that a slice belongs to: the source
# therefore consists of batches that own their memory.
_SOURCE_BATCH_ROWS = 8_192
_SLACK = 1.25
# Lance decodes on several processors itself; these threads overlap what lies between.
_PARALLEL_READS = 4


@dataclass(frozen=True, slots=True)
class MergeSource:
    """Rows of one commit."""

    selections: tuple[RegionSelection, ...]  # what was read; empty if nothing could be
    upserts: pa.Table
    deletes: pa.Table  # keys only
    # Regions that were read only up to a generation, or not at all.
    skipped: Mapping[UUID, SkippedRegion]


@dataclass(frozen=True, slots=True)
class _RegionSource:
    """Rows of one region, up to the first generation that cannot be merged."""

    selection: RegionSelection
    upserts: list[pa.RecordBatch]
    deletes: pa.Table
    stopped: MemWalError | None = None


def read_source(
    base: BaseTable, selections: Sequence[RegionSelection], ledger: Ledger | None = None
) -> MergeSource:
    """Read the newest row of each key, of the rows that the ledger lets in.

    Each region is read on its own, so that a damaged one does not stop the others. It is read up to
    the first generation that cannot be read, or that the ledger keeps waiting. Raises LostRaceError
    if a generation is gone: another merger merged it and a collector deleted it.
    """
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        sources = list(pool.map(partial(_read_region, base, ledger), selections))
    skipped = {}
    for selection, source in zip(selections, sources, strict=True):
        if source.stopped is None:
            continue
        if isinstance(source.stopped, ObjectNotFoundError):
            merged = open_base(base.location).details.merged
            if still_pending([selection], merged) != [selection]:
                raise LostRaceError(str(source.stopped)) from source.stopped
        skipped[selection.region_id] = SkippedRegion(
            region_id=str(selection.region_id),
            generation=selection.generations[len(source.selection.generations)].number,
            reason=skip_reason(source.stopped, base.location),
        )
    readable = [source for source in sources if source.selection.generations]
    return MergeSource(
        selections=tuple(source.selection for source in readable),
        upserts=pa.Table.from_batches([r for s in readable for r in s.upserts], base.schema),
        deletes=pa.concat_tables(
            [_key_schema(base).empty_table(), *(source.deletes for source in readable)]
        ).combine_chunks(),
        skipped=skipped,
    )


def _read_region(
    base: BaseTable, ledger: Ledger | None, selection: RegionSelection
) -> _RegionSource:
    """Read the newest row of each key of a region, and the keys whose newest is a tombstone."""
    batches: list[pa.RecordBatch] = []
    counts: list[int] = []
    stopped: MemWalError | None = None
    for generation in selection.generations:
        try:
            read = _read_generation(base, selection.region_id, generation)
        except MemWalError as error:
            stopped = error
            break
        batches += read
        counts.append(sum(batch.num_rows for batch in read))
    generations = selection.generations[: len(counts)]
    names = list(base.primary_key)
    schema = _key_schema(base)
    keys = pa.Table.from_batches(
        [pa.RecordBatch.from_arrays(b.select(names).columns, schema=schema) for b in batches],
        schema,
    )
    newest = np.zeros(keys.num_rows, np.bool_)
    newest[newest_row_positions(key_column(keys, names))] = True
    deleted = np.concatenate([np.empty(0, np.bool_), *map(_is_tombstone, batches)], dtype=np.bool_)
    if ledger is not None and batches:
        rows = pa.Table.from_batches([batch.select(base.schema.names) for batch in batches])
        screened = ledger.screen(
            RegionRows(
                region_id=selection.region_id,
                generations=tuple(generation.number for generation in generations),
                folders=tuple(generation.path for generation in generations),
                counts=tuple(counts),
                keys=key_column(keys, names),
                newest=newest,
                deleted=deleted,
                take=partial(_take, rows),
                primary_key=base.primary_key,
            )
        )
        newest, generations = screened.newest, generations[: screened.accepted]
        stopped = screened.hold or stopped
    return _RegionSource(
        replace(selection, generations=generations),
        _storable(_masked(batches, newest & ~deleted, base.schema), base),
        keys.take(pa.array(np.flatnonzero(newest & deleted))),
        stopped,
    )


def _key_schema(base: BaseTable) -> pa.Schema:
    return pa.schema([base.schema.field(name) for name in base.primary_key])


def _take(rows: pa.Table, mask: Mask, columns: Sequence[str] | None) -> pa.Table:
    """Return the rows of a mask, in those of the named columns that exist."""
    names = [name for name in rows.schema.names if columns is None or name in columns]
    selected = rows.select(names)
    return selected if mask.all() else selected.filter(pa.array(mask))


def _read_generation(
    base: BaseTable, region_id: UUID, generation: Candidate
) -> list[pa.RecordBatch]:
    source = open_to_merge(base, region_id, generation.number, generation.path)
    with lance_errors(generation.reading):
        scanner = source.dataset.scanner(
            columns=[*base.schema.names, TOMBSTONE],
            batch_size=_SOURCE_BATCH_ROWS,
            scan_in_order=True,
        )
        return list(scanner.to_batches())


def _is_tombstone(rows: pa.RecordBatch) -> Mask:
    column = pc.fill_null(rows.column(TOMBSTONE), False)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _masked(
    batches: Sequence[pa.RecordBatch], mask: Mask, schema: pa.Schema
) -> list[pa.RecordBatch]:
    """Return the rows of a mask over all batches, in the columns of a schema."""
    masked = []
    start = 0
    for batch in batches:
        end = start + batch.num_rows
        positions = np.flatnonzero(mask[start:end])
        if len(positions):
            masked.append(_owning(batch.select(schema.names), positions, schema))
        start = end
    return masked


def _storable(batches: list[pa.RecordBatch], base: BaseTable) -> list[pa.RecordBatch]:
    """Return rows as the files of the base table can store them.

    A generation has null structs where the row was written before their column was added, or by a
    client that does not refuse them; files of version 2.0 have none.
    """
    if base.dataset.data_storage_version not in VERSIONS_WITHOUT_NULL_STRUCTS:
        return batches
    return [
        pa.RecordBatch.from_arrays([*map(fill_null_structs, batch.columns)], schema=batch.schema)
        for batch in batches
    ]


def _owning(
    rows: pa.RecordBatch, positions: npt.NDArray[np.int64], schema: pa.Schema
) -> pa.RecordBatch:
    """Return some of the rows in a batch that holds no larger buffer than it needs."""
    if len(positions) < rows.num_rows or rows.get_total_buffer_size() > _SLACK * rows.nbytes:
        rows = pc.take(rows, pa.array(positions), memory_pool=native_memory_pool())
    return pa.RecordBatch.from_arrays(rows.columns, schema=schema)
