"""Writer of a table: routes rows to region writers, which are claimed on demand.

Failures of the parts of a write are joined into one error for the whole write.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any
from uuid import UUID

import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import InvalidInputError, MemWalError, PartialWriteError, RegionFailure
from memwal.format.paths import TOMBSTONE
from memwal.lsm.memtable.unflushed import UnflushedRows
from memwal.lsm.wal.applied_steps import Step
from memwal.region.router import RegionAssignment, Router
from memwal.util.clock import boot_seconds
from memwal.util.concurrency import ForkGuard
from memwal.writer.metrics import process_metrics
from memwal.writer.open_regions import OpenRegions
from memwal.writer.region_writer.context import WriterContext
from memwal.writer.region_writer.handle import (
    Part,
    PendingWrite,
    WriteHandle,
    copy_error,
    finished_write,
)
from memwal.writer.region_writer.options import WriterOptions
from memwal.writer.region_writer.partial_rows import PartialRows
from memwal.writer.region_writer.rows import RowSchema
from memwal.writer.region_writer.stats import WriterStats, warn_if_unclosed
from memwal.writer.region_writer.steps import AppliedStep
from memwal.writer.region_writer.writer import WholeRows
from memwal.writer.routing import RoutingSchema

Route = Callable[[pa.RecordBatch], list[tuple[RegionAssignment, pa.RecordBatch]]]
"""Splits rows by region."""


def raise_failure(parts: Sequence[Part]) -> None:
    """Raise what the failure of a write to one region means."""
    for _, part in parts:
        if part.error is not None:
            raise copy_error(part.error)


def raise_failures(route: Route, batches: Iterable[pa.RecordBatch], parts: Sequence[Part]) -> None:
    """Raise what the failures of some regions mean for the whole write."""
    errors = {region_id: copy_error(w.error) for region_id, w in parts if w.error is not None}
    if not errors:
        return
    kinds = {type(error) for error in errors.values()}
    if len(errors) == len(parts) and len(kinds) == 1:
        raise next(iter(errors.values()))
    positions = _row_positions_by_region(route, batches)
    failures = [RegionFailure(i, error, positions[i]) for i, error in errors.items()]
    raise PartialWriteError(
        f"{len(errors)} of {len(parts)} regions did not take their rows "
        f"({sum(len(f.rows) for f in failures):,} rows; the others are durable): "
        + "; ".join(f"{f.region_id}: {f.error}" for f in failures[:3]),
        failures,
    )


def _row_positions_by_region(
    route: Route, batches: Iterable[pa.RecordBatch]
) -> dict[UUID, pa.Array]:
    """Which rows belong to each region."""
    found: dict[UUID, list[pa.Array]] = {}
    start = 0
    for batch in batches:
        numbers = pa.array(range(start, start + batch.num_rows), pa.int64())
        start += batch.num_rows
        numbered = batch.append_column("", numbers)
        for assignment, rows in route(numbered):
            found.setdefault(assignment.region_id, []).append(rows.column(rows.num_columns - 1))
    return {region_id: pa.concat_arrays(parts) for region_id, parts in found.items()}


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
    region : UUID, optional
        The one region of a table whose regions are written by hand.
    replay : bool, default True
        Whether a region's first claim takes over the rows of its log that were never flushed.
    clock : callable
        Seconds that go on while the machine sleeps: how long ago a region was known to be ours.
    """

    def __init__(
        self,
        base: BaseTable,
        *,
        options: WriterOptions,
        region_ids: Collection[UUID] | None = None,
        region: UUID | None = None,
        replay: bool = True,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._region = region
        self._form = RoutingSchema.of(base, region)
        self._options = options
        self._guard = ForkGuard(f"the writer of {base.location}")
        metrics = process_metrics()
        self._context = WriterContext.open(
            base, self._form.row_schema.schema, options, metrics.durations(base.location), clock
        )
        self._counters = self._context.counters
        self._sync_table()
        self._regions = OpenRegions(self._context, allowed=region_ids, keep=replay)
        self._refreshing = threading.Lock()
        self._unwatch = metrics.watch(self, self._counters, per_region=options.metrics_per_region)
        self._loss = warn_if_unclosed(self, self._counters)

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
            form, batches = self._shaped(data, RowSchema.convert_partial)
            return self._write(form, batches, PartialRows, wait)
        form, batches = self._shaped(data, RowSchema.convert_upserts)
        return self._write(form, batches, WholeRows, wait)

    def delete(self, keys: Any, *, wait: bool | None = None) -> WriteHandle:
        """Delete rows by key; keys that do not exist are fine.

        Parameters
        ----------
        keys : anything Arrow
            The key columns, or an array where the key has one column; with them the columns by
            which the table is divided into regions, where these are not part of the key.
        wait : bool, optional
            As for :meth:`upsert`.

        Raises
        ------
        MemWalError
            As :meth:`upsert`.
        """
        self._guard.check()
        form, batches = self._shaped(keys, RowSchema.convert_deletes)
        if not form.columns_beside_key or not batches:
            return self._write(form, batches, WholeRows, wait)
        by = _concat_batches(form.row_schema.convert_partial(keys))
        return self._write(form, [_concat_batches(batches)], WholeRows, wait, by=by)

    def apply(
        self, *, upserts: Any = None, deletes: Any = None, source: str, version: int
    ) -> AppliedStep:
        """Write one step of a source, which a region takes whole or not at all, and only once.

        For what comes again after a crash: the batch of a stream, a transaction of another
        database. The log of a region tells the newest version of every source that it took, in the
        same entry as the rows. A step with that version or a lower one writes nothing there: a
        step that comes again does not undo what was written since, and a process that was paused
        cannot bring an old one after a newer one. Steps are always waited for.

        Regions take their parts side by side, each once: after an error some may have theirs. The
        same step again, with the same rows, completes it.

        Parameters
        ----------
        upserts : anything Arrow, optional
            Whole rows. Of several with one key, the last one counts.
        deletes : anything Arrow, optional
            Keys, as for :meth:`delete`. A key that is also upserted is deleted.
        source : str
            Whose step it is: one name for each sequence of versions.
        version : int
            Which step, from 0 to 2**64 - 1. Grows from each step of the source to the next.

        Returns
        -------
        AppliedStep
            Which regions took it now, and which had it.

        Raises
        ------
        MemWalError
            As :meth:`upsert`.
        """
        self._guard.check()
        step = Step(source, version)
        given = tuple(_materialize(rows) for rows in (upserts, deletes))
        form, batches = self._shaped(given, _step_rows)
        route: Route = form.router.route
        if form.columns_beside_key and given[1] is not None and len(given[1]):
            by = _concat_batches(form.row_schema.convert_partial(given[1]))
            route = functools.partial(_route_step, form.router, by)
        parts = sorted(self._routed(route, batches), key=lambda part: part[0].region_id)
        self._regions.claim(form, [assignment for assignment, _ in parts])
        rows = [(assignment, WholeRows(form.row_schema, part)) for assignment, part in parts]
        writes = self._regions.write_all(form, rows, step=step)
        found = [(a.region_id, write) for (a, _), write in zip(parts, writes, strict=True)]
        raise_failures(route, batches, found)
        return AppliedStep(
            written=tuple(region_id for region_id, write in found if write.rows),
            skipped=tuple(region_id for region_id, write in found if not write.rows),
        )

    @property
    def is_open(self) -> bool:
        """Whether it takes writes, in this process."""
        return not (self._guard.inherited or self._regions.closed)

    def flush_wal(self) -> None:
        """Wait until every buffered write is durable.

        Raises
        ------
        MemWalError
            What one of them failed with; handles tell which.
        """
        self._guard.check()
        self._regions.barrier(seals=False, deadline=math.inf)

    def claim(self, assignments: Sequence[RegionAssignment] | None = None) -> None:
        """Claim regions now rather than with their first row.

        Parameters
        ----------
        assignments : sequence of RegionAssignment, optional
            By default every region that the spec knows in advance and this writer may claim.
        """
        self._guard.check()
        self._regions.check_open()
        known = self._form.router.assignments() if assignments is None else assignments
        wanted = [a for a in known or () if self._regions.may_claim(a.region_id)]
        errors = self._regions.claim(self._form, wanted)
        if errors:
            raise errors[0]

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
        self._regions.barrier(seals=True, deadline=_deadline(timeout))

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
        if self._regions.closed:
            return
        try:
            self._regions.barrier(seals=True, deadline=_deadline(timeout))
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
        return {region.region_id: region.memtables() for region in self._regions.all()}

    def stats(self) -> WriterStats:
        """What this writer did and holds."""
        self._guard.check()
        return self._counters.stats(
            [region.stats() for region in self._regions.all()], closed=self._regions.closed
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
        self, data: Any, make: Callable[[RowSchema, Any], list[pa.RecordBatch]]
    ) -> tuple[RoutingSchema, list[pa.RecordBatch]]:
        """Stored rows; if they do not fit, perhaps the table has changed."""
        data = _materialize(data)
        form = self._form
        try:
            return form, make(form.row_schema, data)
        except InvalidInputError:
            form = self._refreshed(form)
            return form, make(form.row_schema, data)

    def _refreshed(self, known: RoutingSchema) -> RoutingSchema:
        """The form of today's table."""
        base = open_base(known.base.location)
        with self._refreshing:
            if not base.identified_schema.equals(
                self._form.base.identified_schema, check_metadata=True
            ):
                self._sync_table()
                self._form = RoutingSchema.of(base, self._region)
            return self._form

    def _sync_table(self) -> None:
        """Make durable what acknowledged rows will need: Lance syncs neither tables nor columns."""
        if self._options.fsync:
            self._context.store.barrier()

    def _write(
        self,
        form: RoutingSchema,
        batches: list[pa.RecordBatch],
        rows_of: Callable[[RowSchema, list[pa.RecordBatch]], WholeRows | PartialRows],
        wait: bool | None,
        *,
        by: pa.RecordBatch | None = None,
    ) -> WriteHandle:
        if wait is None:
            wait = self._options.durable
        route = form.router.route if by is None else functools.partial(form.router.route, by=by)
        parts = self._routed(route, batches)
        if len(parts) == 1:
            assignment, part = parts[0]
            write = self._regions.write(form, assignment, rows_of(form.row_schema, part), wait=wait)
            if wait and write.error is not None:
                raise copy_error(write.error)
            return WriteHandle(((assignment.region_id, write),), raise_failure)
        return self._write_parts(
            form, parts, rows_of, wait, functools.partial(raise_failures, route, batches)
        )

    def _routed(
        self, route: Route, batches: Sequence[pa.RecordBatch]
    ) -> list[tuple[RegionAssignment, list[pa.RecordBatch]]]:
        parts: dict[UUID, tuple[RegionAssignment, list[pa.RecordBatch]]] = {}
        for batch in batches:
            for assignment, rows in route(batch):
                part = parts.get(assignment.region_id)
                if part is None:
                    parts[assignment.region_id] = (assignment, [rows])
                else:
                    part[1].append(rows)
        self._regions.check_allowed(parts)
        return list(parts.values())

    def _write_parts(
        self,
        form: RoutingSchema,
        parts: Sequence[tuple[RegionAssignment, list[pa.RecordBatch]]],
        rows_of: Callable[[RowSchema, list[pa.RecordBatch]], WholeRows | PartialRows],
        wait: bool,
        settle_parts: Callable[[Sequence[Part]], None],
    ) -> WriteHandle:
        """One write per region, side by side, acknowledged as one."""
        # What a claim fails with, the write of its region fails with again.
        self._regions.claim(form, [assignment for assignment, _ in parts])
        ids = [assignment.region_id for assignment, _ in parts]
        rows = [(assignment, rows_of(form.row_schema, part)) for assignment, part in parts]
        if wait and rows_of is WholeRows:
            whole = [(a, r) for a, r in rows if isinstance(r, WholeRows)]
            writes = self._regions.write_all(form, whole)
        else:
            writes = [self._accepted(form, assignment, part) for assignment, part in rows]
        handle = WriteHandle(list(zip(ids, writes, strict=True)), settle_parts)
        if wait:
            handle.wait()
        return handle

    def _accepted(
        self, form: RoutingSchema, assignment: RegionAssignment, rows: WholeRows | PartialRows
    ) -> PendingWrite:
        """A part that is handed over, or that is done because it was refused."""
        try:
            return self._regions.write(form, assignment, rows, wait=False)
        except MemWalError as error:
            return finished_write(error)

    def _end(self, *, wait: bool) -> None:
        self._regions.close()
        self._context.close(wait=wait)
        self._unwatch()
        self._loss.detach()


def _materialize(data: Any) -> Any:
    """A stream as a table: it may be looked at twice."""
    return data.read_all() if isinstance(data, pa.RecordBatchReader) else data


def _step_rows(row_schema: RowSchema, given: tuple[Any, Any]) -> list[pa.RecordBatch]:
    """Stored rows of a step: upserts, then deletes as one batch."""
    upserts, deletes = given
    rows = [] if upserts is None else row_schema.convert_upserts(upserts)
    gone = [] if deletes is None else row_schema.convert_deletes(deletes)
    return [*rows, *([_concat_batches(gone)] if gone else [])]


def _route_step(
    router: Router, by: pa.RecordBatch, batch: pa.RecordBatch
) -> list[tuple[RegionAssignment, pa.RecordBatch]]:
    """Route upserts by themselves and deletes by the columns that were given with their keys."""
    is_deletes = batch.column(TOMBSTONE)[0].as_py()
    return router.route(batch, by=by if is_deletes else None)


def _concat_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _deadline(timeout: float | None) -> float:
    """Monotonic seconds."""
    return math.inf if timeout is None else time.monotonic() + timeout
