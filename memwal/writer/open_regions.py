"""Routing schema of a table writer, and its open regions.

A region is claimed with its first row, and released when idle.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from memwal.base_table.commit import current_spec, newest_spec
from memwal.base_table.snapshot import BaseTable
from memwal.errors import (
    InvalidInputError,
    MemWalError,
    OutcomeUnknownError,
    RegionFencedError,
    RegionSealedError,
    TableSetupError,
    WriterClosedError,
)
from memwal.format.memwal_index import StoredRegionSpec
from memwal.lsm.region_places import check_foreign_found, router_in_force
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.applied_steps import Step
from memwal.lsm.wal.claim import seal_claimed
from memwal.lsm.wal.log import is_recovered
from memwal.region.manifest_store import discover_regions
from memwal.region.router import RegionAssignment, Router
from memwal.util.concurrency import interpreter_is_ending
from memwal.writer.region_writer.context import WriterContext
from memwal.writer.region_writer.group_commit import GroupEntry
from memwal.writer.region_writer.handle import PendingWrite, finished_write
from memwal.writer.region_writer.partial_rows import PartialRows
from memwal.writer.region_writer.writer import RegionWriter, WholeRows
from memwal.writer.takeovers import Takeovers, is_not_logged

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

REFUSALS: Final = (RegionFencedError, RegionSealedError, TableSetupError)
"""Errors after which a writer can write no more, and its stored rows are in the table's log.

By their exact type: after a TableReplacedError, the log is where the table was moved to.
"""


@dataclass(frozen=True, slots=True)
class RoutingSchema:
    """Row schema and router of one version of a table."""

    base: BaseTable
    row_schema: RowSchema
    spec: StoredRegionSpec | None  # None if the table has none
    router: Router
    # Columns outside the key by which rows are routed, which a delete needs too.
    columns_beside_key: tuple[str, ...] = ()
    # Whether the region was given by name.
    names_region: bool = False
    stored: frozenset[UUID] = frozenset()  # Regions that had a folder.

    @classmethod
    def of(cls, base: BaseTable, region_id: UUID | None = None) -> RoutingSchema:
        """Derive the routing schema from a version of the table, and from the regions that exist.

        ``region_id`` is the only region that rows go to, in a table that has no region spec, or one
        that keeps all rows in one region.
        """
        row_schema = RowSchema.of(base)
        if region_id is not None and not base.details.region_specs:
            return cls(base, row_schema, None, Router.to_region(region_id))
        _, spec = current_spec(base)
        # Lance allows routing by a column outside the key; a key could then be in two regions, and
        # a delete could not tell in which.
        spec.check_keys(base.primary_key)
        stored = discover_regions(base.location.store) if region_id is None else ()
        if region_id is None:
            router = router_in_force(base, stored=stored)
        elif Router(spec, row_schema.schema).only_region is not None:
            router = Router.to_region(region_id)
        else:
            raise TableSetupError(
                f"{base.location} has a region spec that divides rows, {spec}; open its writer "
                "without a region"
            )
        return cls(
            base,
            row_schema,
            newest_spec(base),
            router,
            tuple(n for n in spec.columns_beside_key if n not in base.primary_key),
            names_region=region_id is not None,
            stored=frozenset(stored),
        )


class OpenRegions:
    """Region writers of a table writer, by region. Safe to use from many threads.

    ``allowed`` are the only regions that may be claimed. The first claim of a region replays its
    log; without ``keep`` its unflushed rows are abandoned. Later claims always replay.
    """

    def __init__(
        self, context: WriterContext, *, allowed: Collection[UUID] | None, keep: bool = True
    ) -> None:
        self._context = context
        self._allowed = frozenset(allowed) if allowed is not None else None
        self._keep = keep
        self._started_over: set[UUID] = set()
        self._lock = threading.Lock()
        self._claims: dict[UUID, threading.Lock] = {}
        self._writers: dict[UUID, RegionWriter] = {}
        # How each was opened, to claim it back.
        self._opened: dict[UUID, tuple[RoutingSchema, RegionAssignment]] = {}
        self._takeovers = Takeovers(context.settings.max_memtable_age)
        self._idle_timer = context.timers.new_timer(self._release_idle)
        self.closed = False

    def check_open(self) -> None:
        """Raise WriterClosedError if the writer is closed."""
        if self.closed:
            raise WriterClosedError("the writer of this table is closed; open a new one")

    def may_claim(self, region_id: UUID) -> bool:
        """Return whether the writer may claim a region."""
        return self._allowed is None or region_id in self._allowed

    def check_allowed(self, region_ids: Collection[UUID]) -> None:
        """Raise InvalidInputError if a region may not be claimed."""
        if self._allowed is None or self._allowed.issuperset(region_ids):
            return
        forbidden = [str(region_id) for region_id in region_ids if region_id not in self._allowed]
        raise InvalidInputError(
            "rows belong to regions that this writer may not claim: "
            f"{', '.join(forbidden)}; nothing was written"
        )

    def all(self) -> list[RegionWriter]:
        """Return the writers of all open regions."""
        with self._lock:
            return list(self._writers.values())

    def claim(
        self, routing: RoutingSchema, assignments: Sequence[RegionAssignment]
    ) -> list[BaseException]:
        """Claim the regions that are not open, concurrently, and return the errors."""
        missing = [a for a in assignments if a.region_id not in self._writers]
        if not missing:
            return []
        self.check_open()
        try:
            # Without the lock: the call needs it, and runs in this thread if the interpreter ends.
            claims = [self._context.appends.submit(self._get, routing, a) for a in missing]
        except RuntimeError:
            # The writer was closed in the meantime; claims that have started notice it.
            self.check_open()
            raise
        return [error for claim in claims if (error := claim.exception()) is not None]

    def write(
        self,
        routing: RoutingSchema,
        assignment: RegionAssignment,
        rows: WholeRows | PartialRows,
        *,
        wait: bool,
    ) -> PendingWrite:
        """Write rows of one region, which is claimed first if it is not open."""
        deadline = self._deadline()
        while True:
            writer, write = self._with_writer(
                routing, assignment, lambda writer: writer.write(rows, wait=wait), deadline
            )
            # A write that no caller waits for has no error yet.
            if not (wait and self._is_repeated(routing, assignment, writer, write, deadline)):
                return write

    def write_all(
        self,
        routing: RoutingSchema,
        parts: Sequence[tuple[RegionAssignment, WholeRows]],
        *,
        step: Step | None = None,
        deadline: float | None = None,
    ) -> list[PendingWrite]:
        """Write rows of several regions durably, and wait for all of them.

        This thread does all the work. The other threads only wait for the store: one that worked
        would hold this thread back.

        With ``step``, the rows belong to it, and a region that has the step already gets a write
        without rows. The regions must then be in the order of their ids, in which concurrent steps
        wait for each other; another order could deadlock. All of them are asked for their
        newest step before one is written: an error of that is raised.
        """
        begin_one = (
            RegionWriter.begin if step is None else partial(RegionWriter.begin_step, step=step)
        )
        writes: list[PendingWrite] = []
        writers: list[RegionWriter | None] = []
        entries: list[GroupEntry] = []
        if deadline is None:
            deadline = self._deadline()
        if step is not None:
            for assignment, _ in parts:
                check = partial(RegionWriter.check_step, step=step)
                self._with_writer(routing, assignment, check, deadline)
        try:
            for assignment, rows in parts:
                writer = None
                try:
                    begin = partial(begin_one, rows=rows)
                    writer, (write, entry) = self._with_writer(routing, assignment, begin, deadline)
                except MemWalError as error:
                    write, entry = finished_write(error), None
                writes.append(write)
                writers.append(writer)
                if entry is not None:
                    entries.append(entry)
            self._store_all(entries)
        finally:
            with ExitStack() as ends:
                for entry in entries:
                    ends.callback(entry.end)
        for write in writes:
            write.wait()
        for number, (write, writer) in enumerate(zip(writes, writers, strict=True)):
            assignment = parts[number][0]
            if writer is not None and self._is_repeated(
                routing, assignment, writer, write, deadline, step=step
            ):
                (writes[number],) = self.write_all(
                    routing, [parts[number]], step=step, deadline=deadline
                )
        return writes

    def _store_all(self, entries: Sequence[GroupEntry]) -> None:
        """Store entries side by side: each thread takes the next one that no other has taken.

        After an interrupt no more entries are taken, and entries that other threads have begun are
        waited for: an entry must not end while it is being stored.
        """
        if self._context.appends_in_caller:
            for entry in entries:
                entry.store()
            return
        waiting = deque(entries)
        with self._lock:
            self.check_open()
            helpers = [self._context.appends.submit(_store_each, waiting) for _ in entries[1:]]
        try:
            _store_each(waiting)
        finally:
            waiting.clear()
            # Threads that are busy elsewhere are not needed any more.
            wait([helper for helper in helpers if not helper.cancel()])

    def _with_writer(
        self,
        routing: RoutingSchema,
        assignment: RegionAssignment,
        call: Callable[[RegionWriter], Result],
        deadline: float,
    ) -> tuple[RegionWriter, Result]:
        while True:
            try:
                writer = self._get(routing, assignment)
            except RegionFencedError as error:
                # Another claim was faster.
                if not self._reopens(error, deadline):
                    raise
                self._takeovers.pause(assignment.region_id, deadline)
                continue
            try:
                return writer, call(writer)
            except WriterClosedError:
                if not writer.released:
                    raise
                # It was released when idle, while this write was on its way to it.
                self._forget(writer)
            except (RegionFencedError, OutcomeUnknownError) as error:
                # The call was refused before the log had anything of it.
                if not self._is_given_up(writer, error, deadline):
                    raise

    def _is_repeated(
        self,
        routing: RoutingSchema,
        assignment: RegionAssignment,
        writer: RegionWriter,
        write: PendingWrite,
        deadline: float,
        *,
        step: Step | None = None,
    ) -> bool:
        """Return whether a failed write of a writer that was given up has to be written again.

        A write that may be in the log is searched there after the region was claimed back, when
        nothing can be added to its position any more. If it was replayed, it succeeded. If it is
        not in the log, it is written again. If the log does not tell, it keeps its error: written
        again, it might bring an older row back over one that was written in between. A process that
        dies in between has acknowledged nothing. Steps are always repeated: the log knows which
        ones it has.
        """
        if write.error is None or not self._is_given_up(writer, write.error, deadline):
            return False
        if step is not None or write.maybe_at is None or is_not_logged(write.error):
            return True
        look = partial(
            RegionWriter.has_replayed, position=write.maybe_at, writer_id=writer.writer_id
        )
        try:
            _, found = self._with_writer(routing, assignment, look, deadline)
        except MemWalError as error:
            logger.warning("region %s is not claimed back: %s", writer.region_id, error)
            return False
        if found:
            write.position, write.error = write.maybe_at, None
        return found is False

    def _deadline(self) -> float:
        return time.monotonic() + self._context.settings.backpressure_timeout

    def _reopens(self, error: BaseException, deadline: float) -> bool:
        return (
            self._context.settings.reopen
            and type(error) in (RegionFencedError, OutcomeUnknownError)
            and time.monotonic() < deadline
            and not self.closed
        )

    def _is_given_up(self, writer: RegionWriter, error: BaseException, deadline: float) -> bool:
        """Return whether a writer that failed was given up, and its rows may be written again."""
        if not (is_not_logged(error) or self._reopens(error, deadline)):
            return False
        return self._gives_up(writer, error, deadline)

    def _gives_up(self, writer: RegionWriter, error: BaseException, deadline: float) -> bool:
        """Forget a writer that lost its region if the next write may claim it back.

        That is so if the writer reopens, or if a recovery has fenced it, see
        :mod:`memwal.lsm.wal.log`: its acknowledged rows are flushed, or in the log, from which
        the next claim replays them. Two threads may both come to this answer; only the writer that
        they gave up is forgotten. If the store does not answer, the writer stays fenced.
        """
        if self._reopens(error, deadline):
            # The other producer gets some time. Reads see the rows of this one until it is over.
            self._takeovers.pause(writer.region_id, deadline, writer)
            writer.abort()
            self._forget(writer)
            return True
        try:
            recovered = is_recovered(self._context.store, writer.region_id)
        except MemWalError as error:
            logger.info("who claimed region %s is not known: %s", writer.region_id, error)
            return False
        if not recovered:
            # Another thread may have claimed the region back already.
            with self._lock:
                return self._writers.get(writer.region_id) is not writer and not self.closed
        writer.abort()
        self._forget(writer)
        return True

    def barrier(self, *, seals: bool, deadline: float) -> None:
        """Wait until earlier rows are durable, and flushed if ``seals``; then raise an error.

        The errors that are not ``REFUSALS`` come first.
        """
        started: list[tuple[RegionWriter, PendingWrite]] = []
        failed: list[tuple[RegionWriter, Exception]] = []
        errors: list[Exception] = []
        self.check_open()
        for writer in self.all():
            try:
                started.append((writer, writer.start_barrier(seals=seals)))
            except MemWalError as error:
                if not writer.released:
                    failed.append((writer, error))
        for writer, barrier in started:
            try:
                writer.finish_barrier(barrier, deadline=deadline)
            except Exception as error:
                failed.append((writer, error))
        for writer, first in failed:
            try:
                if not (seals and self._flushes_again(writer, first, deadline=deadline)):
                    errors.append(first)
            except Exception as error:
                errors.append(error)
        if errors:
            raise min(errors, key=lambda error: type(error) in REFUSALS)

    def _flushes_again(self, writer: RegionWriter, first: Exception, *, deadline: float) -> bool:
        """Claim a region back, and flush the rows that the claim replays.

        All that was acknowledged is flushed then. A buffered write may have failed with the claim
        of the recovery, so that a writer that buffers must tell.
        """
        error = first
        while (
            type(error) in (RegionFencedError, OutcomeUnknownError)
            and self._context.settings.durable
            and self._gives_up(writer, error, deadline)
        ):
            writer = self._get(*self._opened[writer.region_id])
            try:
                writer.finish_barrier(writer.start_barrier(seals=True), deadline=deadline)
                return True
            except (RegionFencedError, OutcomeUnknownError) as again:
                error = again
        if error is not first:
            raise error
        return False

    def close(self) -> None:
        """Refuse further writes, without a flush."""
        with self._lock:
            self.closed = True
            writers = list(self._writers.values())
        for writer in writers:
            writer.abort()

    def _get(self, routing: RoutingSchema, assignment: RegionAssignment) -> RegionWriter:
        region_id = assignment.region_id
        with self._lock:
            self.check_open()
            writer = self._writers.get(region_id)
            if writer is not None:
                return writer
            claiming = self._claims.setdefault(region_id, threading.Lock())
        with claiming:
            with self._lock:
                writer = self._writers.get(region_id)
            if writer is not None:
                return writer
            is_named = routing.spec is None or routing.names_region
            if not is_named and region_id not in routing.stored:
                # The claim makes the region: no other one of its rows may be missing.
                check_foreign_found(routing.base)
            writer = RegionWriter(
                self._context,
                region_id,
                routing.row_schema,
                spec=routing.spec,
                region_fields=assignment.field_values,
                merged=routing.base.details.merged.get(region_id, 0),
                keep=self._keep or region_id in self._started_over,
            )
            self._started_over.add(region_id)
            try:
                self._context.spec_check.check_claim(routing.spec)
                self._check_no_rival(routing, assignment, writer)
            except BaseException:
                writer.abort()
                raise
            with self._lock:
                if not self.closed:
                    self._writers[region_id] = writer
                    self._opened[region_id] = routing, assignment
            if self.closed:
                writer.abort()
                self.check_open()
            if self._takeovers.is_flush_due(region_id):
                writer.seal()
            idle = self._context.settings.release_idle_after
            if math.isfinite(idle):
                self._idle_timer.schedule(time.monotonic() + idle)
            return writer

    def _check_no_rival(
        self, routing: RoutingSchema, assignment: RegionAssignment, writer: RegionWriter
    ) -> None:
        """Check that no other client made a region for the rows of a region made just now.

        Two clients may make regions for the same rows at the same time, each by a name of its own.
        Both check for other regions after that and before they acknowledge rows, so that the later
        one finds the region of the earlier one. A client that does not check, such as pylance, may
        still come later: the next writer, ``verify`` and the merge notice it.

        The region has no rows and is sealed, so that the next writer finds one region. If the
        process dies before, that writer finds two, and refuses; ``memwal retire-region`` decides.
        If it is paused before, another writer may have claimed the region: then sealing is refused.

        Raises RegionSealedError if there is such a region, which a new writer writes to, and
        TableSetupError as :meth:`RoutingSchema.of`.
        """
        # The first claim of a region makes it.
        if writer.epoch != 1 or routing.spec is None or routing.names_region:
            return
        router = router_in_force(routing.base, without=[assignment.region_id])
        rival = router.region_of(frozenset(assignment.field_values))
        if rival == assignment.region_id:
            return
        seal_claimed(self._context.store, writer.region_id, epoch=writer.epoch)
        raise RegionSealedError(
            f"another client made region {rival} of {self._context.location} at the same time, for "
            f"the rows of region {writer.region_id}. Nothing was written: open a new writer, which "
            "writes to that region"
        )

    def _forget(self, writer: RegionWriter) -> None:
        with self._lock:
            if self._writers.get(writer.region_id) is writer:
                del self._writers[writer.region_id]

    def _release_idle(self) -> None:
        """Start to close the regions that had no write for ``release_idle_after`` seconds."""
        max_idle = self._context.settings.release_idle_after
        now = time.monotonic()
        last_used = {writer: writer.last_used() for writer in self.all()}
        with self._lock:
            if self.closed or interpreter_is_ending():
                return
            for writer, at in last_used.items():
                if at <= now - max_idle:
                    self._context.releases.submit(self._close_if_idle, writer, now - max_idle)
        if last_used:
            recent = [at for at in last_used.values() if at > now - max_idle]
            self._idle_timer.schedule(min([*recent, now]) + max_idle)

    def _close_if_idle(self, writer: RegionWriter, since: float) -> None:
        if writer.close_if_idle(since):
            self._forget(writer)


def _store_each(waiting: deque[GroupEntry]) -> None:
    """Store one entry after another until none waits."""
    while True:
        try:
            entry = waiting.popleft()
        except IndexError:
            return
        entry.store()
