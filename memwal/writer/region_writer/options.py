"""Options of a writer, the defaults that a table sets for all its writers, and the two together.

The details of the MemWAL index have a map of writer defaults, which Lance and LanceDB write too.
Where Lance has a name for an option, it stands there under that name, in Lance's unit; any other
under its own name with the prefix ``memwal.``. Lance's clients keep names that they do not know.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from memwal.base_table.commit import update_details
from memwal.base_table.snapshot import BaseTable
from memwal.boundary.public import public
from memwal.errors import InvalidInputError
from memwal.format.memwal_index import IndexDetails
from memwal.storage.location import TableLocation
from memwal.util.clock import Duration, in_seconds

logger = logging.getLogger(__name__)

# Names under which a table stores the default of an option. The others belong to a producer.
_FLAGS: Final = {"durable": "durable_write", "indexed": "memwal.indexed"}
_COUNTS: Final = {
    "max_memtable_rows": "max_memtable_rows",
    "max_memtable_batches": "max_memtable_batches",
    "max_memtable_bytes": "max_memtable_size",
    "max_sealed_memtables": "memwal.max_sealed_memtables",
    "max_entry_bytes": "memwal.max_entry_bytes",
    "max_row_bytes": "memwal.max_row_bytes",
    "buffer_bytes": "max_wal_buffer_size",
    "buffer_writes": "memwal.buffer_writes",
    "max_buffered_bytes": "memwal.max_buffered_bytes",
    "flush_attempts": "memwal.flush_attempts",
}
_DURATIONS: Final = {
    "max_memtable_age": "memwal.max_memtable_age_ms",
    "backpressure_timeout": "memwal.backpressure_timeout_ms",
    "buffer_interval": "max_wal_flush_interval_ms",
    "epoch_check_interval": "memwal.epoch_check_interval_ms",
    "release_idle_after": "memwal.release_idle_after_ms",
}
# Durations that may not be 0.
_POSITIVE: Final = ("max_memtable_age", "release_idle_after")
_STORED_NAMES: Final[Mapping[str, str]] = {**_FLAGS, **_COUNTS, **_DURATIONS}
_NEVER: Final = "never"


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Options of a writer. None, the default of each, is the setting of the table.

    :meth:`memwal.Table.set_writer_defaults` changes the settings of a table. The defaults below are
    those of a table that has no setting.

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
    max_memtable_age : float or timedelta, default 60
        Time after its first row at which a MemTable is sealed and flushed, however small it is: the
        maximum delay until readers of the storage see a row. Rows that wait in the log for more
        than twice as long have no living writer, and a recovery flushes them. Here and below a
        number is in seconds, and ``math.inf`` means never.
    max_sealed_memtables : int, default 2
        MemTables of a region that may wait for their flush; at this number, writes wait too. A
        region's memory is bounded by ``(max_sealed_memtables + 1) * max_memtable_bytes`` and a
        batch.
    backpressure_timeout : float or timedelta, default 60
        Seconds that a write waits for a flush before it fails with BackPressureError.
    max_entry_bytes : int, default 8 MiB
        Size up to which concurrent writes share one entry of the write-ahead log. A larger single
        batch still goes into one entry.
    max_row_bytes : int, default 256 MiB
        Size in memory of the largest row; a call with a larger one fails with InvalidInputError. A
        row is in memory as a whole wherever it is written, flushed, merged or replayed, so that
        this bounds the memory of each such step. External blobs count with their address only.
    buffer_bytes : int, default 1 MiB
        Buffered writes of a region go to the log when they reach this size,
    buffer_writes : int, default 1_000
        or this number,
    buffer_interval : float or timedelta, default 0.1
        or when the oldest has waited for this many seconds.
    max_buffered_bytes : int, default 64 MiB
        Size of the writes waiting for the log of a region at which further writes wait too.
    epoch_check_interval : float or timedelta
        Seconds for which an append may rely on an earlier check of the region's epoch. After that
        it checks the epoch again, when the entry is stored and before it is acknowledged. The check
        stops a writer that was paused for long from acknowledging a write into a log that another
        writer has replayed and the garbage collector has trimmed. By default 1 s on a local disk,
        where a check takes microseconds, and 10 s elsewhere, where it is a request. It must be well
        below the grace period of the garbage collector.
    flush_attempts : int, default 5
        Number of attempts of a flush, each into a new folder, before ``flush`` and ``close`` report
        its error. The rows stay in memory and in the log.
    release_idle_after : float or timedelta, default ``math.inf``
        Seconds without a write after which a region is flushed and closed, so that its memory is
        free and another process can claim it without fencing this writer. The next row for it
        claims it again.
    reopen : bool, default False
        Whether a write claims its region again after another producer has claimed it, or after the
        store left an outcome open. For producers that share regions, such as two processes of a web
        server. The write that was in progress is found in the log, or written again, whichever is
        right; only if the log cannot tell does it raise its error. Each takeover costs a claim and
        the replay of unflushed rows, and producers that take a region from each other pause in
        between, some times longer than a claim takes: for much traffic, give each its own regions.
        A write tries for ``backpressure_timeout`` seconds. Writes that do not wait are not
        repeated: their handles have the error.
    metrics_per_region : bool, default False
        Whether metrics are reported per region rather than per table.

    Raises
    ------
    InvalidInputError
        A number is too small; the message names the option.
    """

    durable: bool | None = None
    fsync: bool | None = None
    indexed: bool | None = None
    max_memtable_rows: int | None = None
    max_memtable_batches: int | None = None
    max_memtable_bytes: int | None = None
    max_memtable_age: Duration | None = None
    max_sealed_memtables: int | None = None
    backpressure_timeout: Duration | None = None
    max_entry_bytes: int | None = None
    max_row_bytes: int | None = None
    buffer_bytes: int | None = None
    buffer_writes: int | None = None
    buffer_interval: Duration | None = None
    max_buffered_bytes: int | None = None
    epoch_check_interval: Duration | None = None
    flush_attempts: int | None = None
    release_idle_after: Duration | None = None
    reopen: bool | None = None
    metrics_per_region: bool | None = None

    def __post_init__(self) -> None:
        for names, minimum in ((_COUNTS, 1), (_DURATIONS, 0)):
            for name in names:
                value = getattr(self, name)
                if value is not None and in_seconds(value) < minimum:
                    raise InvalidInputError(f"{name} must be at least {minimum}, not {value}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and in_seconds(value) <= 0:
                raise InvalidInputError(f"{name} must be more than 0 seconds, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """Every setting of a writer, see :class:`WriterOptions`. Durations are in seconds."""

    durable: bool = True
    fsync: bool = True
    indexed: bool = False
    max_memtable_rows: int = 100_000
    max_memtable_batches: int = 8_000
    max_memtable_bytes: int = 64 << 20
    max_memtable_age: float = 60.0
    max_sealed_memtables: int = 2
    backpressure_timeout: float = 60.0
    max_entry_bytes: int = 8 << 20
    max_row_bytes: int = 256 << 20
    buffer_bytes: int = 1 << 20
    buffer_writes: int = 1_000
    buffer_interval: float = 0.1
    max_buffered_bytes: int = 64 << 20
    epoch_check_interval: float | None = None  # None: by the kind of store
    flush_attempts: int = 5
    release_idle_after: float = math.inf
    reopen: bool = False
    metrics_per_region: bool = False

    @classmethod
    def of(cls, options: WriterOptions, defaults: Mapping[str, str]) -> WriterSettings:
        """Return the settings of a writer of a table with these writer defaults."""
        chosen: dict[str, Any] = {
            field.name: value if isinstance(value, (bool, int)) else in_seconds(value)
            for field in fields(options)
            if (value := getattr(options, field.name)) is not None
        }
        return cls(**{**read_writer_defaults(defaults), **chosen})


def read_writer_defaults(stored: Mapping[str, str]) -> dict[str, Any]:
    """Return a table's settings by the names of the options; durations in seconds.

    Names of other clients are ignored, and so is a value that is not valid: it must not keep every
    writer from the table.
    """
    defaults: dict[str, Any] = {}
    for option, name in _STORED_NAMES.items():
        if name in stored:
            try:
                valid: dict[str, Any] = {option: _read_value(option, stored[name])}
                WriterOptions(**valid)
            except ValueError:
                logger.warning("the writer default %s=%s is not valid", name, stored[name])
            else:
                defaults |= valid
    return defaults


def write_writer_defaults(options: WriterOptions) -> dict[str, str]:
    """Return options as a table stores them; InvalidInputError for one that no table sets."""
    stored = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if value is not None:
            stored[stored_name(field.name)] = _write_value(field.name, value)
    return stored


def set_writer_defaults(location: TableLocation, options: WriterOptions) -> None:
    """Store options as the defaults of a table; defaults of None options stay as they are."""
    stored = write_writer_defaults(options)
    if not stored:
        raise InvalidInputError("no default was given; nothing was changed")

    def change(base: BaseTable) -> IndexDetails:
        details = base.details
        return replace(details, writer_config_defaults={**details.writer_config_defaults, **stored})

    update_details(location, change)


def reset_writer_defaults(location: TableLocation, options: Collection[str]) -> None:
    """Remove options, by name, from the defaults of a table."""
    names = {stored_name(option) for option in options}

    def change(base: BaseTable) -> IndexDetails:
        details = base.details
        kept = {k: v for k, v in details.writer_config_defaults.items() if k not in names}
        return replace(details, writer_config_defaults=kept)

    update_details(location, change)


def stored_name(option: str) -> str:
    """Return the stored name of an option; InvalidInputError for one that no table sets."""
    if option not in _STORED_NAMES:
        raise InvalidInputError(
            f"{option!r} cannot be set for a table; the options that can are "
            + ", ".join(sorted(_STORED_NAMES))
        )
    return _STORED_NAMES[option]


def parse_writer_options(settings: Iterable[str]) -> WriterOptions:
    """Read options that a table can set from texts such as ``max_memtable_age=10``.

    Counts are whole numbers, durations seconds or ``never``, and the others true or false. Raises
    InvalidInputError for anything else.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        option, _, text = setting.partition("=")
        stored_name(option)
        try:
            values[option] = (
                (math.inf if text == _NEVER else float(text))
                if option in _DURATIONS
                else _read_value(option, text)
            )
        except ValueError:
            raise InvalidInputError(
                f"{text!r} is no value of {option}; give true or false, a whole number, or, for a "
                "duration, seconds or 'never'"
            ) from None
    return WriterOptions(**values)


def _read_value(option: str, text: str) -> bool | int | float:
    if option in _FLAGS:
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    if option in _COUNTS:
        return int(text)
    return math.inf if text == _NEVER else int(text) / 1000


def _write_value(option: str, value: bool | Duration) -> str:
    if option in _FLAGS:
        return "true" if value else "false"
    if option in _COUNTS:
        return str(value)
    seconds = in_seconds(value)
    return _NEVER if math.isinf(seconds) else str(round(seconds * 1000))
