"""Metrics of the jobs that a process ends, collected by OpenTelemetry's own SDK."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics as otel
from opentelemetry.metrics import NoOpMeter
from support.metrics.collected import Collected

from memwal.catalog import Catalog
from memwal.jobs.job import JobResult
from memwal.jobs.metrics import JobMetrics, job_metrics

MERGE = (("memwal.job", "merge"), ("memwal.table", "flights"))


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collected]:
    found = Collected()
    monkeypatch.setattr(otel, "get_meter", found.provider.get_meter)
    job_metrics.cache_clear()
    yield found
    job_metrics.cache_clear()
    found.provider.shutdown()


def test_a_run_that_went_well(collected: Collected, catalog: Catalog) -> None:
    metrics = {"rows_upserted": 5, "rows_deleted": 2, "bytes": 100}
    metrics |= {"bytes_read": 30, "bytes_written": 80}
    with catalog.record_run("flights", "merge") as run:
        run.finish(JobResult(job="merge", table="/t", version=2, commits=2, metrics=metrics))
    found = collected.points("sum")
    assert found["memwal.job.read"] == {MERGE: 30}
    assert found["memwal.job.written"] == {MERGE: 80}
    assert found["memwal.job.runs"] == {
        (*MERGE[:1], ("memwal.outcome", "succeeded"), *MERGE[1:]): 1
    }
    assert found["memwal.job.rows"] == {MERGE: 7}
    assert found["memwal.job.bytes"] == {MERGE: 100}
    assert found["memwal.job.commits"] == {MERGE: 2}
    assert found["memwal.job.duration"][MERGE] >= 0


def test_a_run_that_failed(collected: Collected, catalog: Catalog) -> None:
    with pytest.raises(ZeroDivisionError), catalog.record_run("flights", "merge"):
        raise ZeroDivisionError
    ((labels, number),) = collected.points("sum")["memwal.job.runs"].items()
    assert dict(labels)["memwal.outcome"] == "failed"
    assert number == 1
    assert "memwal.job.rows" not in collected.points("sum")


def test_conflicts(collected: Collected) -> None:
    job_metrics().conflict("/lake/flights")
    labels = (("memwal.job", "merge"), ("memwal.table.uri", "/lake/flights"))
    assert collected.points("sum")["memwal.job.conflicts"] == {labels: 1}


def test_without_a_provider_nothing_is_kept(catalog: Catalog) -> None:
    nothing = JobMetrics(NoOpMeter("memwal"))
    run_id = catalog.start_run("flights", "merge")
    nothing.ended(catalog.finish_run(run_id, error="no"))
    nothing.conflict("/t")


def test_what_breaks_metrics_breaks_no_job(
    catalog: Catalog, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(NoOpMeter):
        def create_counter(self, *args: Any, **more: Any) -> Any:
            class Counter:
                def add(self, *args: Any, **more: Any) -> None:
                    raise ConnectionError("no collector")

            return Counter()

    monkeypatch.setattr(otel, "get_meter", Broken)
    catalog.register("flights", uri="/lake/flights")
    with catalog.record_run("flights", "merge") as run:
        run.finish(JobResult(job="merge", table="/lake/flights", version=2))
    job_metrics().conflict("/lake/flights")
