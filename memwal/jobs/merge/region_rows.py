"""Rows of a region's generations for a merge: the keys are read first, the rows as they are needed.

The keys of all generations tell which row of each key is the newest. Rows are read afterwards in
batches, and only those that enter the base table, so that a worker holds the keys and some batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError
from memwal.format.paths import TOMBSTONE
from memwal.format.values import VERSIONS_WITHOUT_NULL_STRUCTS, fill_null_structs
from memwal.jobs.job import SkippedRegion
from memwal.jobs.merge.picker import Candidate, RegionSelection, Share, still_pending
from memwal.lsm.memtable.hashing import hash_rows
from memwal.lsm.newest_rows import newest_row_positions
from memwal.quality.checks import Mask
from memwal.reader.sources.generation import open_generation
from memwal.region.rows import key_column
from memwal.util.retry import LostRaceError

Rows = npt.NDArray[np.int64]

_BATCH_ROWS = 8_192
# To take a row of a generation by its position costs as much as to scan so many bytes more.
_TAKE_BYTES = 1_000


class UnreadableGenerationError(Exception):
    """A generation whose keys were read, and whose rows cannot be."""

    def __init__(self, region: RegionSelection, generation: int, reason: MemWalError) -> None:
        super().__init__(str(reason))
        self.region = region
        self.generation = generation
        self.reason = reason


@dataclass(frozen=True, slots=True)
class GenerationKeys:
    """Keys of a generation that are in a share."""

    generation: Candidate
    dataset: lance.LanceDataset
    count: int  # rows of the generation
    rows: Rows  # their positions in the generation, ascending
    keys: pa.Table  # key columns
    deleted: Mask


def open_region(
    base: BaseTable,
    region: RegionSelection,
    share: Share,
    skipped: dict[UUID, SkippedRegion],
    *,
    entering: Mask | None = None,
) -> RegionReader | None:
    """Read the keys of a region up to the first generation that cannot be read; None if none can.

    That generation is added to ``skipped``. ``entering`` has the rows that enter, of all rows of
    the region; by default the newest of each key does.
    """
    parts: list[GenerationKeys] = []
    for generation in region.generations:
        try:
            parts.append(_read_generation_keys(base, region.region_id, generation, share))
        except MemWalError as error:
            skip_from(base, region, generation.number, error, skipped)
            break
    if not parts:
        return None
    return RegionReader(
        base, replace(region, generations=region.generations[: len(parts)]), parts, entering
    )


def skip_from(
    base: BaseTable,
    region: RegionSelection,
    generation: int,
    reason: MemWalError,
    skipped: dict[UUID, SkippedRegion],
) -> None:
    """Note that a region cannot be merged from a generation on.

    Raises LostRaceError if the generation is gone because another merger merged it.
    """
    if isinstance(reason, ObjectNotFoundError):
        merged = open_base(base.location).details.merged
        if still_pending([region], merged) != [region]:
            raise LostRaceError(str(reason)) from reason
    skipped[region.region_id] = SkippedRegion(
        region_id=str(region.region_id), generation=generation, reason=skip_reason(reason)
    )


def skip_reason(error: MemWalError) -> str:
    """Return why a region is skipped, and how to repair it."""
    if isinstance(error, ObjectNotFoundError | CorruptDataError):
        return f"{error}; memwal verify --repair may make it again from the log"
    return str(error)


def _read_generation_keys(
    base: BaseTable, region_id: UUID, generation: Candidate, share: Share
) -> GenerationKeys:
    """Read key columns and tombstones of a generation, in batches, and keep those of a share."""
    source = open_generation(base, region_id, generation.number, generation.path)
    names = list(base.primary_key)
    rows, batches, deleted, count = [], [], [], 0
    with lance_errors(f"reading generation {generation.number}"):
        scanner = source.dataset.scanner(columns=[*names, TOMBSTONE], scan_in_order=True)
        for batch in scanner.to_batches():
            own = _rows_of(share, batch.select(names))
            kept = batch if len(own) == batch.num_rows else batch.take(pa.array(own))
            rows.append(own + count)
            batches.append(kept.select(names))
            deleted.append(
                pc.fill_null(kept.column(TOMBSTONE), False).to_numpy(zero_copy_only=False)
            )
            count += batch.num_rows
    schema = pa.schema([base.schema.field(name) for name in names])
    return GenerationKeys(
        generation=generation,
        dataset=source.dataset,
        count=count,
        rows=np.concatenate([np.empty(0, np.int64), *rows]),
        keys=pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table(),
        deleted=np.concatenate([np.empty(0, np.bool_), *deleted]).astype(np.bool_),
    )


def _rows_of(share: Share, keys: pa.RecordBatch) -> Rows:
    """Return the positions of the rows of some key columns that are in a share."""
    if share.of == 1:
        return np.arange(keys.num_rows)
    return np.flatnonzero(hash_rows(keys.columns) % np.uint64(share.of) == share.number)


class RegionReader:
    """Rows of a share of the keys of some generations, oldest first."""

    def __init__(
        self,
        base: BaseTable,
        selection: RegionSelection,
        parts: Sequence[GenerationKeys],
        entering: Mask | None,
    ) -> None:
        self.selection = selection
        self.schema = base.schema
        self._base = base
        self._parts = tuple(parts)
        schema = pa.schema([base.schema.field(name) for name in base.primary_key])
        self._key_columns = pa.concat_tables([schema.empty_table(), *(p.keys for p in parts)])
        self.deleted = np.concatenate([np.empty(0, np.bool_), *(part.deleted for part in parts)])
        self.newest = np.zeros(len(self.deleted), np.bool_)
        if entering is not None:
            self.newest = entering[self._rows_of_region()]
        elif len(self.deleted):
            self.newest[newest_row_positions(self.single_keys())] = True

    def _rows_of_region(self) -> Rows:
        """Return the positions of the rows among all rows of all generations."""
        starts = np.cumsum([0, *self.counts[:-1]])
        return np.concatenate(
            [part.rows + start for part, start in zip(self._parts, starts, strict=True)]
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of rows of each generation, in any share."""
        return tuple(part.count for part in self._parts)

    def single_keys(self) -> pa.Array:
        """Return the keys of all rows, one comparable value each."""
        return key_column(self._key_columns, self._base.primary_key)

    def keys(self) -> pa.Table:
        """Return the distinct keys of the rows that enter, of tombstones too."""
        return self._key_columns.filter(pa.array(self.newest))

    @property
    def upserted(self) -> Mask:
        """Mask of the rows that enter the base table."""
        mask: Mask = self.newest & ~self.deleted
        return mask

    def batches(self, chosen: Mask, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read the chosen rows, generation by generation.

        Raises UnreadableGenerationError if the rows of one cannot be read.
        """
        start = 0
        for part in self._parts:
            end = start + len(part.rows)
            rows = part.rows[chosen[start:end]]
            start = end
            if not len(rows):
                continue
            try:
                with lance_errors(f"reading generation {part.generation.number}"):
                    yield from _read_rows(part, rows, list(columns))
            except MemWalError as error:
                raise UnreadableGenerationError(
                    self.selection, part.generation.number, error
                ) from error

    def storable(self, chosen: Mask) -> Iterator[pa.RecordBatch]:
        """Read the chosen rows, as the files of the base table can store them."""
        version = self._base.dataset.data_storage_version
        for batch in self.batches(chosen, self._base.schema.names):
            columns = batch.columns
            if version in VERSIONS_WITHOUT_NULL_STRUCTS:
                columns = [*map(fill_null_structs, columns)]
            yield pa.RecordBatch.from_arrays(columns, schema=self._base.schema)


def _read_rows(part: GenerationKeys, rows: Rows, columns: list[str]) -> Iterator[pa.RecordBatch]:
    row_bytes = part.generation.bytes / part.count
    if len(rows) * (row_bytes + _TAKE_BYTES) < part.count * row_bytes:
        for at in range(0, len(rows), _BATCH_ROWS):
            yield from part.dataset.take(rows[at : at + _BATCH_ROWS], columns=columns).to_batches()
        return
    start = 0
    scanner = part.dataset.scanner(columns=columns, batch_size=_BATCH_ROWS, scan_in_order=True)
    for batch in scanner.to_batches():
        end = start + batch.num_rows
        own = rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)] - start
        start = end
        if len(own) == batch.num_rows:
            yield batch
        elif len(own):
            yield batch.take(pa.array(own))
