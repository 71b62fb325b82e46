"""Sums of what a writer did."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the writer was opened.

    Attributes
    ----------
    writes, rows, bytes : int
        Acknowledged as durable: calls, their rows (deletes included), and Arrow bytes.
    entries, entry_bytes : int
        Log entries appended and their encoded size. ``writes / entries`` tells how many writes
        shared one.
    append_seconds : float
        Time in appends, the store's included.
    generations, flushed_rows, flushed_bytes : int
        Generations flushed, with the rows and bytes of their MemTables.
    flush_seconds : float
        Time in flushes that succeeded.
    failed_flushes : int
        Tries of a flush that failed; most are tried again.
    backpressure_waits : int
        Writes that had to wait for a flush.
    backpressure_seconds : float
        Time that they waited.
    refused_writes : int
        Writes that were not accepted: the wait took too long, or a limit was reached.
    """

    writes: int = 0
    rows: int = 0
    bytes: int = 0
    entries: int = 0
    entry_bytes: int = 0
    append_seconds: float = 0.0
    generations: int = 0
    flushed_rows: int = 0
    flushed_bytes: int = 0
    flush_seconds: float = 0.0
    failed_flushes: int = 0
    backpressure_waits: int = 0
    backpressure_seconds: float = 0.0
    refused_writes: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, name) + getattr(other, name) for name in NAMES))


NAMES = tuple(f.name for f in fields(Totals))
"""Names of what is summed."""
