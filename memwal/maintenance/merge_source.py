"""Reading what one merge commit carries: the newest row of each key of some generations."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import MemWalError, ObjectNotFoundError
from memwal.format.names import TOMBSTONE
from memwal.reader.generations import open_generation
from memwal.region.newest import key_column, newest_rows
from memwal.table_index.base_table import BaseTable, open_base, translate_lance_error

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


def not_merged(base: BaseTable, batches: Sequence[RegionBatch]) -> list[RegionBatch]:
    left = []
    for batch in batches:
        merged = base.details.merged.get(batch.region_id, 0)
        pending = tuple(g for g in batch.generations if g.number > merged)
        if pending:
            left.append(replace(batch, generations=pending))
    return left


def read_source(
    base: BaseTable, batches: Sequence[RegionBatch], unreadable: dict[UUID, str]
) -> MergeSource | None:
    """Read the newest row of each key. Notes regions that cannot be read, and leaves them out.

    Each region is read on its own, so that one that is damaged does not stop the others.
    """
    upserts: list[pa.RecordBatch] = []
    deletes: list[pa.Table] = []
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        reading = [pool.submit(_read_region, base, batch) for batch in batches]
    for batch, read in zip(batches, reading, strict=True):
        try:
            rows, keys = read.result()
        except ObjectNotFoundError as error:
            latest = open_base(base.location)
            if not_merged(latest, [batch]) != [batch]:
                raise Collected from error
            unreadable[batch.region_id] = _problem(batch, error)
        except MemWalError as error:
            unreadable[batch.region_id] = _problem(batch, error)
        else:
            upserts += rows
            deletes.append(keys)
    if not deletes:
        return None
    return MergeSource(
        batches=tuple(b for b in batches if b.region_id not in unreadable),
        upserts=pa.Table.from_batches(upserts, base.schema),
        deletes=pa.concat_tables(deletes).combine_chunks(),
    )


def _problem(batch: RegionBatch, error: Exception) -> str:
    numbers = ", ".join(str(generation.number) for generation in batch.generations)
    return f"region {batch.region_id}, generations {numbers}: not merged: {error}"


def _read_region(base: BaseTable, batch: RegionBatch) -> tuple[list[pa.RecordBatch], pa.Table]:
    """Newest rows of a region's generations, and the keys whose newest row is a tombstone."""
    try:
        pieces = [
            rows
            for generation in batch.generations
            for rows in open_generation(base, batch.region_id, generation.number, generation.path)
            .dataset.scanner(
                columns=[*base.schema.names, TOMBSTONE],
                batch_size=_SOURCE_BATCH_ROWS,
                scan_in_order=True,
            )
            .to_batches()
        ]
    except (OSError, ValueError) as error:
        raise translate_lance_error(error, "reading generations") from error
    names = list(base.primary_key)
    key_schema = pa.schema([base.schema.field(name) for name in names])
    keys = pa.Table.from_batches(
        [pa.RecordBatch.from_arrays(p.select(names).columns, schema=key_schema) for p in pieces],
        key_schema,
    )
    newest = np.zeros(keys.num_rows, np.bool_)
    newest[newest_rows(key_column(keys, names))] = True
    deleted = np.concatenate(
        [np.empty(0, np.bool_), *(_is_tombstone(rows) for rows in pieces)], dtype=np.bool_
    )
    upserts = []
    start = 0
    for rows in pieces:
        end = start + rows.num_rows
        kept = np.flatnonzero(newest[start:end] & ~deleted[start:end])
        if len(kept):
            upserts.append(_owning(rows.select(base.schema.names), kept, base.schema))
        start = end
    return upserts, keys.take(pa.array(np.flatnonzero(newest & deleted)))


def _is_tombstone(rows: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
    column = pc.fill_null(rows.column(TOMBSTONE), False)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _owning(
    rows: pa.RecordBatch, kept: np.ndarray[Any, np.dtype[np.int64]], schema: pa.Schema
) -> pa.RecordBatch:
    """Some of the rows, in a batch that holds no larger buffer than it needs."""
    if len(kept) < rows.num_rows or rows.get_total_buffer_size() > _SLACK * rows.nbytes:
        rows = rows.take(pa.array(kept))
    return pa.RecordBatch.from_arrays(rows.columns, schema=schema)
