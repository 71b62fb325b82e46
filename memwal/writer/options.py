"""What a writer can be told."""

from __future__ import annotations

from dataclasses import dataclass

from memwal.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Options of a writer.

    Attributes
    ----------
    max_memtable_rows : int, default 100_000
        A MemTable with this many rows is sealed and flushed. More rows make fewer, larger
        generations: cheaper to merge, longer to replay after a crash. Lance's own writer replays at
        most as many rows of one generation as it may hold itself, by default 100,000: with more
        here, only a memwal writer, or one of Lance that is told so, can take an unflushed log over.
    max_memtable_batches : int, default 8_000
        The same by batches of log entries; 8,000 is what Lance's own writer takes over by default.
    max_memtable_bytes : int, default 64 MiB
        The same by size in memory, per region.
    max_sealed_memtables : int, default 2
        MemTables of a region that may wait for their flush; with this many waiting, writes wait
        too. A region's memory is bounded by ``(max_sealed_memtables + 1) * max_memtable_bytes``
        and a batch.
    backpressure_timeout : float, default 60
        Seconds that a write waits for a flush before it fails with BackPressureError.
    max_entry_bytes : int, default 8 MiB
        Size up to which concurrent writes share one entry of the write-ahead log. A single batch
        above it still goes into one entry.
    epoch_check_interval : float or None, default None
        Seconds for which an append may rely on an earlier look at the region's epoch before it
        looks again, after the entry is stored and before it is acknowledged. It is what stops a
        writer that was paused for long from acknowledging a write into a log that another writer
        has taken over and a collector has trimmed. None: at each append on a local disk (some
        microseconds), every 10 s elsewhere (a request). It must stay well below the grace period
        of the garbage collector.
    flush_attempts : int, default 5
        How often a failing flush is tried, each time into a new folder, before ``flush`` and
        ``close`` report it. The rows stay in memory and in the log.
    """

    max_memtable_rows: int = 100_000
    max_memtable_batches: int = 8_000
    max_memtable_bytes: int = 64 << 20
    max_sealed_memtables: int = 2
    backpressure_timeout: float = 60.0
    max_entry_bytes: int = 8 << 20
    epoch_check_interval: float | None = None
    flush_attempts: int = 5

    def __post_init__(self) -> None:
        for name in (
            "max_memtable_rows",
            "max_memtable_batches",
            "max_memtable_bytes",
            "max_sealed_memtables",
            "max_entry_bytes",
            "flush_attempts",
        ):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.backpressure_timeout < 0:
            raise InvalidInputError("backpressure_timeout must not be negative")
        if self.epoch_check_interval is not None and self.epoch_check_interval < 0:
            raise InvalidInputError("epoch_check_interval must not be negative")
