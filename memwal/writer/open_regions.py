"""Open regions of a table writer: claimed with their first row, released when idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from functools import partial
from typing import TypeVar
from uuid import UUID

from memwal.base_table.details import check_spec_in_force
from memwal.errors import InvalidInputError, MemWalError, WriterClosedError
from memwal.lsm.wal.applied_steps import Step
from memwal.region.router import RegionAssignment
from memwal.writer.region_writer.context import Workshop
from memwal.writer.region_writer.group_commit import HeldLog
from memwal.writer.region_writer.handle import PendingWrite, done
from memwal.writer.region_writer.partial_rows import PartialRows
from memwal.writer.region_writer.writer import RegionWriter, WholeRows
from memwal.writer.routing import Form

Answer = TypeVar("Answer")


class HeldRegions:
    """Writers of regions, by region. Safe to use from many threads.

    Parameters
    ----------
    workshop : Workshop
    allowed : collection of UUID, optional
        The only regions that may be claimed.
    keep : bool, default True
        Whether the first claim of a region takes over what its log holds; without, that is
        abandoned. Later claims always take over.
    """

    def __init__(
        self, workshop: Workshop, *, allowed: Collection[UUID] | None, keep: bool = True
    ) -> None:
        self._workshop = workshop
        self._allowed = frozenset(allowed) if allowed is not None else None
        self._keep = keep
        self._started_over: set[UUID] = set()
        self._lock = threading.Lock()
        self._claims: dict[UUID, threading.Lock] = {}
        self._writers: dict[UUID, RegionWriter] = {}
        self._idle_task = workshop.upkeep.task(self._release_idle)
        self.closed = False

    def check_open(self) -> None:
        """Raise WriterClosedError once the writer is closed."""
        if self.closed:
            raise WriterClosedError("the writer of this table is closed; open a new one")

    def may_claim(self, region_id: UUID) -> bool:
        """Whether a region is one of those allowed."""
        return self._allowed is None or region_id in self._allowed

    def check_allowed(self, region_ids: Collection[UUID]) -> None:
        """Refuse regions that may not be claimed."""
        if self._allowed is None or self._allowed.issuperset(region_ids):
            return
        foreign = [str(region_id) for region_id in region_ids if region_id not in self._allowed]
        raise InvalidInputError(
            "rows belong to regions that this writer may not claim: "
            f"{', '.join(foreign)}; nothing was written"
        )

    def all(self) -> list[RegionWriter]:
        """Those that are held now."""
        with self._lock:
            return list(self._writers.values())

    def claim(self, form: Form, assignments: Sequence[RegionAssignment]) -> list[BaseException]:
        """Claim those of the regions that are not held, side by side; what failed is returned."""
        missing = [a for a in assignments if a.region_id not in self._writers]
        if not missing:
            return []
        with self._lock:
            self.check_open()
            claims = [self._workshop.appends.submit(self._get, form, a) for a in missing]
        return [error for claim in claims if (error := claim.exception()) is not None]

    def write(
        self,
        form: Form,
        assignment: RegionAssignment,
        rows: WholeRows | PartialRows,
        *,
        wait: bool,
    ) -> PendingWrite:
        """Write rows of one region, which is claimed if it is not held.

        Raises
        ------
        MemWalError
            The rows were not accepted: see :meth:`RegionWriter.write`.
        """
        return self._with_writer(form, assignment, lambda writer: writer.write(rows, wait=wait))

    def write_all(
        self,
        form: Form,
        parts: Sequence[tuple[RegionAssignment, WholeRows]],
        *,
        step: Step | None = None,
    ) -> list[PendingWrite]:
        """Write rows of several regions durably, and wait for all.

        This thread does all the work, and others only wait for the store in its place: a thread
        that works would keep this one from it.

        Parameters
        ----------
        step : Step, optional
            What the rows are; the write of a region that has it is without rows. Regions then have
            to be in the order of their ids: two steps wait for each other in it.
        """
        begin_one = (
            RegionWriter.begin if step is None else partial(RegionWriter.begin_step, step=step)
        )
        writes: list[PendingWrite] = []
        held: list[HeldLog] = []
        try:
            for assignment, rows in parts:
                try:
                    begin = partial(begin_one, rows=rows)
                    write, log = self._with_writer(form, assignment, begin)
                except MemWalError as error:
                    write, log = done(error), None
                writes.append(write)
                if log is not None:
                    held.append(log)
            self._store(held)
        finally:
            with ExitStack() as ends:
                for log in held:
                    ends.callback(log.end)
        for write in writes:
            write.wait()
        return writes

    def _store(self, held: Sequence[HeldLog]) -> None:
        if self._workshop.is_instant:
            for log in held:
                log.store()
            return
        with self._lock:
            self.check_open()
            stores = [self._workshop.appends.submit(log.store) for log in held[1:]]
        for log in held[:1]:
            log.store()
        wait(stores)

    def _with_writer(
        self, form: Form, assignment: RegionAssignment, call: Callable[[RegionWriter], Answer]
    ) -> Answer:
        while True:
            writer = self._get(form, assignment)
            try:
                return call(writer)
            except WriterClosedError:
                if not writer.released:
                    raise
                # Given up when idle, while this write was on its way to it.
                self._forget(writer)

    def barrier(self, *, seals: bool, deadline: float) -> None:
        """Have everything written so far be durable, and flushed if it ``seals``.

        Raises
        ------
        MemWalError, OSError
            The first of what regions failed with, after all have ended.
        """
        started: list[tuple[RegionWriter, PendingWrite]] = []
        errors: list[Exception] = []
        self.check_open()
        for writer in self.all():
            try:
                started.append((writer, writer.start_barrier(seals=seals)))
            except MemWalError as error:
                if not writer.released:
                    errors.append(error)
        for writer, barrier in started:
            try:
                writer.finish_barrier(barrier, deadline=deadline)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Take no more writes, without a flush."""
        with self._lock:
            self.closed = True
            writers = list(self._writers.values())
        for writer in writers:
            writer.abort()

    def _get(self, form: Form, assignment: RegionAssignment) -> RegionWriter:
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
            writer = RegionWriter(
                self._workshop,
                region_id,
                form.shape,
                spec_id=form.spec_id,
                region_fields=assignment.field_values,
                merged=form.base.details.merged.get(region_id, 0),
                keep=self._keep or region_id in self._started_over,
            )
            self._started_over.add(region_id)
            try:
                check_spec_in_force(self._workshop.location, form.spec_id)
            except BaseException:
                writer.abort()
                raise
            with self._lock:
                if not self.closed:
                    self._writers[region_id] = writer
            if self.closed:
                writer.abort()
                self.check_open()
            idle = self._workshop.options.release_idle_after
            if idle is not None:
                self._idle_task.schedule(time.monotonic() + idle)
            return writer

    def _forget(self, writer: RegionWriter) -> None:
        with self._lock:
            if self._writers.get(writer.region_id) is writer:
                del self._writers[writer.region_id]

    def _release_idle(self) -> None:
        """Have regions given up that were not written to for long."""
        longest = self._workshop.options.release_idle_after
        if longest is None:
            return
        now = time.monotonic()
        used = {writer: writer.used_at() for writer in self.all()}
        with self._lock:
            if self.closed:
                return
            for writer, at in used.items():
                if at <= now - longest:
                    self._workshop.releases.submit(self._release, writer, now - longest)
        if used:
            recent = [at for at in used.values() if at > now - longest]
            self._idle_task.schedule(min([*recent, now]) + longest)

    def _release(self, writer: RegionWriter, since: float) -> None:
        if writer.release(since):
            self._forget(writer)
