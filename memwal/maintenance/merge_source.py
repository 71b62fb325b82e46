"""Reading what one merge commit carries: the newest row of each key of some generations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from memwal.errors import MemWalError, ObjectNotFoundError
from memwal.format.names import TOMBSTONE
from memwal.reader.generations import GenerationSource, open_generation
from memwal.reader.newest import ROW_ADDRESS, NewestRows, find_newest
from memwal.region.newest import key_column
from memwal.table_index.base_table import BaseTable, open_base, translate_lance_error

# merge_insert charges its memory pool with the whole buffer that a slice belongs to: the source
# is therefore made of batches that own their memory.
_SOURCE_BATCH_ROWS = 8_192


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

    Each region is read on its own first, so that one that is damaged does not stop the others.
    """
    upserts: list[pa.RecordBatch] = []
    deletes: list[pa.Table] = []
    for batch in batches:
        try:
            rows, keys = _read_region(base, batch)
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
    try:
        sources = [
            open_generation(base, batch.region_id, generation.number, generation.path)
            for generation in batch.generations
        ]
        newest = find_newest(sources, base.primary_key, _key_type(base))
        upserts = [
            rows
            for position, source in enumerate(sources)
            for rows in _upserts(base, source, newest.live_addresses(position))
        ]
        return upserts, _deleted_keys(base, sources, newest)
    except (OSError, ValueError) as error:
        raise translate_lance_error(error, "reading generations") from error


def _key_type(base: BaseTable) -> pa.DataType:
    return key_column(
        base.schema.empty_table().select(list(base.primary_key)), base.primary_key
    ).type


def _upserts(
    base: BaseTable, source: GenerationSource, live: np.ndarray[Any, np.dtype[np.uint64]]
) -> list[pa.RecordBatch]:
    if not len(live):
        return []
    batches = []
    scanner = source.dataset.scanner(
        columns=base.schema.names,
        filter=f"not {TOMBSTONE}",
        with_row_address=True,
        batch_size=_SOURCE_BATCH_ROWS,
    )
    for batch in scanner.to_batches():
        addresses = batch.column(ROW_ADDRESS).to_numpy()
        at = np.minimum(np.searchsorted(live, addresses), len(live) - 1)
        kept = np.flatnonzero(live[at] == addresses)
        if len(kept):
            # A take copies: the batch then owns its memory and holds no larger buffer.
            own = batch.select(base.schema.names).take(pa.array(kept))
            batches.append(pa.RecordBatch.from_arrays(own.columns, schema=base.schema))
    return batches


def _deleted_keys(
    base: BaseTable, sources: Sequence[GenerationSource], newest: NewestRows
) -> pa.Table:
    key = list(base.primary_key)
    schema = pa.schema([base.schema.field(name) for name in key])
    parts = [schema.empty_table()]
    for position, source in enumerate(sources):
        gone = np.sort(newest.addresses[(newest.source == position) & newest.deleted])
        if len(gone):
            rows = source.dataset._take_rows(gone.tolist(), columns=key)
            parts.append(pa.Table.from_arrays(rows.columns, schema=schema))
    return pa.concat_tables(parts)
