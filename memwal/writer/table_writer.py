"""The writer of a table: rows go to the writers of their regions, which are claimed on demand."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any
from uuid import UUID

import pyarrow as pa

from memwal.errors import (
    InvalidInputError,
    MemWalError,
    PartialWriteError,
    RegionFailure,
    WriterClosedError,
)
from memwal.memtable.unflushed import UnflushedRows
from memwal.region.routing import RegionAssignment, Router
from memwal.table_index.base_table import BaseTable, open_base
from memwal.table_index.region_specs import current_spec
from memwal.writer.completion import PartialRows
from memwal.writer.fork import ForkGuard
from memwal.writer.handle import PendingWrite, WriteHandle, as_error
from memwal.writer.metrics import process_metrics
from memwal.writer.options import WriterOptions
from memwal.writer.region_writer import RegionWriter, WholeRows, Workshop
from memwal.writer.rows import RowShape
from memwal.writer.stats import WriterCounters, WriterStats
from memwal.writer.text_columns import text_columns
from memwal.writer.upkeep import Upkeep, watch_for_loss

_FLUSH_THREADS = 2
_APPEND_THREADS = 16

Part = tuple[UUID, PendingWrite]


@dataclass(frozen=True, slots=True)
class Form:
    """What rows look like and where they go, as of one version of the table."""

    base: BaseTable
    shape: RowShape
    spec_id: int
    router: Router

    @classmethod
    def of(cls, base: BaseTable) -> Form:
        """Derive it from a version of the table.

        Raises
        ------
        InvalidInputError
            The table's rows are routed by a column that is not part of the key.
        """
        spec_id, spec = current_spec(base)
        # Lance lets rows be routed by a column outside the key; one key could then be in two
        # regions, and a delete would not know in which.
        spec.check_keys(base.primary_key)
        shape = RowShape(base.identified_schema, base.primary_key)
        return cls(base, shape, spec_id, Router(spec, shape.schema))


class TableWriter:
    """Writes rows of one table into the regions that they belong to.

    Safe to use from many threads, not after a fork. When columns of the table are added, renamed
    or dropped, an open writer goes on with those it knows; it learns of others with the first rows
    that have them.

    Parameters
    ----------
    base : BaseTable
        The table, with MemWAL enabled.
    options : WriterOptions
    region_ids : collection of UUID, optional
        The only regions that this writer may claim. A row of another one is refused before
        anything is written.
    """

    def __init__(
        self,
        base: BaseTable,
        *,
        options: WriterOptions,
        region_ids: Collection[UUID] | None = None,
    ) -> None:
        self._form = Form.of(base)
        self._options = options
        self._guard = ForkGuard(f"the writer of {base.location}")
        self._flushes = ThreadPoolExecutor(_FLUSH_THREADS, thread_name_prefix="memwal-flush")
        self._appends = ThreadPoolExecutor(_APPEND_THREADS, thread_name_prefix="memwal-append")
        # One by one, and not among the appends, since they wait for appends and flushes.
        self._releases = ThreadPoolExecutor(1, thread_name_prefix="memwal-release")
        self._upkeep = Upkeep()
        metrics = process_metrics()
        self._counters = WriterCounters(base.location, durations=metrics.durations(base.location))
        self._workshop = Workshop(
            location=base.location,
            store=base.location.store,
            log_store=base.location.store if options.fsync else base.location.store_without_fsync,
            options=options,
            text=text_columns(base, self._form.shape.schema),
            flushes=self._flushes,
            appends=self._appends,
            upkeep=self._upkeep,
            counters=self._counters,
        )
        self._is_instant = not options.fsync and base.location.store.is_local
        self._allowed = frozenset(region_ids) if region_ids is not None else None
        self._lock = threading.Lock()
        self._claims: dict[UUID, threading.Lock] = {}
        self._regions: dict[UUID, RegionWriter] = {}
        self._closed = False
        self._idle_task = self._upkeep.task(self._release_idle)
        self._unwatch = metrics.watch(self, self._counters, per_region=options.metrics_per_region)
        self._loss = watch_for_loss(self, self._counters)

    # Writes

    def upsert(self, data: Any, *, partial: bool = False, wait: bool | None = None) -> WriteHandle:
        """Insert rows, or replace those that have the same key.

        Parameters
        ----------
        data : anything Arrow
            Rows. Of several with one key in ``data``, the last one counts.
        partial : bool, default False
            Whether columns other than the key may be missing. They keep the value that the row
            has; in a row that does not exist yet they are null.
        wait : bool, optional
            Whether to return only when the rows are durable; by default what the writer's options
            say. Rows that are not waited for must not be changed until the handle is done.

        Returns
        -------
        WriteHandle
            Tells when the rows are durable; done if ``wait``.

        Raises
        ------
        InvalidInputError
            The rows do not fit the table; nothing was written.
        RegionFencedError
            Another writer claimed a region; open a new writer to claim it back.
        OutcomeUnknownError
            The store does not tell whether the rows are in the log.
        BackPressureError
            Flushing cannot keep up; the rows were not accepted.
        PartialWriteError
            One of the above for some regions only; it tells for which rows. To write all of them
            again is right, too.
        """
        self._guard.check()
        if partial:
            form, batches = self._shaped(data, RowShape.partial)
            return self._write(form, batches, PartialRows, wait)
        form, batches = self._shaped(data, RowShape.upserts)
        return self._write(form, batches, WholeRows, wait)

    def delete(self, keys: Any, *, wait: bool | None = None) -> WriteHandle:
        """Delete rows by key; keys that do not exist are fine.

        Parameters
        ----------
        keys : anything Arrow
            The key columns, or an array where the key has one column.
        wait : bool, optional
            As for :meth:`upsert`.

        Raises
        ------
        MemWalError
            As :meth:`upsert`.
        """
        self._guard.check()
        form, batches = self._shaped(keys, RowShape.deletes)
        return self._write(form, batches, WholeRows, wait)

    def flush_wal(self) -> None:
        """Wait until every buffered write is durable.

        Raises
        ------
        MemWalError
            What one of them failed with; handles tell which.
        """
        self._guard.check()
        self._barrier(seals=False, deadline=math.inf)

    def claim(self, assignments: Sequence[RegionAssignment] | None = None) -> None:
        """Claim regions now rather than with their first row.

        Parameters
        ----------
        assignments : sequence of RegionAssignment, optional
            By default every region that the spec knows in advance and this writer may claim.
        """
        self._guard.check()
        known = self._form.router.assignments() if assignments is None else assignments
        wanted = [a for a in known or () if self._may_claim(a)]
        self._run([partial(self._region, self._form, assignment) for assignment in wanted])

    def flush(self, *, timeout: float | None = None) -> None:
        """Seal and flush every region's MemTable, and wait for it.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; for ever by default.

        Raises
        ------
        BackPressureError
            It is not done in time; it goes on in the background.
        """
        self._guard.check()
        self._barrier(seals=True, deadline=_deadline(timeout))

    def close(self, *, timeout: float | None = None) -> None:
        """Flush everything and take no more writes. A second call does nothing.

        Parameters
        ----------
        timeout : float, optional
            Seconds for the flush; for ever by default. After it the writer is closed all the
            same: what is in the log is replayed by the next claim.

        Raises
        ------
        BackPressureError
            Not everything was flushed in time.
        """
        self._guard.check()
        if self._closed:
            return
        try:
            self._barrier(seals=True, deadline=_deadline(timeout))
        finally:
            self._end(wait=timeout is None)

    def abort(self) -> None:
        """Take no more writes, without a flush: the logs keep the rows for the next claim.

        Buffered writes that are not in the log yet fail.
        """
        self._guard.check()
        self._end(wait=True)

    # What is there

    def memtables(self) -> dict[UUID, list[UnflushedRows]]:
        """What this writer holds and has not flushed, per region."""
        self._guard.check()
        return {region.region_id: region.memtables() for region in self._open_regions()}

    def stats(self) -> WriterStats:
        """What this writer did and holds."""
        self._guard.check()
        return self._counters.stats(
            [region.stats() for region in self._open_regions()], closed=self._closed
        )

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
        elif not self._guard.inherited:
            self.abort()

    # Rows to regions

    def _shaped(
        self, data: Any, make: Callable[[RowShape, Any], list[pa.RecordBatch]]
    ) -> tuple[Form, list[pa.RecordBatch]]:
        """Stored rows; if they do not fit, perhaps the table has changed."""
        if isinstance(data, pa.RecordBatchReader):
            data = data.read_all()
        form = self._form
        try:
            return form, make(form.shape, data)
        except InvalidInputError:
            form = self._refreshed(form)
            return form, make(form.shape, data)

    def _refreshed(self, known: Form) -> Form:
        """The form of today's table."""
        base = open_base(known.base.location)
        with self._lock:
            if not base.identified_schema.equals(
                self._form.base.identified_schema, check_metadata=True
            ):
                self._form = Form.of(base)
            return self._form

    def _write(
        self,
        form: Form,
        batches: list[pa.RecordBatch],
        rows_of: Callable[[RowShape, list[pa.RecordBatch]], WholeRows | PartialRows],
        wait: bool | None,
    ) -> WriteHandle:
        if wait is None:
            wait = self._options.durable
        parts = self._routed(form, batches)
        if len(parts) == 1:
            assignment, part = parts[0]
            write = self._write_part(form, assignment, rows_of(form.shape, part), wait)
            if wait and write.error is not None:
                raise as_error(write.error)
            return WriteHandle(((assignment.region_id, write),), _settle_one)
        return self._write_parts(form, batches, parts, rows_of, wait)

    def _routed(
        self, form: Form, batches: Sequence[pa.RecordBatch]
    ) -> list[tuple[RegionAssignment, list[pa.RecordBatch]]]:
        parts: dict[UUID, tuple[RegionAssignment, list[pa.RecordBatch]]] = {}
        for batch in batches:
            for assignment, rows in form.router.route(batch):
                part = parts.get(assignment.region_id)
                if part is None:
                    parts[assignment.region_id] = (assignment, [rows])
                else:
                    part[1].append(rows)
        if self._allowed is not None:
            foreign = [a.region_id for a, _ in parts.values() if not self._may_claim(a)]
            if foreign:
                raise InvalidInputError(
                    f"rows belong to regions that this writer may not claim: "
                    f"{', '.join(str(region_id) for region_id in foreign)}; nothing was written"
                )
        return list(parts.values())

    def _write_parts(
        self,
        form: Form,
        batches: list[pa.RecordBatch],
        parts: Sequence[tuple[RegionAssignment, list[pa.RecordBatch]]],
        rows_of: Callable[[RowShape, list[pa.RecordBatch]], WholeRows | PartialRows],
        wait: bool,
    ) -> WriteHandle:
        """One write per region, side by side, acknowledged as one."""
        self._claim_all(form, [assignment for assignment, _ in parts])
        written: list[Part] = []
        for number, (assignment, part) in enumerate(parts, start=1):
            # The others are handed over, and this thread writes the last one itself. Where there
            # is nothing to wait for, handing over costs more than it saves.
            mine = wait and (self._is_instant or number == len(parts))
            try:
                write = self._write_part(form, assignment, rows_of(form.shape, part), mine)
            except MemWalError as error:
                write = PendingWrite([])
                write.finish(error)
            written.append((assignment.region_id, write))
        handle = WriteHandle(written, partial(_settle, form.router, batches))
        if wait:
            handle.wait()
        return handle

    def _write_part(
        self,
        form: Form,
        assignment: RegionAssignment,
        rows: WholeRows | PartialRows,
        wait: bool,
    ) -> PendingWrite:
        while True:
            region = self._region(form, assignment)
            try:
                return region.write(rows, wait=wait)
            except WriterClosedError:
                if not region.released:
                    raise
                # Given up when idle, while this write was on its way to it.
                self._forget(region)

    # Regions

    def _may_claim(self, assignment: RegionAssignment) -> bool:
        return self._allowed is None or assignment.region_id in self._allowed

    def _claim_all(self, form: Form, assignments: Sequence[RegionAssignment]) -> None:
        """Claim those of the regions that are not held, side by side.

        What a claim fails with, the write of its region fails with.
        """
        missing = [a for a in assignments if a.region_id not in self._regions]
        if len(missing) > 1:
            with self._lock:
                self._check_open()
                claims = [self._appends.submit(self._region, form, a) for a in missing]
            for claim in claims:
                claim.exception()

    def _region(self, form: Form, assignment: RegionAssignment) -> RegionWriter:
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
                    self._workshop,
                    region_id,
                    form.shape,
                    spec_id=form.spec_id,
                    region_fields=assignment.field_values,
                )
                with self._lock:
                    self._regions[region_id] = writer
                if self._options.release_idle_after is not None:
                    self._idle_task.schedule(time.monotonic() + self._options.release_idle_after)
            return writer

    def _forget(self, region: RegionWriter) -> None:
        with self._lock:
            if self._regions.get(region.region_id) is region:
                del self._regions[region.region_id]

    def _release_idle(self) -> None:
        """Have regions given up that were not written to for long."""
        longest = self._options.release_idle_after
        if longest is None:
            return
        since = time.monotonic() - longest
        regions = self._open_regions()
        idle = [region for region in regions if region.used_at() <= since]
        with self._lock:
            if self._closed:
                return
            for region in idle:
                self._releases.submit(self._release, region, since)
        if regions:
            oldest = min((r.used_at() for r in regions if r not in idle), default=time.monotonic())
            self._idle_task.schedule(min(oldest, time.monotonic()) + longest)

    def _release(self, region: RegionWriter, since: float) -> None:
        if region.release(since):
            self._forget(region)

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
            futures = [self._appends.submit(call) for call in calls]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _check_open(self) -> None:
        if self._closed:
            raise WriterClosedError("the writer of this table is closed; open a new one")

    def _barrier(self, *, seals: bool, deadline: float) -> None:
        """Start a barrier in every region, then wait for all; the first error is raised."""
        started: list[tuple[RegionWriter, PendingWrite]] = []
        errors: list[Exception] = []
        for region in self._open_regions():
            try:
                started.append((region, region.start_barrier(seals=seals)))
            except MemWalError as error:
                if not region.released:
                    errors.append(error)
        if not started and not errors:
            self._check_open()
        for region, barrier in started:
            try:
                region.finish_barrier(barrier, deadline=deadline)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _end(self, *, wait: bool) -> None:
        """Close the regions without a flush, and what they share."""
        with self._lock:
            self._closed = True
        for region in self._open_regions():
            region.abort()
        self._upkeep.close(timeout=None if wait else 0)
        for pool in (self._appends, self._releases, self._flushes):
            pool.shutdown(wait=wait)
        self._unwatch()
        self._loss.detach()


def _deadline(timeout: float | None) -> float:
    """Monotonic seconds."""
    return math.inf if timeout is None else time.monotonic() + timeout


def _settle_one(parts: Sequence[Part]) -> None:
    for _, part in parts:
        if part.error is not None:
            raise as_error(part.error)


def _settle(router: Router, batches: Iterable[pa.RecordBatch], parts: Sequence[Part]) -> None:
    """Raise what the failures of some regions mean for the whole write."""
    errors = {region_id: as_error(w.error) for region_id, w in parts if w.error is not None}
    if not errors:
        return
    kinds = {type(error) for error in errors.values()}
    if len(errors) == len(parts) and len(kinds) == 1:
        raise next(iter(errors.values()))
    positions = _positions(router, batches)
    failures = [RegionFailure(i, error, positions[i]) for i, error in errors.items()]
    raise PartialWriteError(
        f"{len(errors)} of {len(parts)} regions did not take their rows "
        f"({sum(len(f.rows) for f in failures):,} rows; the others are durable): "
        + "; ".join(f"{f.region_id}: {f.error}" for f in failures[:3]),
        failures,
    )


def _positions(router: Router, batches: Iterable[pa.RecordBatch]) -> dict[UUID, pa.Array]:
    """Which rows belong to each region."""
    found: dict[UUID, list[pa.Array]] = {}
    start = 0
    for batch in batches:
        numbers = pa.array(range(start, start + batch.num_rows), pa.int64())
        start += batch.num_rows
        numbered = batch.append_column("", numbers)
        for assignment, rows in router.route(numbered):
            found.setdefault(assignment.region_id, []).append(rows.column(rows.num_columns - 1))
    return {region_id: pa.concat_arrays(parts) for region_id, parts in found.items()}
