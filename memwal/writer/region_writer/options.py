"""Options of a writer."""

from __future__ import annotations

from dataclasses import dataclass

from memwal.errors import InvalidInputError

_AT_LEAST_ONE = (
    "max_memtable_rows",
    "max_memtable_batches",
    "max_memtable_bytes",
    "max_sealed_memtables",
    "max_entry_bytes",
    "buffer_bytes",
    "buffer_writes",
    "max_buffered_bytes",
    "flush_attempts",
)
_NOT_NEGATIVE = ("backpressure_timeout", "buffer_interval", "epoch_check_interval")
_POSITIVE = ("max_memtable_age", "release_idle_after")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Options of a writer.

    Attributes
    ----------
    durable : bool, default True
        Whether a write returns when its rows are safe in the log. Without, it returns at once
        with a handle that tells when they are; until then a crash of the process loses them.
    fsync : bool, default True
        On a local disk, whether file and folder of a log entry are synced before a write is
        acknowledged. Without, a crash of the machine (not of the process) may take back what was
        acknowledged in the seconds before it, and nobody is told. Object stores are not affected.
    indexed : bool, default False
        Whether a write returns only when the MemTable's indexes have its rows. Without, the first
        read that needs an index brings it up to date. Reads give the same answers in both.
    max_memtable_rows : int, default 100_000
        A MemTable with this many rows is sealed and flushed. More rows make fewer, larger
        generations: cheaper to merge, longer to replay after a crash. Lance's own writer replays at
        most as many rows of one generation as it may hold itself, by default 100,000: with more
        here, only a memwal writer, or one of Lance that is told so, can take an unflushed log over.
    max_memtable_batches : int, default 8_000
        The same by batches of log entries; 8,000 is what Lance's own writer takes over by default.
    max_memtable_bytes : int, default 64 MiB
        The same by size in memory, per region.
    max_memtable_age : float or None, default None
        Seconds after its first row at which a MemTable is sealed and flushed however small it is:
        how late readers of the storage see a row at most. None: never by age.
    max_sealed_memtables : int, default 2
        MemTables of a region that may wait for their flush; with this many waiting, writes wait
        too. A region's memory is bounded by ``(max_sealed_memtables + 1) * max_memtable_bytes``
        and a batch.
    backpressure_timeout : float, default 60
        Seconds that a write waits for a flush before it fails with BackPressureError.
    max_entry_bytes : int, default 8 MiB
        Size up to which concurrent writes share one entry of the write-ahead log. A single batch
        above it still goes into one entry.
    buffer_bytes : int, default 1 MiB
        Buffered writes of a region go to the log when there is this much of them,
    buffer_writes : int, default 1_000
        or this many,
    buffer_interval : float, default 0.1
        or when the oldest has waited for this many seconds.
    max_buffered_bytes : int, default 64 MiB
        With this much waiting for the log of a region, writes wait too.
    epoch_check_interval : float or None, default None
        Seconds for which an append may rely on an earlier look at the region's epoch before it
        looks again, after the entry is stored and before it is acknowledged. It is what stops a
        writer that was paused for long from acknowledging a write into a log that another writer
        has taken over and a collector has trimmed. None: 1 s on a local disk, where a look takes
        microseconds, and 10 s elsewhere, where it is a request. It must stay well below the grace
        period of the garbage collector.
    flush_attempts : int, default 5
        How often a failing flush is tried, each time into a new folder, before ``flush`` and
        ``close`` report it. The rows stay in memory and in the log.
    release_idle_after : float or None, default None
        Seconds without a write after which a region is flushed and given up, so that its memory
        is free and another process can claim it without fencing anybody. The next row for it
        claims it again. None: never.
    metrics_per_region : bool, default False
        Whether metrics are told per region rather than per table.

    Raises
    ------
    InvalidInputError
        A number is not positive, or two options contradict each other; the message names them.
    """

    durable: bool = True
    fsync: bool = True
    indexed: bool = False
    max_memtable_rows: int = 100_000
    max_memtable_batches: int = 8_000
    max_memtable_bytes: int = 64 << 20
    max_memtable_age: float | None = None
    max_sealed_memtables: int = 2
    backpressure_timeout: float = 60.0
    max_entry_bytes: int = 8 << 20
    buffer_bytes: int = 1 << 20
    buffer_writes: int = 1_000
    buffer_interval: float = 0.1
    max_buffered_bytes: int = 64 << 20
    epoch_check_interval: float | None = None
    flush_attempts: int = 5
    release_idle_after: float | None = None
    metrics_per_region: bool = False

    def __post_init__(self) -> None:
        for names, least in ((_AT_LEAST_ONE, 1), (_NOT_NEGATIVE, 0)):
            for name in names:
                value = getattr(self, name)
                if value is not None and value < least:
                    raise InvalidInputError(f"{name} must be at least {least}, not {value}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidInputError(f"{name} must be more than 0 seconds, not {value}")
