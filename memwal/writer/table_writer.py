"""The writer of a table: rows go to the writers of their regions, which are claimed on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any
from uuid import UUID

import pyarrow as pa

from memwal.errors import InvalidInputError, WriterClosedError
from memwal.region.routing import RegionAssignment, Router
from memwal.region.row_schema import UnflushedRows
from memwal.region.spec import RegionSpec
from memwal.table_index.base_table import BaseTable
from memwal.writer.generation import maintained_indexes
from memwal.writer.options import WriterOptions
from memwal.writer.region_writer import RegionWriter, TableContext
from memwal.writer.rows import RowShape

_FLUSH_THREADS = 2
_PARALLEL_REGIONS = 16


class TableWriter:
    """Writes rows of one table into the regions that they belong to.

    Safe to use from many threads. A write that spans regions is one write per region: when it
    fails, some regions may have taken their part, and writing it again is right.

    Parameters
    ----------
    base : BaseTable
        The table, with MemWAL enabled.
    spec : RegionSpec
        How rows map to regions.
    spec_id : int
        Id of the spec in the table's details.
    options : WriterOptions
        Of each region's writer.
    region_ids : collection of UUID, optional
        The only regions that this writer may claim. A row of another one is refused before
        anything is written.
    """

    def __init__(
        self,
        base: BaseTable,
        spec: RegionSpec,
        *,
        spec_id: int,
        options: WriterOptions,
        region_ids: Collection[UUID] | None = None,
    ) -> None:
        shape = RowShape(base.identified_schema, base.primary_key)
        self._flushes = ThreadPoolExecutor(_FLUSH_THREADS, thread_name_prefix="memwal-flush")
        self._pool = ThreadPoolExecutor(_PARALLEL_REGIONS, thread_name_prefix="memwal-write")
        self._context = TableContext(
            base=base,
            shape=shape,
            indexes=maintained_indexes(base),
            options=options,
            executor=self._flushes,
        )
        self._router = Router(spec, shape.schema)
        self._spec_id = spec_id
        self._allowed = frozenset(region_ids) if region_ids is not None else None
        self._lock = threading.Lock()
        self._claims: dict[UUID, threading.Lock] = {}
        self._regions: dict[UUID, RegionWriter] = {}
        self._closed = False

    def upsert(self, data: Any) -> None:
        """Insert rows, or replace those that have the same key. Durable when it returns.

        Parameters
        ----------
        data : anything Arrow
            Whole rows. Of several rows with one key in ``data``, the last one counts.

        Raises
        ------
        InvalidInputError
            The rows do not fit the table; nothing was written.
        RegionFencedError
            Another writer claimed a region; open a new writer to claim it back.
        OutcomeUnknownError
            The store does not tell whether the rows are in the log.
        BackPressureError
            Flushing cannot keep up; the rows of that region were not accepted.
        """
        self._write(self._context.shape.upserts(data))

    def delete(self, keys: Any) -> None:
        """Delete rows by key. Durable when it returns; keys that do not exist are fine.

        Parameters
        ----------
        keys : anything Arrow
            The key columns, or an array where the key has one column.

        Raises
        ------
        MemWalError
            As :meth:`upsert`.
        """
        self._write(self._context.shape.deletes(keys))

    def claim(self, assignments: Sequence[RegionAssignment] | None = None) -> None:
        """Claim regions now rather than with their first row.

        Parameters
        ----------
        assignments : sequence of RegionAssignment, optional
            By default every region that the spec knows in advance and this writer may claim.
        """
        known = self._router.assignments() if assignments is None else assignments
        wanted = [a for a in known or () if self._may_claim(a)]
        self._run([partial(self._region, assignment) for assignment in wanted])

    def flush(self) -> None:
        """Seal and flush every region's MemTable, and wait for it."""
        self._run([region.flush for region in self._open_regions()])

    def close(self) -> None:
        """Flush everything and take no more writes."""
        if self._closed:
            return
        try:
            self._run([region.close for region in self._open_regions()])
        finally:
            self._shut_down()

    def abort(self) -> None:
        """Take no more writes, without a flush: the logs keep the rows for the next claim."""
        for region in self._open_regions():
            region.abort()
        self._shut_down()

    def memtables(self) -> dict[UUID, list[UnflushedRows]]:
        """What this writer holds and has not flushed, per region."""
        return {region.region_id: region.memtables() for region in self._open_regions()}

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _write(self, batches: list[pa.RecordBatch]) -> None:
        parts: dict[UUID, tuple[RegionAssignment, list[pa.RecordBatch]]] = {}
        for batch in batches:
            for assignment, rows in self._router.route(batch):
                parts.setdefault(assignment.region_id, (assignment, []))[1].append(rows)
        foreign = [a.region_id for a, _ in parts.values() if not self._may_claim(a)]
        if foreign:
            raise InvalidInputError(
                f"rows belong to regions that this writer may not claim: "
                f"{', '.join(str(region_id) for region_id in foreign)}; nothing was written"
            )
        self._run([partial(self._upsert, a, rows) for a, rows in parts.values()])

    def _upsert(self, assignment: RegionAssignment, rows: list[pa.RecordBatch]) -> None:
        self._region(assignment).upsert(rows)

    def _may_claim(self, assignment: RegionAssignment) -> bool:
        return self._allowed is None or assignment.region_id in self._allowed

    def _region(self, assignment: RegionAssignment) -> RegionWriter:
        """The writer of a region; the first call for a region claims it."""
        region_id = assignment.region_id
        with self._lock:
            self._check_open()
            writer = self._regions.get(region_id)
            if writer is not None:
                return writer
            claiming = self._claims.setdefault(region_id, threading.Lock())
        with claiming:
            with self._lock:
                writer = self._regions.get(region_id)
            if writer is None:
                writer = RegionWriter(
                    self._context,
                    region_id,
                    spec_id=self._spec_id,
                    region_fields=assignment.field_values,
                )
                with self._lock:
                    self._regions[region_id] = writer
            return writer

    def _open_regions(self) -> list[RegionWriter]:
        with self._lock:
            return list(self._regions.values())

    def _run(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Run calls side by side; the first error is raised after all have ended."""
        if len(calls) == 1:
            calls[0]()
            return
        with self._lock:
            self._check_open()
            futures = [self._pool.submit(call) for call in calls]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _check_open(self) -> None:
        if self._closed:
            raise WriterClosedError("the writer of this table is closed; open a new one")

    def _shut_down(self) -> None:
        with self._lock:
            self._closed = True
        self._pool.shutdown()
        self._flushes.shutdown()
