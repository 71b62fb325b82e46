"""Rows of one merge commit: the newest row of each key of some generations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError
from memwal.format.paths import TOMBSTONE
from memwal.jobs.job import HeldRegion
from memwal.quality.gate import RegionRows
from memwal.quality.ledger import Ledger
from memwal.reader.sources.generation import open_generation
from memwal.region.rows import key_column, newest_row_positions
from memwal.util.memory import handed_on

# merge_insert charges its memory pool with the whole buffer that a slice belongs to: the source
# is therefore made of batches that own their memory.
_SOURCE_BATCH_ROWS = 8_192
_SLACK = 1.25
# Lance decodes on several processors itself; this is for what lies between.
_PARALLEL_READS = 4


@dataclass(frozen=True, slots=True)
class Generation:
    """A flushed generation that waits to be merged."""

    number: int
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class RegionBatch:
    """Generations of one region, oldest first and without a gap in what the manifest lists."""

    region_id: UUID
    generations: tuple[Generation, ...]

    @property
    def bytes(self) -> int:
        """Size in memory, as the writers recorded it."""
        return sum(generation.bytes for generation in self.generations)


@dataclass(frozen=True, slots=True)
class MergeSource:
    """The rows of one commit: what is upserted, and the keys that are deleted."""

    batches: tuple[RegionBatch, ...]
    upserts: pa.Table
    deletes: pa.Table


class Collected(Exception):
    """A generation is gone: another merger merged it and a collector took it."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read of a region, up to the first generation that cannot be."""

    batch: RegionBatch
    upserts: list[pa.RecordBatch]
    deletes: pa.Table
    stopped: MemWalError | None = None


def not_merged(
    base: BaseTable, batches: Sequence[RegionBatch], held: Mapping[UUID, HeldRegion] | None = None
) -> list[RegionBatch]:
    """What a version does not have of these batches, up to where a region is held."""
    left = []
    for batch in batches:
        merged = base.details.merged.get(batch.region_id, 0)
        stop = (held or {}).get(batch.region_id)
        pending = tuple(
            g
            for g in batch.generations
            if g.number > merged and (stop is None or g.number < stop.generation)
        )
        if pending:
            left.append(replace(batch, generations=pending))
    return left


def read_source(
    base: BaseTable,
    batches: Sequence[RegionBatch],
    held: dict[UUID, HeldRegion],
    ledger: Ledger | None = None,
) -> MergeSource | None:
    """Read the newest row of each key, of those that the ledger lets in.

    Each region is read on its own, so that one that is damaged does not stop the others. It is read
    up to the generation that cannot be read, or is to wait, which is noted in ``held``.

    Raises
    ------
    Collected
        A generation is gone, since somebody else merged it.
    """
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        found = list(pool.map(partial(_read_region, base, ledger), batches))
    for batch, read in zip(batches, found, strict=True):
        if read.stopped is None:
            continue
        if isinstance(read.stopped, ObjectNotFoundError):
            latest = open_base(base.location)
            if not_merged(latest, [batch]) != [batch]:
                raise Collected from read.stopped
        held[batch.region_id] = HeldRegion(
            region_id=str(batch.region_id),
            generation=batch.generations[len(read.batch.generations)].number,
            reason=_reason(read.stopped),
        )
    found = [read for read in found if read.batch.generations]
    if not found:
        return None
    return MergeSource(
        batches=tuple(read.batch for read in found),
        upserts=pa.Table.from_batches([r for read in found for r in read.upserts], base.schema),
        deletes=pa.concat_tables([read.deletes for read in found]).combine_chunks(),
    )


def _reason(stopped: MemWalError) -> str:
    """Why a region is held, and what to do."""
    if isinstance(stopped, ObjectNotFoundError | CorruptDataError):
        return f"{stopped}; memwal verify --repair may make it again from the log"
    return str(stopped)


def _read_region(base: BaseTable, ledger: Ledger | None, batch: RegionBatch) -> _Read:
    """Newest rows of a region's generations, and the keys whose newest row is a tombstone."""
    pieces: list[pa.RecordBatch] = []
    counts: list[int] = []
    stopped: MemWalError | None = None
    taken = 0
    for generation in batch.generations:
        try:
            found = _read_generation(base, batch.region_id, generation)
            pieces += found
            counts.append(sum(piece.num_rows for piece in found))
        except MemWalError as error:
            stopped = error
            break
        taken += 1
    names = list(base.primary_key)
    key_schema = pa.schema([base.schema.field(name) for name in names])
    keys = pa.Table.from_batches(
        [pa.RecordBatch.from_arrays(p.select(names).columns, schema=key_schema) for p in pieces],
        key_schema,
    )
    newest = np.zeros(keys.num_rows, np.bool_)
    newest[newest_row_positions(key_column(keys, names))] = True
    deleted = np.concatenate([np.empty(0, np.bool_), *map(_is_tombstone, pieces)], dtype=np.bool_)
    if ledger is not None and pieces:
        rows = pa.Table.from_batches([piece.select(base.schema.names) for piece in pieces])
        screened = ledger.screen(
            RegionRows(
                region_id=batch.region_id,
                generations=tuple(g.number for g in batch.generations[:taken]),
                folders=tuple(g.path for g in batch.generations[:taken]),
                counts=tuple(counts),
                keys=key_column(keys, names),
                newest=newest,
                deleted=deleted,
                take=partial(_some, rows),
                primary_key=base.primary_key,
            )
        )
        newest, taken = screened.newest, screened.taken
        stopped = screened.stopped or stopped
    upserts = []
    start = 0
    for rows in pieces:
        end = start + rows.num_rows
        kept = np.flatnonzero(newest[start:end] & ~deleted[start:end])
        if len(kept):
            upserts.append(_owning(rows.select(base.schema.names), kept, base.schema))
        start = end
    return _Read(
        replace(batch, generations=batch.generations[:taken]),
        upserts,
        keys.take(pa.array(np.flatnonzero(newest & deleted))),
        stopped,
    )


def _some(
    rows: pa.Table, mask: np.ndarray[Any, np.dtype[np.bool_]], columns: Sequence[str] | None
) -> pa.Table:
    names = [name for name in rows.schema.names if columns is None or name in columns]
    chosen = rows.select(names)
    return chosen if mask.all() else chosen.filter(pa.array(mask))


def _read_generation(
    base: BaseTable, region_id: UUID, generation: Generation
) -> list[pa.RecordBatch]:
    source = open_generation(base, region_id, generation.number, generation.path)
    with lance_errors(f"reading generation {generation.number}"):
        scanner = source.dataset.scanner(
            columns=[*base.schema.names, TOMBSTONE],
            batch_size=_SOURCE_BATCH_ROWS,
            scan_in_order=True,
        )
        return list(scanner.to_batches())


def _is_tombstone(rows: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
    column = pc.fill_null(rows.column(TOMBSTONE), False)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _owning(
    rows: pa.RecordBatch, kept: np.ndarray[Any, np.dtype[np.int64]], schema: pa.Schema
) -> pa.RecordBatch:
    """Some of the rows, in a batch that holds no larger buffer than it needs."""
    if len(kept) < rows.num_rows or rows.get_total_buffer_size() > _SLACK * rows.nbytes:
        rows = pc.take(rows, pa.array(kept), memory_pool=handed_on())
    return pa.RecordBatch.from_arrays(rows.columns, schema=schema)
