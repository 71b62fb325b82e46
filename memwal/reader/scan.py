"""The merging scan: one answer over the base table and everything that is not in it yet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.errors import ConflictError, InvalidInputError
from memwal.reader.explain import ReadPlan, plan_of
from memwal.reader.latest import ROW_ADDRESS, NewestRows, find_newest, keys_of
from memwal.reader.merged_scan import GENERATION, MergedRows, with_extra
from memwal.reader.predicate import understood, whole_predicate
from memwal.reader.sources.collect import ReadSources, while_collected

if TYPE_CHECKING:
    import pandas as pd

# So often may generations be collected under one that is read in the place of another.
_TIMES = 5


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
    offset : int, default 0
        So many rows are left out first. Rows come in no promised order.
    with_generation : bool, default False
        Whether to add ``_gen``: the generation that has the row, 0 for the base table.
    with_row_address : bool, default False
        Whether to add ``_rowaddr``: the row's address in the data set of its generation or in the
        base table; in a MemTable the row's number.

    Raises
    ------
    InvalidInputError
        ``limit`` or ``offset`` is negative.
    """

    def __init__(
        self,
        collect: Callable[[], ReadSources],
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        with_generation: bool = False,
        with_row_address: bool = False,
    ) -> None:
        for name, number in (("limit", limit), ("offset", offset)):
            if number is not None and number < 0:
                raise InvalidInputError(f"{name} must not be negative, it is {number}")
        self._collect = collect
        self._columns = list(columns) if columns is not None else None
        self._filter = whole_predicate(filter)
        self._limit = limit
        self._offset = offset
        self._extra = [GENERATION] * with_generation + [ROW_ADDRESS] * with_row_address

    def to_reader(self) -> pa.RecordBatchReader:
        """Run the scan as a stream of batches, of which few are in memory at a time."""
        return while_collected(self._started)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Run the scan and yield its batches."""
        yield from self.to_reader()

    def to_table(self) -> pa.Table:
        """Run the scan into memory."""
        return self.to_reader().read_all()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Run the scan for whoever speaks Arrow's C interface: polars, DuckDB, ``pa.table``."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pd.DataFrame:
        """Run the scan into a pandas data frame."""
        return self.to_table().to_pandas()

    def count_rows(self) -> int:
        """Count the rows; of the values only keys and what the filter names are read."""
        counted = while_collected(self._counted)
        counted = max(counted - self._offset, 0)
        return counted if self._limit is None else min(counted, self._limit)

    def explain(self) -> ReadPlan:
        """What the scan would read now, and what it would leave out and why; no rows are read."""
        return while_collected(self._planned)

    def _planned(self) -> ReadPlan:
        sources = self._collect()
        base = sources.base
        names = output_schema(base, self._columns).names
        if sources.generations:
            names = [*names, *(key for key in base.primary_key if key not in names)]
        with _translated(base), understood(self._filter):
            scanner = base.dataset.scanner(
                columns=names, filter=self._filter, with_row_address=not names
            )
            return plan_of(sources, scanner.explain_plan())

    def _started(self) -> pa.RecordBatchReader:
        sources, newest = _collect_once(self._collect)
        schema = output_schema(sources.base, self._columns)
        wanted = with_extra(schema, self._extra)
        batches = self._run(self._rows(sources, newest, schema, self._extra))
        # The first batch is read now, while the scan can still start over.
        first = list(itertools.islice(batches, 1))
        return pa.RecordBatchReader.from_batches(wanted, itertools.chain(first, batches))

    def _counted(self) -> int:
        sources, newest = _collect_once(self._collect)
        output_schema(sources.base, self._columns)
        with _translated(sources.base), understood(self._filter):
            return self._rows(sources, newest, pa.schema([]), []).count()

    def _rows(
        self,
        sources: ReadSources,
        newest: NewestRows,
        schema: pa.Schema,
        extra: Sequence[str],
        *,
        keys: pa.Array | None = None,
        times: int = _TIMES,
    ) -> MergedRows:
        """The rows of some keys, or of all.

        When a generation is collected under way, the keys of its rows that were not given out yet
        are read in the state of then, so that each is given out once, as it is now. In that state
        the same may happen again, though not for ever.
        """

        def elsewhere(left: pa.Array) -> Iterator[pa.RecordBatch]:
            again, newer = collect_newest(self._collect)
            if output_schema(again.base, schema.names).types != schema.types:
                raise ConflictError(
                    f"the columns of {again.base.location} changed while it was scanned; scan again"
                )
            rows = self._rows(again, newer, schema, extra, keys=left, times=times - 1)
            yield from rows.batches(None)

        return MergedRows(
            sources,
            newest,
            schema,
            self._filter,
            extra,
            keys=keys,
            elsewhere=elsewhere if times else None,
        )

    def _run(self, rows: MergedRows) -> Iterator[pa.RecordBatch]:
        skip = self._offset
        left = self._limit
        if left == 0:
            return
        with _translated(rows.sources.base), understood(self._filter):
            for batch in rows.batches(None if left is None else left + skip):
                skipped = min(skip, batch.num_rows)
                skip -= skipped
                batch = batch.slice(skipped, left)
                if not batch.num_rows:
                    continue
                yield batch
                if left is not None:
                    left -= batch.num_rows
                    if left <= 0:
                        return


def collect_newest(collect: Callable[[], ReadSources]) -> tuple[ReadSources, NewestRows]:
    """Collect the sources of a read, and the newest row of each key among its generations.

    A generation that was collected in between is in the base table by then: everything is
    collected again.
    """
    return while_collected(lambda: _collect_once(collect))


def _collect_once(collect: Callable[[], ReadSources]) -> tuple[ReadSources, NewestRows]:
    sources = collect()
    base = sources.base
    # A version from before MemWAL was enabled may have no key, and then nothing has to be compared.
    key_type = keys_of(base.schema.empty_table(), base.primary_key).type
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


def _translated(base: BaseTable) -> AbstractContextManager[None]:
    return lance_errors(
        f"scanning {base.location}",
        gone=(
            f"files of version {base.version} of {base.location} were deleted while it was "
            "scanned; scan again, and clean up only versions that are older than the longest "
            "scan takes (older_than of Lance's cleanup_old_versions), or tag the version"
        ),
    )
