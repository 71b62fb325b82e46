"""The MemTables of a region: the one that takes rows, and those that wait for their flush."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pyarrow as pa

from memwal.memtable.unflushed import UnflushedRows
from memwal.writer.flush_queue import FlushQueue
from memwal.writer.memtable import MemTable
from memwal.writer.rows import RowShape
from memwal.writer.workshop import Workshop


class MemTables:
    """The active MemTable and the sealed ones before it.

    Only whoever holds the region's log changes the active one, and with the state held. All methods
    are called with the state held, except :meth:`fits` and :meth:`is_full`, which only the holder
    of the log calls.

    Parameters
    ----------
    workshop : Workshop
    shape : RowShape
        Form of the rows to come.
    generation : int
        Of the first MemTable.
    state : threading.Condition
        The region's.
    flush : callable
        Flushes one MemTable.

    Attributes
    ----------
    active : MemTable
    sealed : FlushQueue
    shape : RowShape
        Of the active one.
    """

    def __init__(
        self,
        workshop: Workshop,
        shape: RowShape,
        *,
        generation: int,
        state: threading.Condition,
        flush: Callable[[MemTable], None],
    ) -> None:
        self._options = workshop.options
        self._text = workshop.text
        self.shape = shape
        self.sealed = FlushQueue(
            state, workshop.flushes, flush, attempts=workshop.options.flush_attempts
        )
        self.active = self._new(generation, first_row=0)

    def all(self) -> list[MemTable]:
        """Oldest first, the active one last."""
        return [*self.sealed.tables(), self.active]

    def unflushed(self) -> list[UnflushedRows]:
        """Their rows as they are now, oldest first."""
        return [table.unflushed() for table in self.all() if table.rows]

    def since(self, row: int) -> list[pa.Table] | None:
        """Rows from number ``row`` of the region's writer on; None if some have left memory."""
        tables = self.all()
        if tables[0].first_row > row:
            return None
        return [table.since(row) for table in tables if table.end_row > row]

    def fits(self, batches: Sequence[pa.RecordBatch]) -> bool:
        """Whether Lance's own writer could still replay the generation with these in it."""
        rows = batches[0].num_rows if len(batches) == 1 else sum(b.num_rows for b in batches)
        return (
            self.active.rows + rows <= self._options.max_memtable_rows
            and self.active.batches + len(batches) <= self._options.max_memtable_batches
        )

    def is_full(self) -> bool:
        """Whether the active one is to be sealed."""
        return (
            self.active.rows >= self._options.max_memtable_rows
            or self.active.batches >= self._options.max_memtable_batches
            or self.active.bytes >= self._options.max_memtable_bytes
        )

    def seal(self, *, shape: RowShape | None = None, generation: int | None = None) -> None:
        """Hand the active one to the flush, if it has rows, and start a new one.

        Parameters
        ----------
        shape : RowShape, optional
            Form of the rows to come; as before by default.
        generation : int, optional
            Of the new one; the next one by default.
        """
        following = self.active.generation
        if self.active.rows:
            self.sealed.add(self.active)
            following += 1
        self.shape = shape or self.shape
        self.active = self._new(generation or following, first_row=self.active.end_row)

    def _new(self, generation: int, *, first_row: int) -> MemTable:
        names = self.shape.schema.names
        text = {
            path: options for path, options in self._text.items() if path.partition(".")[0] in names
        }
        return MemTable(self.shape, generation, first_row=first_row, text=text)
