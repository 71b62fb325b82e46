"""Options of a writer."""

from __future__ import annotations

from dataclasses import dataclass

from memwal.boundary.public import public
from memwal.errors import InvalidInputError
from memwal.util.clock import Duration, in_seconds

_MIN_ONE = (
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
_MIN_ZERO = ("backpressure_timeout", "buffer_interval", "epoch_check_interval")
_POSITIVE = ("max_memtable_age", "release_idle_after")


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Options of a writer.

    Attributes
    ----------
    durable : bool, default True
        Whether a write returns when its rows are durable in the log. If False, it returns at once
        with a handle to wait for that; until then a crash of the process loses the rows.
    fsync : bool, default True
        On a local disk, whether file and folder of a log entry are synced before a write is
        acknowledged. If False, a crash of the machine (not of the process) may lose writes that
        were acknowledged in the seconds before it, without an error. Object stores are not
        affected.
    indexed : bool, default False
        Whether a write returns only when the MemTable's indexes have its rows. If False, the first
        read that needs an index updates it. Reads give the same answers either way.
    max_memtable_rows : int, default 100_000
        Rows at which a MemTable is sealed and flushed. More rows make fewer, larger generations:
        cheaper to merge, longer to replay after a crash. Lance's own writer replays at most as many
        rows of one generation as its own MemTables may hold, by default 100,000: with more rows
        here, only memwal, or a Lance writer with the same setting, can replay an unflushed log.
    max_memtable_batches : int, default 8_000
        Batches of log entries at which a MemTable is sealed. Lance's own writer replays 8,000 by
        default.
    max_memtable_bytes : int, default 64 MiB
        Size in memory at which a MemTable is sealed, per region.
    max_memtable_age : float, timedelta or None, default None
        Time after its first row at which a MemTable is sealed and flushed, however small it is: the
        maximum delay until readers of the storage see a row. Here and below a number is in seconds.
        None: no limit.
    max_sealed_memtables : int, default 2
        MemTables of a region that may wait for their flush; at this number, writes wait too. A
        region's memory is bounded by ``(max_sealed_memtables + 1) * max_memtable_bytes`` and a
        batch.
    backpressure_timeout : float or timedelta, default 60
        Seconds that a write waits for a flush before it fails with BackPressureError.
    max_entry_bytes : int, default 8 MiB
        Size up to which concurrent writes share one entry of the write-ahead log. A larger single
        batch still goes into one entry.
    buffer_bytes : int, default 1 MiB
        Buffered writes of a region go to the log when they reach this size,
    buffer_writes : int, default 1_000
        or this number,
    buffer_interval : float or timedelta, default 0.1
        or when the oldest has waited for this many seconds.
    max_buffered_bytes : int, default 64 MiB
        Size of the writes waiting for the log of a region at which further writes wait too.
    epoch_check_interval : float, timedelta or None, default None
        Seconds for which an append may rely on an earlier check of the region's epoch. After that
        it checks the epoch again, when the entry is stored and before it is acknowledged. The check
        stops a writer that was paused for long from acknowledging a write into a log that another
        writer has replayed and the garbage collector has trimmed. None: 1 s on a local disk, where
        a check takes microseconds, and 10 s elsewhere, where it is a request. It must be well below
        the grace period of the garbage collector.
    flush_attempts : int, default 5
        Number of attempts of a flush, each into a new folder, before ``flush`` and ``close`` report
        its error. The rows stay in memory and in the log.
    release_idle_after : float, timedelta or None, default None
        Seconds without a write after which a region is flushed and closed, so that its memory is
        free and another process can claim it without fencing this writer. The next row for it
        claims it again. None: never.
    metrics_per_region : bool, default False
        Whether metrics are reported per region rather than per table.

    Raises
    ------
    InvalidInputError
        A number is too small; the message names the option.
    """

    durable: bool = True
    fsync: bool = True
    indexed: bool = False
    max_memtable_rows: int = 100_000
    max_memtable_batches: int = 8_000
    max_memtable_bytes: int = 64 << 20
    max_memtable_age: Duration | None = None
    max_sealed_memtables: int = 2
    backpressure_timeout: Duration = 60.0
    max_entry_bytes: int = 8 << 20
    buffer_bytes: int = 1 << 20
    buffer_writes: int = 1_000
    buffer_interval: Duration = 0.1
    max_buffered_bytes: int = 64 << 20
    epoch_check_interval: Duration | None = None
    flush_attempts: int = 5
    release_idle_after: Duration | None = None
    metrics_per_region: bool = False

    def __post_init__(self) -> None:
        for names, minimum in ((_MIN_ONE, 1), (_MIN_ZERO, 0)):
            for name in names:
                value = getattr(self, name)
                if value is not None and in_seconds(value) < minimum:
                    raise InvalidInputError(f"{name} must be at least {minimum}, not {value}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and in_seconds(value) <= 0:
                raise InvalidInputError(f"{name} must be more than 0 seconds, not {value}")
