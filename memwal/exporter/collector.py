"""Prometheus collector over a catalog's figures.

Names are those that OpenTelemetry's own Prometheus exporter makes of the same metrics, so a rule
does not depend on where a number comes from. The SDK itself is not used: it would keep a series for
every table that ever existed, and drops what exceeds 2,000 series of one metric.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from memwal.errors import MemWalError
from memwal.exporter.catalog_reader import Look, Watch
from memwal.exporter.metrics import (
    CATALOG_READ,
    CATALOG_UP,
    CATCHUP_AGE,
    INDEX_GAUGES,
    JOB_ATTEMPTS,
    JOB_RUNNING,
    JOB_SUCCESS_AGE,
    MOST_CLAIMS,
    REGION_CLAIMS,
    TABLE_GAUGES,
    TABLE_INFO,
)
from memwal.jobs.metrics import JOB_RUNS, JOB_SUMS
from memwal.telemetry.metric import MetricDefinition
from memwal.telemetry.spans import INDEX, JOB, OUTCOME, OWNER, TABLE, TABLE_URI

if TYPE_CHECKING:
    pass

DEFAULT_CACHE_SECONDS = 5.0


logger = logging.getLogger(__name__)


_UNITS = {"s": "seconds", "By": "bytes"}
_OTHER = re.compile(r"[^a-zA-Z0-9:]+")

_BY_TABLE = (TABLE,)
_BY_JOB = (TABLE, JOB)


class CatalogCollector(Collector):
    """Reads a catalog when it is scraped, at most once in some seconds.

    A catalog that does not answer is told of by ``memwal_catalog_up 0``, and by nothing else: old
    numbers would look like new ones.

    Parameters
    ----------
    watch : Watch
    cache_seconds : float, default 5
        How long an answer is repeated, whoever asks.
    patience_seconds : float, default 8
        How long a scrape waits for one that is reading the catalog. Prometheus gives up after 10 s
        unless it is told otherwise.
    """

    def __init__(
        self,
        watch: Watch,
        *,
        cache_seconds: float = DEFAULT_CACHE_SECONDS,
        patience_seconds: float = 8.0,
    ) -> None:
        self._watch = watch
        self._cache_seconds = cache_seconds
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._families: list[Metric] = []
        self._read_at: float | None = None

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that making a registry reads no catalog."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all metrics; of several scrapes at once, one reads the catalog."""
        if not self._lock.acquire(timeout=self._patience_seconds):
            # Those that wait would only become more.
            logger.warning("the catalog has not answered for %s s", self._patience_seconds)
            return [_single(CATALOG_UP, 0)]
        try:
            now = time.monotonic()
            if self._read_at is None or now - self._read_at >= self._cache_seconds:
                self._families = self._read()
                self._read_at = time.monotonic()
            return self._families
        finally:
            self._lock.release()

    def _read(self) -> list[Metric]:
        started = time.monotonic()
        try:
            look = self._watch.look()
        except MemWalError as error:
            logger.warning("the catalog was not read: %s", error)
            return [_single(CATALOG_UP, 0)]
        took = time.monotonic() - started
        return [_single(CATALOG_UP, 1), _single(CATALOG_READ, took), *families(look)]


def registry(watch: Watch, *, cache_seconds: float = DEFAULT_CACHE_SECONDS) -> CollectorRegistry:
    """Return a registry of the catalog's metrics and nothing else."""
    found = CollectorRegistry(auto_describe=False)
    found.register(CatalogCollector(watch, cache_seconds=cache_seconds))
    return found


def families(look: Look) -> Iterator[Metric]:
    """What a look found, metric by metric."""
    info = _gauge(TABLE_INFO, (TABLE, TABLE_URI, OWNER))
    for reading in look.tables:
        table = reading.table
        info.add_metric([table.name, table.uri, table.owner], 1)
    yield info
    for gauge in TABLE_GAUGES:
        family = _gauge(gauge, _BY_TABLE)
        for reading in look.tables:
            value = gauge.of(reading)
            if value is not None:
                family.add_metric([reading.table.name], value)
        yield family
    for one in INDEX_GAUGES:
        family = _gauge(one, (TABLE, INDEX))
        for reading in look.tables:
            for index in reading.state.status.indexes if reading.state is not None else ():
                value = one.of(index)
                if value is not None:
                    family.add_metric([reading.table.name, index.name], value)
        yield family
    yield from _of_regions(look)
    yield from _of_jobs(look)


def _of_regions(look: Look) -> Iterator[Metric]:
    behind = _gauge(CATCHUP_AGE, _BY_TABLE)
    for name, seconds in look.behind.items():
        behind.add_metric([name], seconds)
    yield behind
    claims = _counter(REGION_CLAIMS, _BY_TABLE)
    for name, number in look.claims.items():
        claims.add_metric([name], number)
    yield claims
    most = _gauge(MOST_CLAIMS, _BY_TABLE)
    for name, number in look.most_claims.items():
        most.add_metric([name], number)
    yield most


def _of_jobs(look: Look) -> Iterator[Metric]:
    runs = _counter(JOB_RUNS, (*_BY_JOB, OUTCOME))
    for key, number in look.runs.items():
        runs.add_metric(key, number)
    yield runs
    for total in JOB_SUMS:
        family = _counter(total, _BY_JOB)
        for (name, table, job), value in look.sums.items():
            if name == total.name:
                family.add_metric([table, job], value)
        yield family
    ages, attempts = _gauge(JOB_SUCCESS_AGE, _BY_JOB), _gauge(JOB_ATTEMPTS, _BY_JOB)
    running = _gauge(JOB_RUNNING, _BY_JOB)
    jobs = {job for _, job, _ in look.runs}
    for reading in look.tables:
        name = reading.table.name
        for job in sorted(jobs):
            ages.add_metric([name, job], reading.success_age(job))
        for job, number in reading.attempts.items():
            attempts.add_metric([name, job], number)
        for job in reading.running:
            running.add_metric([name, job], 1)
    yield from (ages, attempts, running)


def prometheus_name(metric: MetricDefinition, *, counter: bool = False) -> str:
    """Name of a metric in Prometheus, as OpenTelemetry's exporter makes it.

    Parameters
    ----------
    metric : Metric
    counter : bool, default False
        Whether it only grows.
    """
    name = _OTHER.sub("_", metric.name)
    unit = _UNITS.get(metric.unit)
    if unit is not None and not name.endswith(f"_{unit}"):
        name = f"{name}_{unit}"
    return f"{name}_total" if counter else name


def label(attribute: str) -> str:
    """Name of an attribute in Prometheus."""
    return _OTHER.sub("_", attribute)


def _gauge(metric: MetricDefinition, attributes: Iterable[str]) -> GaugeMetricFamily:
    labels = [label(attribute) for attribute in attributes]
    return GaugeMetricFamily(prometheus_name(metric), metric.description, labels=labels)


def _counter(metric: MetricDefinition, attributes: Iterable[str]) -> CounterMetricFamily:
    labels = [label(attribute) for attribute in attributes]
    return CounterMetricFamily(
        prometheus_name(metric, counter=True), metric.description, labels=labels
    )


def _single(metric: MetricDefinition, value: float) -> GaugeMetricFamily:
    family = _gauge(metric, ())
    family.add_metric([], value)
    return family
