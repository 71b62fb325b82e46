"""The writer that users get of a table: it also reads the rows that it acknowledged."""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakSet

from memwal.base_table.snapshot import BaseTable
from memwal.boundary.public import public
from memwal.errors import ArgumentTypeError
from memwal.inputs.rows import Keys
from memwal.lsm.wal.position import WritePosition
from memwal.queries import FreshQueries, Queries
from memwal.reader.predicate import SqlFilter
from memwal.reader.sources.plan import ReadPlan, plan_read
from memwal.reader.sources.pruning import KeyBuilder
from memwal.util.clock import Duration
from memwal.writer.open_regions import REFUSALS
from memwal.writer.region_writer.handle import WriteHandle
from memwal.writer.table_writer import TableWriter

logger = logging.getLogger(__name__)


@public
class Writer(TableWriter, Queries):
    """A table's writer, which also reads: its reads see the rows that it acknowledged.

    Made by :meth:`memwal.Table.writer`, whose ``options`` it has, for the table ``base``.
    """

    def __init__(self, base: BaseTable, **options: Any) -> None:
        TableWriter.__init__(self, base, **options)
        Queries.__init__(self, base.location)
        _writers.add(self)

    def fresh(
        self, *, at_least: WritePosition | str | None = None, timeout: Duration = 10.0
    ) -> Queries:
        """Return queries that also see the unflushed rows that other writers acknowledged.

        Arguments and errors are those of :meth:`memwal.Table.fresh`.
        """
        return FreshQueries(self.location, at_least=at_least, timeout=timeout, writer=self)

    def delete(
        self, keys: Keys | None = None, *, where: SqlFilter | None = None, wait: bool | None = None
    ) -> WriteHandle:
        """Delete rows by key, or by a condition; keys that do not exist are fine.

        >>> with table.writer() as writer:
        ...     handle = writer.delete([1])
        ...     handle = writer.delete(where="n > 6")
        >>> table.scan(columns=["id"]).to_pylist()
        [{'id': 2}]

        Parameters
        ----------
        keys : keys, optional
            As :meth:`memwal.writer.table_writer.TableWriter.delete`.
        where : str, optional
            SQL predicate over any columns, as for :meth:`scan`. The keys of the rows that pass are
            read into memory, with all that this writer wrote before, and are then deleted in one
            call. It does not lock the rows in between: if another thread or program writes a row
            then, its key is deleted if the row before passed, and is kept if only the new row
            passes. Rows that another writer acknowledged and did not flush are not seen; to have
            them, :meth:`claim` the regions first, which takes them away from that writer. If a row
            passes in a region that this writer may not claim, nothing is deleted.
        wait : bool, optional
            As for :meth:`upsert`. The read of ``where`` is waited for in any case.

        Raises
        ------
        ArgumentTypeError
            Neither or both of ``keys`` and ``where`` are given. Other errors are those of
            :meth:`upsert` and :meth:`scan`.
        """
        if (keys is None) == (where is None):
            raise ArgumentTypeError("delete() takes keys, or where=...: pass one of them")
        if keys is not None:
            return super().delete(keys, wait=wait)
        if self.settings.durable:
            # Writes that were not waited for are not read before they are durable.
            self.flush_wal()
        routing = self._refresh_routing()
        routing.row_schema.check_has_key("a delete")
        columns = [*routing.row_schema.primary_key, *routing.columns_beside_key]
        found = self.scan(columns=columns, filter=where).to_table()
        return super().delete(found, wait=wait)

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"Writer({self.location.uri!r}, {state}, {len(self._regions.all())} regions claimed)"

    def _plan(self, *, filter: str | None, keys: KeyBuilder | None, reuse: bool) -> ReadPlan:
        return plan_read(self.location, self.claims(), filter=filter, keys=keys, reuse=reuse)


# Those of this process.
_writers: WeakSet[Writer] = WeakSet()


def open_writers(uri: str) -> list[Writer]:
    """Return the writers of a table that are open in this process."""
    return [writer for writer in list(_writers) if writer.location.uri == uri and writer.is_open]


def flush_for_checkpoint(writer: Writer, *, timeout: Duration | None) -> None:
    """Flush a writer, or log that it was refused and has nothing that only it could flush.

    The rows that a durable writer acknowledged are in the log: the job counts them as unflushed
    until the next claim or a recovery flushes them. A writer that buffers has acknowledged rows
    that are in no log, so its error is raised. Other regions of the writer are flushed, and their
    errors come first.
    """
    try:
        writer.flush(timeout=timeout)
    except REFUSALS as error:
        if type(error) in REFUSALS and writer.settings.durable:
            logger.warning("%s: an open writer was not flushed: %s", writer.location, error)
            return
        raise type(error)(
            f"{error}; a writer of this table that is open in this process must be closed first: "
            "abort() or close() it"
        ) from error
