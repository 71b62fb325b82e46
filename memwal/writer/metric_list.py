"""The names, units and meanings of all metrics: what docs/metrics.md shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memwal.telemetry.attributes import REGION_ID as REGION_ID
from memwal.telemetry.attributes import TABLE_URI as TABLE_URI
from memwal.writer.stats import WriterStats
from memwal.writer.totals import Totals


@dataclass(frozen=True, slots=True)
class Metric:
    """Name, unit and meaning of a metric."""

    name: str
    unit: str
    description: str


@dataclass(frozen=True, slots=True)
class Sum(Metric):
    """A counter: something that only grows, over all writers there ever were."""

    of: Callable[[Totals], float]


@dataclass(frozen=True, slots=True)
class Level(Metric):
    """What open writers hold now: added up per table, or with ``largest`` the largest of them."""

    of: Callable[[WriterStats], float]
    largest: bool = False


APPEND_DURATION = Metric(
    "memwal.writer.append.duration", "s", "Time of one append to a log, until it was durable."
)
FLUSH_DURATION = Metric(
    "memwal.writer.flush.duration", "s", "Time of one flush of a MemTable that succeeded."
)
BACKPRESSURE_DURATION = Metric(
    "memwal.writer.backpressure.duration", "s", "Time that one write waited for a flush."
)

HISTOGRAMS = (APPEND_DURATION, FLUSH_DURATION, BACKPRESSURE_DURATION)

SUMS = (
    Sum("memwal.writer.writes", "{write}", "Writes acknowledged as durable.", lambda t: t.writes),
    Sum("memwal.writer.rows", "{row}", "Rows of these writes, with deletes.", lambda t: t.rows),
    Sum("memwal.writer.bytes", "By", "Arrow bytes of these rows.", lambda t: t.bytes),
    Sum("memwal.writer.entries", "{entry}", "Entries appended to logs.", lambda t: t.entries),
    Sum("memwal.writer.entries.size", "By", "Encoded size of these.", lambda t: t.entry_bytes),
    Sum(
        "memwal.writer.generations",
        "{generation}",
        "Generations flushed.",
        lambda t: t.generations,
    ),
    Sum(
        "memwal.writer.generations.size",
        "By",
        "Memory of the MemTables that became these.",
        lambda t: t.flushed_bytes,
    ),
    Sum(
        "memwal.writer.flush.failures",
        "{failure}",
        "Tries of a flush that failed.",
        lambda t: t.failed_flushes,
    ),
    Sum(
        "memwal.writer.refusals",
        "{write}",
        "Writes that were not accepted.",
        lambda t: t.refused_writes,
    ),
)

LEVELS = (
    Level("memwal.writer.regions", "{region}", "Regions held.", lambda s: len(s.regions)),
    Level(
        "memwal.writer.memtable.size",
        "By",
        "Memory of MemTables, sealed ones included.",
        lambda s: s.memtable_bytes,
    ),
    Level(
        "memwal.writer.memtable.sealed",
        "{memtable}",
        "MemTables that wait for a flush.",
        lambda s: s.sealed_memtables,
    ),
    Level(
        "memwal.writer.buffered.writes",
        "{write}",
        "Writes that are not durable yet.",
        lambda s: s.buffered_writes,
    ),
    Level(
        "memwal.writer.buffered.size",
        "By",
        "Bytes of writes that are not durable yet.",
        lambda s: s.buffered_bytes,
    ),
    Level(
        "memwal.writer.unflushed.age",
        "s",
        "Age of the oldest row that no generation has yet.",
        lambda s: s.unflushed_age_seconds,
        largest=True,
    ),
)
