"""Writer of a table: routes rows to region writers, which claim their regions on demand."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Self, TypeVar
from uuid import UUID

import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, open_base
from memwal.boundary.public import public
from memwal.errors import InvalidInputError, MemWalError, PartialWriteError, RegionFailure
from memwal.format.paths import TOMBSTONE
from memwal.inputs.rows import Keys, Rows, import_data
from memwal.lsm.memtable.indexes import ClaimedRows
from memwal.lsm.row_schema import RowSchema, check_row_sizes
from memwal.lsm.wal.applied_steps import AppliedStep, Step
from memwal.region.router import RegionAssignment, Router
from memwal.util.clock import Duration, boot_seconds, in_seconds
from memwal.util.concurrency import ForkGuard
from memwal.writer.metrics import process_metrics
from memwal.writer.open_regions import OpenRegions, RoutingSchema
from memwal.writer.region_writer.context import WriterContext
from memwal.writer.region_writer.handle import (
    RegionWrite,
    WriteHandle,
    copy_error,
    finished_write,
)
from memwal.writer.region_writer.options import WriterOptions, WriterSettings
from memwal.writer.region_writer.partial_rows import PartialRows, convert_condition
from memwal.writer.region_writer.stats import WriterStats, warn_if_unclosed
from memwal.writer.region_writer.writer import WholeRows

Data = TypeVar("Data")
Route = Callable[[pa.RecordBatch], list[tuple[RegionAssignment, pa.RecordBatch]]]
"""Splits rows by region."""


@public
class TableWriter:
    """Writes rows of one table into the regions that they belong to.

    Safe to use from many threads, but not after a fork. When columns of the table are added,
    renamed or dropped, an open writer goes on with the columns of before; it reads the table again
    when rows do not fit them. ``base`` has MemWAL enabled; the options are those of
    :meth:`memwal.Table.writer`. ``clock`` measures how long ago a claim was verified, and includes
    time that the machine is suspended.
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
        self._routing = RoutingSchema.of(base, region)
        self.settings = settings = WriterSettings.of(options, base.details.writer_config_defaults)
        self._guard = ForkGuard(f"the writer of {base.location}")
        metrics = process_metrics()
        self._context = WriterContext(
            base, self._routing.row_schema.schema, settings, metrics.durations(base.location), clock
        )
        self._counters = self._context.counters
        self._sync_table()
        self._regions = OpenRegions(self._context, allowed=region_ids, keep=replay)
        self._refreshing = threading.Lock()
        self._unwatch = metrics.watch(self, self._counters, per_region=settings.metrics_per_region)
        self._unclosed_warning = warn_if_unclosed(self, self._counters)

    # Writes

    def upsert(
        self,
        data: Rows,
        *,
        partial: bool = False,
        only_if_unchanged: Rows | None = None,
        wait: bool | None = None,
    ) -> WriteHandle:
        """Insert rows, or replace the rows of the same keys.

        >>> with table.writer() as writer:
        ...     handle = writer.upsert([{"id": 4, "n": 8, "text": "d"}])
        ...     handle = writer.upsert({"id": [5, 6], "n": [9, 9], "text": ["e", None]})
        >>> table.count_rows()
        6

        Parameters
        ----------
        data : rows
            A pyarrow table, batch or reader, a data frame of pandas or polars, anything else with
            ``__arrow_c_stream__``; a dict of columns, a list of dicts or of LanceDB's models, or
            one dict or model for one row. If several rows have the same key, the last one counts.
            Values are cast to the table's types if they stay the same; only floats are rounded to
            narrower floats. A datetime without a time zone is UTC.
        partial : bool, default False
            Whether columns other than the key may be missing. They keep their value; in a row that
            does not exist yet they are null.
        only_if_unchanged : rows, optional
            Rows as they were read: the key and the columns to compare. A row of ``data`` is written
            only if the row of its key has these values when it goes to the log, or, for a key that
            is not among them, does not exist; null equals null. ``changed`` of the handle has the
            keys of the others. Structs, lists and blobs cannot be compared.
        wait : bool, optional
            Whether to return only when the rows are durable; ``durable`` of the options by
            default. If False, ``data`` must not be changed until the handle is done.

        Returns
        -------
        WriteHandle
            Handle to wait until the rows are durable; done if ``wait``.

        Raises
        ------
        ArgumentTypeError
            ``data`` is nothing of the above; nothing was written.
        InvalidInputError
            The rows do not fit the table; the message names column, row (from 0) and value. Nothing
            was written.
        RegionFencedError
            Another writer claimed a region; open a new writer to claim it back.
        OutcomeUnknownError
            Whether the rows are in the log is unknown.
        BackPressureError
            Flushes cannot keep up; the rows were not accepted.
        PartialWriteError
            One of the above for some regions only; it names their rows. Writing all rows again is
            right, too.
        """
        self._guard.check()
        # A stream is read once, here: the rows may be converted twice.
        data = import_data(data)
        convert = RowSchema.convert_partial if partial else RowSchema.convert_upserts
        if only_if_unchanged is None:
            routing, batches = self._convert(data, convert)
            return self._write(routing, batches, PartialRows if partial else WholeRows, wait)
        given = data, import_data(only_if_unchanged)
        routing, (*batches, condition) = self._convert(
            given,
            lambda schema, both: [*convert(schema, both[0]), convert_condition(schema, both[1])],
        )
        rows_of = functools.partial(PartialRows, condition=condition)
        return self._write(routing, batches, rows_of, wait)

    def append(self, data: Rows, *, wait: bool | None = None) -> WriteHandle:
        """Add rows to a table without a primary key. No row replaces another.

        >>> with events.writer() as writer:
        ...     handle = writer.append([{"at": 1, "what": "click"}, {"at": 1, "what": "click"}])
        >>> events.count_rows()
        2

        Rows that a writer added to a region keep their order. A call that fails with
        OutcomeUnknownError or RegionFencedError, also for a region of a PartialWriteError, may have
        added its rows, and a repetition would add them twice. A writer with ``reopen=True`` looks
        them up in the log; steps of :meth:`apply` can always be repeated.

        Parameters
        ----------
        data, wait
            As for :meth:`upsert`, whose errors are raised.
        """
        self._guard.check()
        routing, batches = self._convert(import_data(data), RowSchema.convert_appends)
        return self._write(routing, batches, WholeRows, wait)

    def delete(self, keys: Keys, *, wait: bool | None = None) -> WriteHandle:
        """Delete rows by key; keys that do not exist are fine.

        >>> with table.writer() as writer:
        ...     handle = writer.delete([1, 2])
        >>> table.count_rows()
        1

        Parameters
        ----------
        keys : keys
            Rows in any form that :meth:`upsert` takes, of which the key columns count. If the key
            has one column, also its values: an array, a Series, a list, or one value. Columns by
            which the table is divided into regions are needed too if they are not part of the key.
        wait : bool, optional
            As for :meth:`upsert`, whose errors are raised.
        """
        self._guard.check()
        keys = import_data(keys)
        routing, batches = self._convert(keys, RowSchema.convert_deletes)
        if not routing.columns_beside_key or not batches:
            return self._write(routing, batches, WholeRows, wait)
        by = _concat_batches(routing.row_schema.convert_partial(keys))
        return self._write(routing, [_concat_batches(batches)], WholeRows, wait, by=by)

    def apply(
        self,
        *,
        upserts: Rows | None = None,
        deletes: Keys | None = None,
        appends: Rows | None = None,
        source: str,
        version: int,
        incarnation: str = "",
        replaces: Collection[str] = (),
    ) -> AppliedStep:
        """Write one step of a source, which each region applies as a whole and only once.

        For input that is repeated after a crash: a batch of a stream, or a transaction of another
        database. The log of a region records the newest version of every source in the same entry
        as the rows. A step with that version or a lower one writes nothing there: a repeated step
        does not undo later writes, and a process that was paused cannot write an old step after a
        newer one. The call returns when the step is durable.

        Regions apply their parts concurrently: after an error some regions may have theirs.
        Repeating the step with the same rows completes it.

        Parameters
        ----------
        upserts : rows, optional
            Whole rows, as for :meth:`upsert`.
        deletes : keys, optional
            Keys, as for :meth:`delete`. A key that is also upserted is deleted.
        appends : rows, optional
            Rows of a table without a primary key, as for :meth:`append`.
        source : str
            Name of the sequence of steps.
        version : int
            Number of the step, from 0 to 2**64 - 1. Increases from each step of the source to the
            next.
        incarnation : str, optional
            Identity of the numbering, for sources that may count from 0 again: the id of a
            checkpoint, or of a replication slot. A step of another incarnation than the newest one
            of its region is an error. An incarnation may follow steps that have none, with a
            higher version.
        replaces : collection of str, optional
            Incarnations that are over: this step follows theirs, with any version, and theirs are
            refused from now on.

        Returns
        -------
        AppliedStep
            The regions that wrote the step now, and the regions that had it before.

        Raises
        ------
        SourceRestartedError
            A region has steps of another incarnation, or this one was replaced; nothing was
            written. Other errors are those of :meth:`upsert`.
        """
        self._guard.check()
        step = Step(source, version, incarnation, replaces)
        # Streams are read once here: the rows may be converted twice.
        upserted = None if upserts is None else import_data(upserts)
        deleted = None if deletes is None else import_data(deletes)
        appended = None if appends is None else import_data(appends)
        routing, batches = self._convert((upserted, deleted, appended), _convert_step)
        route: Route = routing.router.route
        has_deletes = bool(batches) and _is_deletes(batches[-1])
        if routing.columns_beside_key and deleted is not None and has_deletes:
            by = _concat_batches(routing.row_schema.convert_partial(deleted))
            route = functools.partial(_route_step, routing.router, by)
        parts = sorted(self._split(route, batches), key=lambda part: part[0].region_id)
        self._regions.claim(routing, [assignment for assignment, _ in parts])
        rows = [(assignment, WholeRows(routing.row_schema, part)) for assignment, part in parts]
        writes = self._regions.write_all(routing, rows, step=step)
        results = [(a.region_id, write) for (a, _), write in zip(parts, writes, strict=True)]
        _raise_failures(route, batches, results)
        return AppliedStep(
            written=tuple(region_id for region_id, write in results if write.rows),
            skipped=tuple(region_id for region_id, write in results if not write.rows),
        )

    @property
    def is_open(self) -> bool:
        """True if the writer accepts writes in this process."""
        return not (self._guard.inherited or self._regions.closed)

    def flush_wal(self) -> None:
        """Wait until every buffered write is durable.

        Raises MemWalError if one of them failed; the handles tell which.
        """
        self._guard.check()
        self._regions.barrier(seals=False, deadline=math.inf)

    def claim(self, assignments: Sequence[RegionAssignment] | None = None) -> None:
        """Claim regions now rather than with their first row.

        Parameters
        ----------
        assignments : sequence of RegionAssignment, optional
            By default, every region that the spec lists in advance. Regions that this writer may
            not claim are left out.
        """
        self._guard.check()
        self._regions.check_open()
        if assignments is None:
            assignments = self._routing.router.assignments() or ()
        allowed = [a for a in assignments if self._regions.may_claim(a.region_id)]
        errors = self._regions.claim(self._routing, allowed)
        if errors:
            raise errors[0]

    def flush(self, *, timeout: Duration | None = None) -> None:
        """Seal and flush the MemTables of all regions, and wait for it.

        If it is not done in ``timeout`` seconds, by default any number, it goes on in the
        background, and BackPressureError is raised.
        """
        self._guard.check()
        self._regions.barrier(seals=True, deadline=_deadline(timeout))

    def close(self, *, timeout: Duration | None = None) -> None:
        """Flush all regions and refuse further writes. A second call does nothing.

        After ``timeout`` seconds, by default any number, the writer is closed in any case, and
        BackPressureError is raised: the next claim replays the rows that are in the log.
        """
        self._guard.check()
        if self._regions.closed:
            return
        try:
            self._regions.barrier(seals=True, deadline=_deadline(timeout))
        finally:
            self._release(wait=timeout is None)

    def abort(self) -> None:
        """Refuse further writes, without a flush: the logs keep the rows for the next claim.

        Buffered writes that are not in the log yet fail.
        """
        self._guard.check()
        self._release(wait=True)

    # State

    def claims(self) -> dict[UUID, ClaimedRows]:
        """Return the claim of each region that this writer has open, with its unflushed rows."""
        self._guard.check()
        return {
            region.region_id: ClaimedRows(region.epoch, region.memtables())
            for region in self._regions.all()
        }

    def stats(self) -> WriterStats:
        """Return a snapshot of the writer's counters and MemTables."""
        self._guard.check()
        return self._counters.stats(
            [region.stats() for region in self._regions.all()], closed=self._regions.closed
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif not self._guard.inherited:
            self.abort()

    # Rows to regions

    def _convert(
        self, data: Data, convert: Callable[[RowSchema, Data], list[pa.RecordBatch]]
    ) -> tuple[RoutingSchema, list[pa.RecordBatch]]:
        """Convert rows; if they do not fit, try again with the latest version of the table."""
        routing = self._routing
        try:
            batches = convert(routing.row_schema, data)
        except InvalidInputError:
            routing = self._refresh_routing()
            batches = convert(routing.row_schema, data)
        check_row_sizes(batches, self.settings.max_row_bytes)
        return routing, batches

    def _refresh_routing(self) -> RoutingSchema:
        base = open_base(self._context.location)
        with self._refreshing:
            if not self._routing.row_schema.is_of(base):
                self._sync_table()
                self._routing = RoutingSchema.of(base, self._region)
            return self._routing

    def _sync_table(self) -> None:
        """Sync the table, which acknowledged rows need: Lance syncs neither tables nor columns."""
        if self.settings.fsync:
            self._context.store.barrier()

    def _write(
        self,
        routing: RoutingSchema,
        batches: list[pa.RecordBatch],
        rows_of: Callable[[RowSchema, list[pa.RecordBatch]], WholeRows | PartialRows],
        wait: bool | None,
        *,
        by: pa.RecordBatch | None = None,
    ) -> WriteHandle:
        """Write rows, the parts of several regions concurrently and as one write."""
        if wait is None:
            wait = self.settings.durable
        route: Route = routing.router.route
        if by is not None:
            route = functools.partial(routing.router.route, by=by)
        parts = self._split(route, batches)
        if len(parts) == 1:
            assignment, part = parts[0]
            rows = rows_of(routing.row_schema, part)
            write = self._regions.write(routing, assignment, rows, wait=wait)
            if wait and write.error is not None:
                raise copy_error(write.error)
            # Without the rows: the error of an only region needs no positions of them.
            raise_error = functools.partial(_raise_failures, route, ())
            return WriteHandle(((assignment.region_id, write),), raise_error)
        # An error of a claim is ignored here: the write to its region fails with it again.
        self._regions.claim(routing, [assignment for assignment, _ in parts])
        ids = [assignment.region_id for assignment, _ in parts]
        given = [(assignment, rows_of(routing.row_schema, part)) for assignment, part in parts]
        if wait and rows_of is WholeRows:
            whole = [(a, r) for a, r in given if isinstance(r, WholeRows)]
            writes = self._regions.write_all(routing, whole)
        else:
            writes = []
            for assignment, rows in given:
                try:
                    writes.append(self._regions.write(routing, assignment, rows, wait=False))
                except MemWalError as error:
                    # A refused part is a failed write.
                    writes.append(finished_write(error))
        raise_parts = functools.partial(_raise_failures, route, batches)
        handle = WriteHandle(list(zip(ids, writes, strict=True)), raise_parts)
        if wait:
            handle.wait()
        return handle

    def _split(
        self, route: Route, batches: Sequence[pa.RecordBatch]
    ) -> list[tuple[RegionAssignment, list[pa.RecordBatch]]]:
        """Split rows by region, and refuse rows of regions that may not be claimed."""
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

    def _release(self, *, wait: bool) -> None:
        self._regions.close()
        self._context.close(wait=wait)
        self._unwatch()
        self._unclosed_warning.detach()


def _raise_failures(
    route: Route, batches: Iterable[pa.RecordBatch], parts: Sequence[RegionWrite]
) -> None:
    """Raise one error for the regions whose part of a write failed, if any did."""
    errors = {region_id: copy_error(w.error) for region_id, w in parts if w.error is not None}
    if not errors:
        return
    kinds = {type(error) for error in errors.values()}
    if len(errors) == len(parts) and len(kinds) == 1:
        raise next(iter(errors.values()))
    positions = _row_positions(route, batches)
    failures = [RegionFailure(i, error, positions[i]) for i, error in errors.items()]
    raise PartialWriteError(
        f"{len(errors)} of {len(parts)} regions did not take their rows "
        f"({sum(len(f.rows) for f in failures):,} rows; the others are durable): "
        + "; ".join(f"{f.region_id}: {f.error}" for f in failures[:3]),
        failures,
    )


def _row_positions(route: Route, batches: Iterable[pa.RecordBatch]) -> dict[UUID, pa.Array]:
    positions: dict[UUID, list[pa.Array]] = {}
    start = 0
    for batch in batches:
        numbers = pa.array(range(start, start + batch.num_rows), pa.int64())
        start += batch.num_rows
        numbered = batch.append_column("", numbers)
        for assignment, rows in route(numbered):
            region = positions.setdefault(assignment.region_id, [])
            region.append(rows.column(rows.num_columns - 1))
    return {region_id: pa.concat_arrays(parts) for region_id, parts in positions.items()}


def _convert_step(
    row_schema: RowSchema, step: tuple[Rows | None, Keys | None, Rows | None]
) -> list[pa.RecordBatch]:
    """Convert the rows of a step: upserts or appended rows, then deletes as one batch."""
    upserts, deletes, appends = step
    upserted = [] if upserts is None else row_schema.convert_upserts(upserts)
    deleted = [] if deletes is None else row_schema.convert_deletes(deletes)
    appended = [] if appends is None else row_schema.convert_appends(appends)
    return [*upserted, *appended, *([_concat_batches(deleted)] if deleted else [])]


def _route_step(
    router: Router, by: pa.RecordBatch, batch: pa.RecordBatch
) -> list[tuple[RegionAssignment, pa.RecordBatch]]:
    """Route upserts by their own columns, and deletes by the columns given with their keys."""
    return router.route(batch, by=by if _is_deletes(batch) else None)


def _is_deletes(batch: pa.RecordBatch) -> bool:
    return bool(batch.column(TOMBSTONE)[0].as_py())


def _concat_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _deadline(timeout: Duration | None) -> float:
    """Return the deadline in monotonic seconds."""
    return math.inf if timeout is None else time.monotonic() + in_seconds(timeout)
