"""Rows of a region's generations for a merge: the keys are read first, the rows as they are needed.

The keys of all generations tell which row of each key is the newest. Rows are read afterwards in
batches, and only those that enter the base table, so that a worker holds the keys and some batches.

A small merge, which holds all its rows anyway, reads keys and rows at once (``whole``).

A share of a region is a run of its rows, in the order in which they were written. Its task reads
these rows, and the keys of all later rows: a row whose key comes again later is not the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.blobs import batches_with_values, blob_names
from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError
from memwal.format.paths import TOMBSTONE
from memwal.format.values import VERSIONS_WITHOUT_NULL_STRUCTS, fill_null_structs
from memwal.jobs.job import SkippedRegion
from memwal.jobs.merge.picker import Candidate, RegionSelection, Share, still_pending
from memwal.lsm.key_matches import keys_among, newest_row_positions
from memwal.reader.base_rows import scan_in_groups
from memwal.reader.latest import ROW_ADDRESS
from memwal.reader.sources.generation import open_to_merge
from memwal.reader.sources.narrow_columns import TAKEN_ROWS
from memwal.region.rows import key_column
from memwal.util.arrays import Mask
from memwal.util.memory import native_memory_pool
from memwal.util.retry import LostRaceError

Rows = npt.NDArray[np.int64]

_BATCH_ROWS = 8_192
_BATCH_BYTES = 4 << 20
# Lance reads gigabytes ahead by default.
_READ_AHEAD_BYTES = 32 << 20
# To take a row of a generation by its position costs as much as to scan so many bytes more.
_TAKE_BYTES = 1_000
# merge_insert charges its memory pool with the whole buffer that a slice belongs to: batches that
# are kept for it hold no buffer that is larger than this times their rows.
_SLACK = 1.25


class UnreadableGenerationError(Exception):
    """A generation that could be opened, and whose keys or rows cannot be read."""

    def __init__(self, region: RegionSelection, generation: int, reason: MemWalError) -> None:
        super().__init__(str(reason))
        self.region = region
        self.generation = generation
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SharedGeneration:
    """A generation, and the mask of its rows that are in a share."""

    generation: Candidate
    dataset: lance.LanceDataset
    count: int  # rows of the generation
    start: int  # the first row of the share
    stop: int  # the first row behind it

    @property
    def row_bytes(self) -> float:
        """Size in memory of a row, on average."""
        return self.generation.bytes / max(self.count, 1)


def open_region(
    base: BaseTable,
    region: RegionSelection,
    share: Share,
    skipped: dict[UUID, SkippedRegion],
    *,
    entering: Mask | None = None,
    whole: bool = False,
) -> RegionReader | None:
    """Read the keys of a region up to the first generation that cannot be read; None if none can.

    That generation is added to ``skipped``. ``entering`` has the rows that enter, of all rows of
    the region; by default the newest of each key does. With ``whole``, all columns are read at once
    and held in memory.
    """
    opened = _open_generations(base, region, skipped)
    while opened:
        selection = replace(region, generations=tuple(part.generation for part in opened))
        try:
            return RegionReader(base, selection, _divide(opened, share), entering, whole=whole)
        except UnreadableGenerationError as error:
            # The other generations are divided into shares without it.
            skip_from(base, region, error.generation, error.reason, skipped)
            opened = [part for part in opened if part.generation.number < error.generation]
    return None


def _open_generations(
    base: BaseTable, region: RegionSelection, skipped: dict[UUID, SkippedRegion]
) -> list[SharedGeneration]:
    opened: list[SharedGeneration] = []
    for generation in region.generations:
        try:
            source = open_to_merge(base, region.region_id, generation.number, generation.path)
            with lance_errors(generation.reading):
                count = int(source.dataset.count_rows())
                opened.append(SharedGeneration(generation, source.dataset, count, 0, count))
        except MemWalError as error:
            skip_from(base, region, generation.number, error, skipped)
            break
    return opened


def _divide(opened: Sequence[SharedGeneration], share: Share) -> list[SharedGeneration]:
    """Return the rows of a share. The shares of a region have about as many bytes.

    The folder of a generation never changes: a repair writes another one. So all tasks that can
    open the same generations divide them in the same way. If one task leaves generations out, the
    driver lets all tasks of the region begin again without them.
    """
    sizes = [max(part.generation.bytes, 1) for part in opened]
    total = sum(sizes)
    first, last = (total * number // share.of for number in (share.number, share.number + 1))
    parts = []
    at = 0
    for part, size in zip(opened, sizes, strict=True):
        start, stop = (part.count * min(max(cut - at, 0), size) // size for cut in (first, last))
        parts.append(replace(part, start=start, stop=stop))
        at += size
    return parts


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
    advice = ""
    if isinstance(reason, ObjectNotFoundError | CorruptDataError):
        command = f"memwal verify {base.location} --repair --yes"
        advice = f"; {command} may make it again from the log"
    skipped[region.region_id] = SkippedRegion(
        region_id=str(region.region_id),
        generation=generation,
        reason=f"{reason}{advice}",
    )


class RegionReader:
    """Rows of a share of some generations, oldest first.

    Raises UnreadableGenerationError if the keys of one cannot be read.
    """

    def __init__(
        self,
        base: BaseTable,
        selection: RegionSelection,
        parts: Sequence[SharedGeneration],
        entering: Mask | None,
        *,
        whole: bool = False,
    ) -> None:
        self.selection = selection
        self.schema = base.schema
        self._base = base
        self._parts = tuple(parts)
        self._key_schema = pa.schema([base.schema.field(name) for name in base.primary_key])
        self._whole: list[pa.RecordBatch] = []
        tables = [self._key_schema.empty_table()]
        deleted = [np.empty(0, np.bool_)]
        columns = [*(self.schema if whole else self._key_schema).names, TOMBSTONE]
        for part in parts:
            for rows in self._scan(part, part.start, part.stop, columns, whole=whole):
                if whole:
                    self._whole += rows.to_batches()
                tables.append(self._keys_of(rows))
                deleted.append(pc.fill_null(rows.column(TOMBSTONE), False).to_numpy())
        self._key_columns = pa.concat_tables(tables)
        self.deleted = np.concatenate(deleted).astype(np.bool_)
        self.newest = self._find_newest() if entering is None else entering[self._rows_of_region()]

    def _scan(
        self,
        part: SharedGeneration,
        start: int,
        stop: int,
        columns: Sequence[str],
        *,
        whole: bool = False,
    ) -> Iterator[pa.Table]:
        """Read columns of a generation, from one row to another: narrow ones, unless ``whole``."""
        if start == stop:
            return
        with self._reading(part):
            if stop - start <= TAKEN_ROWS:
                yield part.dataset.take(range(start, stop), columns=list(columns))
                return
            options = _range_options(part, start, stop)
            if not whole:
                yield from scan_in_groups(part.dataset, columns, **options)
                return
            scanner = part.dataset.scanner(columns=columns, batch_size=_BATCH_ROWS, **options)
            for batch in scanner.to_batches():
                yield pa.Table.from_batches([batch])

    @contextmanager
    def _reading(self, part: SharedGeneration) -> Iterator[None]:
        """Raise UnreadableGenerationError if the block fails to read rows of a generation."""
        try:
            with lance_errors(part.generation.reading):
                yield
        except MemWalError as error:
            raise UnreadableGenerationError(
                self.selection, part.generation.number, error
            ) from error

    def _keys_of(self, rows: pa.Table) -> pa.Table:
        return rows.select(self._key_schema.names).cast(self._key_schema)

    def _find_newest(self) -> Mask:
        """Return which rows of the share are the newest of their key in the region."""
        keys = self.single_keys()
        rows = newest_row_positions(keys)
        is_share = any(part.stop < part.count for part in self._parts)
        if is_share and len(rows) and self._base.primary_key:
            own = keys if len(rows) == len(keys) else keys.take(pa.array(rows))
            rows = rows[~keys_among(own, self._later_keys())]
        newest = np.zeros(len(keys), np.bool_)
        newest[rows] = True
        return newest

    def _later_keys(self) -> Iterator[pa.Array]:
        """Read the keys of the rows behind the share."""
        for part in self._parts:
            for rows in self._scan(part, part.stop, part.count, self._key_schema.names):
                yield key_column(self._keys_of(rows), self._base.primary_key)

    def _rows_of_region(self) -> Rows:
        """Return the positions of the rows among all rows of all generations."""
        starts = np.cumsum([0, *self.counts[:-1]])
        return np.concatenate(
            [
                np.arange(start + part.start, start + part.stop)
                for part, start in zip(self._parts, starts, strict=True)
            ]
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of rows of each generation, in any share."""
        return tuple(part.count for part in self._parts)

    def single_keys(self) -> pa.Array:
        """Return the keys of all rows, one comparable value each; nulls if the table has none."""
        if not self._base.primary_key:
            return pa.nulls(len(self.deleted))
        return key_column(self._key_columns, self._base.primary_key)

    def keys(self) -> pa.Table:
        """Return the distinct keys of the rows that enter, of tombstones too."""
        return self._key_columns.filter(pa.array(self.newest))

    def deletes(self) -> pa.Table:
        """Return the distinct keys of the tombstones that enter."""
        entering = self.newest & self.deleted
        if not entering.any():
            return self._key_columns.slice(0, 0)
        return self._key_columns.filter(pa.array(entering))

    @property
    def upserted(self) -> Mask:
        """Mask of the rows that enter the base table."""
        mask: Mask = self.newest & ~self.deleted
        return mask

    def batches(self, chosen: Mask, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read the chosen rows, generation by generation.

        Raises UnreadableGenerationError if the rows of one cannot be read.
        """
        at = 0
        for batch in self._whole:
            end = at + batch.num_rows
            own = np.flatnonzero(chosen[at:end])
            at = end
            if len(own):
                yield _owning(batch.select(columns), own)
        for part in self._parts if not self._whole else ():
            end = at + part.stop - part.start
            rows = np.flatnonzero(chosen[at:end]) + part.start
            at = end
            if len(rows):
                with self._reading(part):
                    yield from self._read(part, rows, columns)

    def _read(
        self, part: SharedGeneration, rows: Rows, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read rows of a generation; blobs as they are written, once each."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        if not blob_names(schema):
            yield from _read_rows(part, rows, list(columns))
            return
        for batch in _read_rows(part, rows, [*columns, ROW_ADDRESS]):
            described = pa.Table.from_batches([batch])
            yield from batches_with_values(part.dataset, described, schema)

    def storable(self, chosen: Mask) -> Iterator[pa.RecordBatch]:
        """Read the chosen rows, as the files of the base table can store them."""
        version = self._base.dataset.data_storage_version
        for batch in self.batches(chosen, self._base.schema.names):
            columns = batch.columns
            if version in VERSIONS_WITHOUT_NULL_STRUCTS:
                columns = [*map(fill_null_structs, columns)]
            yield pa.RecordBatch.from_arrays(columns, schema=self._base.schema)


def _owning(batch: pa.RecordBatch, rows: Rows) -> pa.RecordBatch:
    """Return some rows in a batch that holds no larger buffer than it needs."""
    if len(rows) < batch.num_rows or batch.get_total_buffer_size() > _SLACK * batch.nbytes:
        return pc.take(batch, pa.array(rows), memory_pool=native_memory_pool())
    return batch


def _read_rows(part: SharedGeneration, rows: Rows, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Read rows of a generation, ascending: by their positions, or by a scan if they are many."""
    start, stop = int(rows[0]), int(rows[-1]) + 1
    size = int(min(max(_BATCH_BYTES // max(part.row_bytes, 1), 1), _BATCH_ROWS))
    if len(rows) * (part.row_bytes + _TAKE_BYTES) < (stop - start) * part.row_bytes:
        for at in range(0, len(rows), size):
            yield from part.dataset.take(rows[at : at + size], columns=columns).to_batches()
        return
    scanner = part.dataset.scanner(
        columns=columns,
        batch_size=size,
        io_buffer_size=_READ_AHEAD_BYTES,
        **_range_options(part, start, stop),
    )
    for batch in scanner.to_batches():
        end = start + batch.num_rows
        own = rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)] - start
        start = end
        if len(own) == batch.num_rows:
            yield batch
        elif len(own):
            yield batch.take(pa.array(own))


def _range_options(part: SharedGeneration, start: int, stop: int) -> dict[str, Any]:
    """Return options of a scanner that reads a generation from one row to another, in order."""
    if (start, stop) == (0, part.count):
        return {"scan_in_order": True}
    return {"scan_in_order": True, "offset": start, "limit": stop - start}
