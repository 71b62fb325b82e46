"""Prometheus collector over a catalog's figures.

Names are those that OpenTelemetry's own Prometheus exporter makes of the same metrics, so a rule
does not depend on which exporter a number comes from. The SDK itself is not used: it would keep a
series for every table that ever existed, and drops series above 2,000 of one metric.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from memwal.catalog.failures import REGION_JOB
from memwal.errors import MemWalError
from memwal.exporter.catalog_reader import CatalogReader, CatalogReading
from memwal.exporter.metrics import (
    CATALOG_READ,
    CATALOG_UP,
    CATCHUP_AGE,
    INDEX_GAUGES,
    JOB_ATTEMPTS,
    JOB_FAILING,
    JOB_RUNNING,
    JOB_SUCCESS_AGE,
    MOST_CLAIMS,
    REGION_CLAIMS,
    TABLE_GAUGES,
    TABLE_HEALTH,
    TABLE_INFO,
)
from memwal.fleet.health import Health
from memwal.jobs.metrics import JOB_RUNS, JOB_SUMS
from memwal.telemetry import MetricDefinition
from memwal.telemetry.spans import HEALTH, INDEX, JOB, OUTCOME, OWNER, TABLE, TABLE_URI

logger = logging.getLogger(__name__)

_UNITS = {"s": "seconds", "By": "bytes"}
_OTHER = re.compile(r"[^a-zA-Z0-9:]+")

_BY_TABLE = (TABLE,)
_BY_JOB = (TABLE, JOB)


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
            return [_unlabelled_gauge(CATALOG_UP, 0)]
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
            reading = self._reader.read()
        except MemWalError as error:
            logger.warning("the catalog was not read: %s", error)
            return [_unlabelled_gauge(CATALOG_UP, 0)]
        took = time.monotonic() - started
        return [
            _unlabelled_gauge(CATALOG_UP, 1),
            _unlabelled_gauge(CATALOG_READ, took),
            *families(reading),
        ]


def registry(reader: CatalogReader, *, cache_seconds: float) -> CollectorRegistry:
    """Return a registry of the catalog's metrics and nothing else."""
    metrics = CollectorRegistry(auto_describe=False)
    metrics.register(CatalogCollector(reader, cache_seconds=cache_seconds))
    return metrics


def families(reading: CatalogReading) -> Iterator[Metric]:
    """Yield the metrics of a reading."""
    info = _gauge(TABLE_INFO, (TABLE, TABLE_URI, OWNER))
    for table_reading in reading.tables:
        table = table_reading.table
        info.add_metric([table.name, table.uri, table.owner], 1)
    yield info
    healths = _gauge(TABLE_HEALTH, (TABLE, HEALTH))
    for table_reading in reading.tables:
        for health in Health:
            found = table_reading.overview.health is health
            healths.add_metric([table_reading.table.name, health.value], float(found))
    yield healths
    for gauge in TABLE_GAUGES:
        family = _gauge(gauge, _BY_TABLE)
        for table_reading in reading.tables:
            value = gauge.of(table_reading)
            if value is not None:
                family.add_metric([table_reading.table.name], value)
        yield family
    for index_gauge in INDEX_GAUGES:
        family = _gauge(index_gauge, (TABLE, INDEX))
        for table_reading in reading.tables:
            state = table_reading.state
            for index in state.status.indexes if state is not None else ():
                value = index_gauge.of(index)
                if value is not None:
                    family.add_metric([table_reading.table.name, index.name], value)
        yield family
    yield _by_table(_gauge(CATCHUP_AGE, _BY_TABLE), reading.behind)
    yield _by_table(_counter(REGION_CLAIMS, _BY_TABLE), reading.claims)
    yield _by_table(_gauge(MOST_CLAIMS, _BY_TABLE), reading.most_claims)
    yield from _job_metrics(reading)


def _by_table(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]
) -> Metric:
    for table, value in values.items():
        family.add_metric([table], value)
    return family


def _job_metrics(reading: CatalogReading) -> Iterator[Metric]:
    runs = _counter(JOB_RUNS, (*_BY_JOB, OUTCOME))
    for key, number in reading.runs.items():
        runs.add_metric(key, number)
    yield runs
    for total in JOB_SUMS:
        family = _counter(total, _BY_JOB)
        for (name, table, job), value in reading.sums.items():
            if name == total.name:
                family.add_metric([table, job], value)
        yield family
    ages, attempts = _gauge(JOB_SUCCESS_AGE, _BY_JOB), _gauge(JOB_ATTEMPTS, _BY_JOB)
    running, failing = _gauge(JOB_RUNNING, _BY_JOB), _gauge(JOB_FAILING, _BY_JOB)
    jobs = {job for _, job, _ in reading.runs}
    for table_reading in reading.tables:
        name = table_reading.table.name
        for job in sorted(jobs):
            ages.add_metric([name, job], table_reading.success_age(job))
        for error in table_reading.overview.errors:
            if error.job == REGION_JOB:
                continue  # Skipped regions have a metric and an alert of their own.
            attempts.add_metric([name, error.job], error.attempts or 1)
            failing.add_metric([name, error.job], table_reading.since(error.since))
        for job in table_reading.running:
            running.add_metric([name, job], 1)
    yield from (ages, attempts, failing, running)


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


def _gauge(metric: MetricDefinition, attributes: Iterable[str]) -> GaugeMetricFamily:
    labels = [label(attribute) for attribute in attributes]
    return GaugeMetricFamily(prometheus_name(metric), metric.description, labels=labels)


def _counter(metric: MetricDefinition, attributes: Iterable[str]) -> CounterMetricFamily:
    labels = [label(attribute) for attribute in attributes]
    return CounterMetricFamily(
        prometheus_name(metric, counter=True), metric.description, labels=labels
    )


def _unlabelled_gauge(metric: MetricDefinition, value: float) -> GaugeMetricFamily:
    family = _gauge(metric, ())
    family.add_metric([], value)
    return family
