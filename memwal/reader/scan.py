"""The merging scan: one answer over the base table and everything that is not in it yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from memwal.errors import InvalidInputError, MemWalError, ObjectNotFoundError
from memwal.format.names import TOMBSTONE
from memwal.reader.newest import ROW_ADDRESS, NewestRows, find_newest
from memwal.reader.predicate import whole_predicate
from memwal.reader.sources import GenerationSource, ReadSources
from memwal.region.newest import key_column
from memwal.table_index.base_table import BaseTable, translate_lance_error

if TYPE_CHECKING:
    import pandas as pd

# Base rows are compared with the fresh keys this many at a time, or as many as there are fresh
# keys: each comparison hashes all fresh keys, and larger pieces share that cost.
_COMPARED_ROWS = 65_536
_MAX_COMPARED_ROWS = 1 << 20
_ATTEMPTS = 5


class Scan:
    """A merging scan that has not been run. Each ``to_...`` runs it on the state at that moment.

    Parameters
    ----------
    collect : callable
        Collects the sources.
    columns : sequence of str, optional
        Columns to return, in this order; all by default.
    filter : str, optional
        SQL predicate, as for :meth:`lance.LanceDataset.scanner`. It may name any column.
    limit : int, optional
        At most this many rows.
    """

    def __init__(
        self,
        collect: Callable[[], ReadSources],
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
    ) -> None:
        if limit is not None and limit < 0:
            raise InvalidInputError(f"limit must not be negative, it is {limit}")
        self._collect = collect
        self._columns = list(columns) if columns is not None else None
        self._filter = whole_predicate(filter)
        self._limit = limit

    def to_reader(self) -> pa.RecordBatchReader:
        """Run the scan as a stream of batches."""
        sources, newest = collect_newest(self._collect)
        schema = output_schema(sources.base, self._columns)
        return pa.RecordBatchReader.from_batches(schema, self._run(sources, newest, schema))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Run the scan and yield its batches."""
        yield from self.to_reader()

    def to_table(self) -> pa.Table:
        """Run the scan into memory."""
        return self.to_reader().read_all()

    def to_pandas(self) -> pd.DataFrame:
        """Run the scan into a pandas data frame."""
        return self.to_table().to_pandas()

    def count_rows(self) -> int:
        """Count the rows."""
        counted = Scan(self._collect, columns=[], filter=self._filter, limit=self._limit)
        return sum(batch.num_rows for batch in counted.to_batches())

    def _run(
        self, sources: ReadSources, newest: NewestRows, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        left = self._limit
        if left == 0:
            return
        try:
            for batch in self._merged(sources, newest, schema):
                if not batch.num_rows:
                    continue
                yield batch if left is None else batch.slice(0, left)
                if left is not None:
                    left -= batch.num_rows
                    if left <= 0:
                        return
        except (OSError, ValueError) as error:
            if isinstance(error, MemWalError):
                raise
            raise translate_lance_error(error, f"scanning {sources.base.location}") from error

    def _merged(
        self, sources: ReadSources, newest: NewestRows, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        for position, source in enumerate(sources.generations):
            live = newest.live_addresses(position)
            if len(live):
                yield from self._generation_rows(source, live, schema)
        yield from self._base_rows(sources.base, newest, schema)

    def _generation_rows(
        self,
        source: GenerationSource,
        live: np.ndarray[Any, np.dtype[np.uint64]],
        schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:
        alive = f"not {TOMBSTONE}"
        scanner = source.dataset.scanner(
            columns=schema.names,
            filter=f"{self._filter} and {alive}" if self._filter else alive,
            with_row_address=True,
        )
        for batch in scanner.to_batches():
            addresses = batch.column(ROW_ADDRESS).to_numpy()
            at = np.minimum(np.searchsorted(live, addresses), len(live) - 1)
            kept = live[at] == addresses
            yield project(batch if kept.all() else batch.filter(pa.array(kept)), schema)

    def _base_rows(
        self, base: BaseTable, newest: NewestRows, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        if not len(newest.keys):
            options = {"with_row_address": True} if not schema.names else {}
            scanner = base.dataset.scanner(
                columns=schema.names, filter=self._filter, limit=self._limit, **options
            )
            for batch in scanner.to_batches():
                yield project(batch, schema)
            return
        names = [*schema.names, *(key for key in base.primary_key if key not in schema.names)]
        rows = min(max(_COMPARED_ROWS, len(newest.keys)), _MAX_COMPARED_ROWS)
        scanner = base.dataset.scanner(columns=names, filter=self._filter)
        for piece in _gathered(scanner.to_batches(), rows):
            outdated = pc.is_in(key_column(piece, base.primary_key), value_set=newest.keys)
            for batch in piece.filter(pc.invert(outdated)).to_batches():
                yield project(batch, schema)


def collect_newest(collect: Callable[[], ReadSources]) -> tuple[ReadSources, NewestRows]:
    """Collect the sources of a read, and the newest row of each key among its generations.

    A generation that was collected in between is in the base table by then: everything is
    collected again.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(ObjectNotFoundError),
        stop=stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )
    return retrying(_collect_once, collect)


def _collect_once(collect: Callable[[], ReadSources]) -> tuple[ReadSources, NewestRows]:
    sources = collect()
    base = sources.base
    empty = base.schema.empty_table().select(list(base.primary_key))
    key_type = key_column(empty, base.primary_key).type
    return sources, find_newest(sources.generations, base.primary_key, key_type)


def output_schema(base: BaseTable, columns: Sequence[str] | None) -> pa.Schema:
    """Schema of a read's result.

    Raises
    ------
    InvalidInputError
        A column does not exist.
    """
    names = base.schema.names if columns is None else columns
    unknown = [name for name in names if name not in base.schema.names]
    if unknown:
        raise InvalidInputError(
            f"unknown columns: {', '.join(unknown)}; the table has {', '.join(base.schema.names)}"
        )
    return pa.schema([base.schema.field(name) for name in names])


def project(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``, in its order, with its metadata."""
    if not schema.names:
        # A batch without columns still has rows to count.
        return batch.select([]).replace_schema_metadata(None)
    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)


def _gathered(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Batches joined until they have at least ``rows`` rows together."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)
