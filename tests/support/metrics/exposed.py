"""Which metrics with which labels Prometheus finds: of the endpoint, and of a process that has the
SDK's Prometheus exporter."""

import functools
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from support.data.statuses import region, status
from support.metrics.region_stats import region_stats

from memwal.catalog import Catalog, JobRun, RunState
from memwal.catalog.leases import job_resource
from memwal.exporter.catalog_reader import CatalogReader
from memwal.exporter.collector import registry
from memwal.jobs.job import JobResult, SkippedRegion
from memwal.jobs.metrics import JobMetrics
from memwal.storage.location import TableLocation
from memwal.writer.metrics import WriterMetrics
from memwal.writer.region_writer.stats import RegionStats, WriterCounters, WriterStats

URI = "/lake/flights"
_REGION = "00000000-0000-0000-0000-000000000001"


@functools.cache
def exposed() -> dict[str, frozenset[str]]:
    """Labels by name of the series."""
    return {**of_a_producer(), **of_the_endpoint()}


@functools.cache
def of_the_endpoint() -> dict[str, frozenset[str]]:
    """What a scrape shows of a catalog in which everything happened once."""
    with tempfile.TemporaryDirectory() as folder:
        catalog = Catalog(f"sqlite:///{Path(folder) / 'catalog.db'}")
        catalog.migrate()
        catalog.register("flights", uri=URI)
        found = registry(CatalogReader(catalog), cache_seconds=0)
        list(found.collect())
        catalog.record_backlog(
            "flights",
            status(region(1, backlog_generations=1, oldest_backlog_seconds=1.0), lag=1, uri=URI),
        )
        metrics = {"rows_upserted": 1, "bytes": 2, "bytes_read": 3, "bytes_written": 4}
        result = JobResult(job="merge", table=URI, version=2, commits=1, metrics=metrics)
        catalog.finish_run(catalog.start_run("flights", "merge"), result=result.to_dict())
        catalog.backoffs.record_failure("flights", "index", "no")
        catalog.backoffs.skip_regions(
            "flights", [SkippedRegion(region_id=_REGION, generation=1, reason="gone")]
        )
        with catalog.leases.acquire(job_resource("flights", "gc")):
            shown = _labels(found.collect())
        catalog.close()
        return shown


@functools.cache
def of_a_producer() -> dict[str, frozenset[str]]:
    """What the SDK's exporter shows of a writer and of a job."""
    found = CollectorRegistry()
    reader = PrometheusMetricReader(registry=found, scope_info_enabled=False)
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    meter = provider.get_meter("memwal")
    writers, jobs = WriterMetrics(meter), JobMetrics(meter)
    location = TableLocation(URI)
    counters = WriterCounters(location, durations=writers.durations(location))
    region = counters.region(UUID(int=1))
    region.add_entry(1, 1, 1, 0.1)
    region.add_flush(1, 1, 0.1)
    region.add_wait(0.1)
    writer = _Writer(counters, region_stats(region))
    writers.watch(writer, counters)
    now = datetime.now(UTC)
    jobs.conflict(URI)
    jobs.ended(
        JobRun(
            run_id=1,
            table="flights",
            job="merge",
            state=RunState.SUCCEEDED,
            started_at=now,
            finished_at=now,
            result={"commits": 1},
            error=None,
            external_id=None,
            rows=1,
            bytes=1,
        )
    )
    shown = _labels(found.collect())
    provider.shutdown()
    return shown


class _Writer:
    def __init__(self, counters: WriterCounters, region: RegionStats) -> None:
        self._counters = counters
        self._region = region

    def stats(self) -> WriterStats:
        return self._counters.stats([self._region], closed=False)


def _labels(families: Iterable[Metric]) -> dict[str, frozenset[str]]:
    return {sample.name: frozenset(sample.labels) for one in families for sample in one.samples}
