"""Prometheus collector over a catalog's figures.

Names are the same as OpenTelemetry's own Prometheus exporter gives to these metrics, so a rule does
not depend on which exporter a number comes from. The SDK itself is not used: it would keep a series
for every table that ever existed, and drops series above 2,000 of one metric.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from memwal.catalog.failures import REGION_JOB
from memwal.errors import MemWalError
from memwal.exporter.catalog_reader import CatalogReader, TableFigures
from memwal.exporter.metrics import (
    CATALOG_READ,
    CATALOG_UP,
    INDEX_GAUGES,
    JOB_ATTEMPTS,
    JOB_FAILING,
    JOB_RUNNING,
    JOB_SUCCESS_AGE,
    REGION_CLAIMS,
    TABLE_GAUGES,
    TABLE_HEALTH,
    TABLE_INFO,
)
from memwal.fleet.health import Health
from memwal.jobs.due import jobs_of
from memwal.jobs.job import RunState
from memwal.jobs.metrics import JOB_RUNS, JOB_SUMS
from memwal.telemetry import MetricDefinition
from memwal.telemetry.spans import HEALTH, INDEX, JOB, OUTCOME, OWNER, TABLE, TABLE_URI

logger = logging.getLogger(__name__)

_UNITS = {"s": "seconds", "By": "bytes"}
_OTHER = re.compile(r"[^a-zA-Z0-9:]+")

_BY_JOB = (TABLE, JOB)
OUTCOMES = (RunState.SUCCEEDED.value, RunState.FAILED.value, RunState.ABANDONED.value)

# Values by their labels; None is left out.
_Samples = Iterable[tuple[Sequence[str], float | None]]


class CatalogCollector(Collector):
    """Collector that reads a catalog when it is scraped, at most once in ``cache_seconds``.

    While the catalog does not answer, the only metric is ``memwal_catalog_up 0``: old numbers would
    look like new ones. A scrape waits up to ``patience_seconds`` for another one that is reading
    the catalog; Prometheus gives up after 10 s by default.
    """

    def __init__(
        self, reader: CatalogReader, *, cache_seconds: float, patience_seconds: float = 8.0
    ) -> None:
        self._reader = reader
        self._cache_seconds = cache_seconds
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._families: list[Metric] = []
        self._read_at: float | None = None

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that building a registry does not read the catalog."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all metrics; of concurrent scrapes, one reads the catalog."""
        if not self._lock.acquire(timeout=self._patience_seconds):
            # Waiting longer would only let waiting scrapes pile up.
            logger.warning("the catalog has not answered for %s s", self._patience_seconds)
            return [_DOWN]
        try:
            now = time.monotonic()
            if self._read_at is None or now - self._read_at >= self._cache_seconds:
                self._families = self._read_families()
                self._read_at = time.monotonic()
            return self._families
        finally:
            self._lock.release()

    def _read_families(self) -> list[Metric]:
        started = time.monotonic()
        try:
            tables = self._reader.read()
        except MemWalError as error:
            logger.warning("the catalog was not read: %s", error)
            return [_DOWN]
        took = time.monotonic() - started
        return [
            _gauge(CATALOG_UP, (), [((), 1)]),
            _gauge(CATALOG_READ, (), [((), took)]),
            *_families(self._reader, tables),
        ]


def registry(reader: CatalogReader, *, cache_seconds: float) -> CollectorRegistry:
    """Return a registry of the catalog's metrics and nothing else."""
    metrics = CollectorRegistry(auto_describe=False)
    metrics.register(CatalogCollector(reader, cache_seconds=cache_seconds))
    return metrics


def _families(reader: CatalogReader, tables: Sequence[TableFigures]) -> Iterator[Metric]:
    """Yield the metrics of a reading."""
    named = {figures.table.name: figures for figures in tables}
    yield _gauge(
        TABLE_INFO,
        (TABLE, TABLE_URI, OWNER),
        (((name, t.table.uri, t.table.owner), 1) for name, t in named.items()),
    )
    yield _gauge(
        TABLE_HEALTH,
        (TABLE, HEALTH),
        (
            ((name, health.value), float(health in t.overview.states))
            for name, t in named.items()
            for health in Health
        ),
    )
    for gauge in TABLE_GAUGES:
        yield _gauge(gauge, (TABLE,), (((name,), gauge.of(t)) for name, t in named.items()))
    for of_index in INDEX_GAUGES:
        yield _gauge(
            of_index,
            (TABLE, INDEX),
            (
                ((name, index.name), of_index.of(index))
                for name, t in named.items()
                for index in t.indexes
            ),
        )
    claims = (((name,), t.counters.claims) for name, t in named.items())
    yield _counter(REGION_CLAIMS, (TABLE,), claims)
    runs = (
        (name, job, outcome)
        for name, t in named.items()
        for job, outcome in product(jobs_of(mem_wal=t.table.mem_wal), OUTCOMES)
    )
    yield _counter(JOB_RUNS, (*_BY_JOB, OUTCOME), ((run, reader.runs[run]) for run in runs))
    for total in JOB_SUMS:
        yield _counter(
            total,
            _BY_JOB,
            (
                ((table, job), value)
                for (name, table, job), value in reader.sums.items()
                if name == total.name and table in named
            ),
        )
    ages = (
        ((name, job), t.success_age(job))
        for name, t in named.items()
        for job in sorted(jobs_of(mem_wal=t.table.mem_wal))
    )
    yield _gauge(JOB_SUCCESS_AGE, _BY_JOB, ages)
    # Skipped regions have a metric and an alert of their own.
    errors = [
        (name, t.since(error.since), error)
        for name, t in named.items()
        for error in t.overview.errors
        if error.job != REGION_JOB
    ]
    attempts = (((name, error.job), error.attempts or 1) for name, _, error in errors)
    yield _gauge(JOB_ATTEMPTS, _BY_JOB, attempts)
    failing = (((name, error.job), seconds) for name, seconds, error in errors)
    yield _gauge(JOB_FAILING, _BY_JOB, failing)
    running = (((name, job), 1) for name, t in named.items() for job in t.running)
    yield _gauge(JOB_RUNNING, _BY_JOB, running)


def prometheus_name(metric: MetricDefinition, *, counter: bool = False) -> str:
    """Return the name of a metric in Prometheus, as OpenTelemetry's exporter makes it."""
    name = _OTHER.sub("_", metric.name)
    unit = _UNITS.get(metric.unit)
    if unit is not None and not name.endswith(f"_{unit}"):
        name = f"{name}_{unit}"
    return f"{name}_total" if counter else name


def label(attribute: str) -> str:
    """Return the name of an attribute as a label in Prometheus."""
    return _OTHER.sub("_", attribute)


def _gauge(metric: MetricDefinition, attributes: Iterable[str], samples: _Samples) -> Metric:
    labels = [label(attribute) for attribute in attributes]
    family = GaugeMetricFamily(prometheus_name(metric), metric.description, labels=labels)
    return _filled(family, samples)


def _counter(metric: MetricDefinition, attributes: Iterable[str], samples: _Samples) -> Metric:
    labels = [label(attribute) for attribute in attributes]
    name = prometheus_name(metric, counter=True)
    return _filled(CounterMetricFamily(name, metric.description, labels=labels), samples)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: _Samples) -> Metric:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    return family


_DOWN = _gauge(CATALOG_UP, (), [((), 0)])
