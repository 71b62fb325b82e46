"""OpenTelemetry metrics of all writers of this process.

Only the OpenTelemetry API is used: the producer's MeterProvider decides where the metrics go. It
may be set before or after writers are opened. Without one, no metric is read or stored. Counters
and gauges are read from the writers' counters at collection; a write records only histograms, once
per log entry.

There are no spans: an entry belongs to many callers and a flush to none. A producer's own span
around its call shows how long the call waited.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from memwal.storage.location import TableLocation
from memwal.telemetry import MetricDefinition
from memwal.telemetry.spans import REGION_ID as REGION_ID
from memwal.telemetry.spans import TABLE_URI as TABLE_URI
from memwal.util import system
from memwal.writer.region_writer.stats import Durations, Totals, WriterCounters, WriterStats


@dataclass(frozen=True, slots=True)
class Counter(MetricDefinition):
    """Metric that only grows: a sum over all writers of the process, past ones included."""

    read: Callable[[Totals], float]


@dataclass(frozen=True, slots=True)
class Gauge(MetricDefinition):
    """Metric of the open writers: their sum per table, or with ``largest`` the maximum."""

    read: Callable[[WriterStats], float]
    largest: bool = False


HISTOGRAMS = (
    MetricDefinition(
        "memwal.writer.append.duration", "s", "Time of one append to a log, until it was durable."
    ),
    MetricDefinition(
        "memwal.writer.flush.duration", "s", "Time of one flush of a MemTable that succeeded."
    ),
    MetricDefinition(
        "memwal.writer.backpressure.duration", "s", "Time that one write waited for a flush."
    ),
)

COUNTERS = (
    Counter(
        "memwal.writer.writes", "{write}", "Writes acknowledged as durable.", lambda t: t.writes
    ),
    Counter("memwal.writer.rows", "{row}", "Rows of these writes, with deletes.", lambda t: t.rows),
    Counter("memwal.writer.bytes", "By", "Arrow bytes of these rows.", lambda t: t.bytes),
    Counter("memwal.writer.entries", "{entry}", "Entries appended to logs.", lambda t: t.entries),
    Counter("memwal.writer.entries.size", "By", "Encoded size of these.", lambda t: t.entry_bytes),
    Counter(
        "memwal.writer.generations",
        "{generation}",
        "Generations flushed.",
        lambda t: t.generations,
    ),
    Counter(
        "memwal.writer.generations.size",
        "By",
        "Memory of the MemTables that became these.",
        lambda t: t.flushed_bytes,
    ),
    Counter(
        "memwal.writer.flush.failures",
        "{failure}",
        "Tries of a flush that failed.",
        lambda t: t.failed_flushes,
    ),
    Counter(
        "memwal.writer.refusals",
        "{write}",
        "Writes that were not accepted.",
        lambda t: t.refused_writes,
    ),
)

GAUGES = (
    Gauge("memwal.writer.regions", "{region}", "Regions held.", lambda s: len(s.regions)),
    Gauge(
        "memwal.writer.memtable.size",
        "By",
        "Memory of MemTables, sealed ones included.",
        lambda s: s.memtable_bytes,
    ),
    Gauge(
        "memwal.writer.memtable.sealed",
        "{memtable}",
        "MemTables that wait for a flush.",
        lambda s: s.sealed_memtables,
    ),
    Gauge(
        "memwal.writer.buffered.writes",
        "{write}",
        "Writes that are not durable yet.",
        lambda s: s.buffered_writes,
    ),
    Gauge(
        "memwal.writer.buffered.size",
        "By",
        "Bytes of writes that are not durable yet.",
        lambda s: s.buffered_bytes,
    ),
    Gauge(
        "memwal.writer.unflushed.age",
        "s",
        "Age of the oldest row that no generation has yet.",
        lambda s: s.unflushed_age_seconds,
        largest=True,
    ),
)


_DURATION_BUCKETS = (
    *(0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class ObservedWriter(Protocol):
    """Writer whose metrics are collected."""

    def stats(self) -> WriterStats:
        """Return a snapshot of the writer."""


class WriterMetrics:
    """Instruments of one meter, and the writers that they report."""

    def __init__(self, meter: Meter) -> None:
        self._histograms = {
            kind: meter.create_histogram(
                metric.name,
                metric.unit,
                metric.description,
                explicit_bucket_boundaries_advisory=_DURATION_BUCKETS,
            )
            for kind, metric in zip(("append", "flush", "wait"), HISTOGRAMS, strict=True)
        }
        for counter in COUNTERS:
            meter.create_observable_counter(
                counter.name,
                [functools.partial(self._observe_counter, counter)],
                counter.unit,
                counter.description,
            )
        for gauge in GAUGES:
            create = (
                meter.create_observable_gauge
                if gauge.largest
                else meter.create_observable_up_down_counter
            )
            create(
                gauge.name,
                [functools.partial(self._observe_gauge, gauge)],
                gauge.unit,
                gauge.description,
            )
        self._reset()
        # The parent goes on to report its writers, and its lock may have been held at the fork.
        system.after_fork_in_child(self._reset)

    def durations(self, location: TableLocation) -> Durations:
        """Return the recorder of single durations for a table's writer."""
        attributes = {TABLE_URI: location.uri}
        return lambda kind, seconds: self._histograms[kind].record(seconds, attributes)

    def watch(
        self, writer: ObservedWriter, counters: WriterCounters, *, per_region: bool = False
    ) -> Callable[[], object]:
        """Report a writer until it is closed or collected; its sums are reported ever after.

        The writer is not kept alive. With ``per_region`` there is one series per region instead of
        one per table: a table with many regions then costs as many series for each metric.
        Durations stay per table. Returns a function that removes the writer, to be called when it
        is closed.
        """
        watched = _WatchedWriter(weakref.ref(writer), counters, per_region)
        ended = weakref.finalize(writer, self._ended.append, watched)
        ended.atexit = False
        with self._lock:
            self._retire()
            self._watched.append(watched)
        return ended

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[_WatchedWriter] = []
        # Filled by finalizers, which run on any thread, even under the lock, and must not take it.
        self._ended: deque[_WatchedWriter] = deque()
        self._retired: dict[_Series, Totals] = {}

    def _retire(self) -> None:
        """Keep the sums of writers that were closed or collected. The caller holds the lock."""
        while self._ended:
            ended = self._ended.popleft()
            self._watched.remove(ended)
            _add_totals(self._retired, ended.totals())

    def _observe_counter(self, counter: Counter, options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            self._retire()
            sums = dict(self._retired)
            for watched in self._watched:
                _add_totals(sums, watched.totals())
        return [Observation(counter.read(totals), dict(series)) for series, totals in sums.items()]

    def _observe_gauge(self, gauge: Gauge, options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            self._retire()
            all_watched = list(self._watched)
        values: dict[_Series, float] = {}
        for watched in all_watched:
            for series, stats in watched.stats():
                value, before = gauge.read(stats), values.get(series, 0)
                values[series] = max(value, before) if gauge.largest else value + before
        return [Observation(value, dict(series)) for series, value in values.items()]


@functools.cache
def process_metrics() -> WriterMetrics:
    """Return the metrics of this process, for the MeterProvider that it has or will have."""
    return WriterMetrics(metrics.get_meter("memwal"))


# Attributes of a metric: the table, and the region if it has series of its own.
_Series = tuple[tuple[str, str], ...]


def _series(uri: str, region_id: UUID) -> _Series:
    return (TABLE_URI, uri), (REGION_ID, str(region_id))


@dataclass(frozen=True, slots=True, eq=False)
class _WatchedWriter:
    writer: weakref.ref[ObservedWriter]
    counters: WriterCounters
    per_region: bool

    def totals(self) -> list[tuple[_Series, Totals]]:
        uri = self.counters.uri
        if not self.per_region:
            return [(((TABLE_URI, uri),), self.counters.totals())]
        return [(_series(uri, c.region_id), c.totals()) for c in self.counters.regions()]

    def stats(self) -> list[tuple[_Series, WriterStats]]:
        writer = self.writer()
        stats = writer.stats() if writer is not None else None
        if stats is None or stats.closed:
            return []
        if not self.per_region:
            return [(((TABLE_URI, stats.uri),), stats)]
        return [
            (_series(stats.uri, region.region_id), replace(stats, regions=(region,)))
            for region in stats.regions
        ]


def _add_totals(sums: dict[_Series, Totals], more: Iterable[tuple[_Series, Totals]]) -> None:
    for series, totals in more:
        sums[series] = sums.get(series, Totals()) + totals
