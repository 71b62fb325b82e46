"""The Prometheus endpoint: what a scrape of a catalog shows, and what it costs."""

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from sqlalchemy import event, text
from support.data.policies import spoil_policy
from support.data.statuses import region, status
from support.data.tables import MakeTable, numbered
from support.metrics.exposed import of_a_producer, of_the_endpoint
from support.waiting import caught_elsewhere

from memwal.catalog import Catalog, Policy
from memwal.catalog.leases import job_resource
from memwal.errors import InvalidInputError
from memwal.exporter import collector
from memwal.exporter.collector import prometheus_name
from memwal.exporter.metrics import INDEX_GAUGES, TABLE_GAUGES
from memwal.exporter.server import MetricsEndpoint
from memwal.fleet import JobRequest, run_job
from memwal.jobs.job import JobResult, SkippedRegion
from memwal.jobs.metrics import JOB_RUNS, JOB_SUMS
from memwal.jobs.status import IndexLag
from memwal.telemetry import MetricDefinition
from memwal.writer.metrics import COUNTERS, GAUGES, HISTOGRAMS


@pytest.fixture
def flights(catalog: Catalog) -> str:
    catalog.register("flights", uri="/lake/flights", owner="data")
    return "flights"


class TestTables:
    def test_real_numbers(self, catalog: Catalog, scrape: Any, make_table: MakeTable) -> None:
        table = make_table(buckets=2, maintained_indexes=["id_idx"])
        with table.writer() as writer:
            for turn in range(3):
                writer.upsert(numbered(0, 20, n=turn))
                writer.flush()
        catalog.register("flights", uri=table.uri, policy=Policy(merge_at_generations=1))
        before = table.status()
        catalog.record_backlog("flights", before)
        scrape()
        of = {"table": "flights"}
        assert scrape.of("memwal_table_backlog_generations", **of) == 6
        assert scrape.of("memwal_table_backlog_deepest", **of) == 3
        assert scrape.of("memwal_table_backlog_rows", **of) == before.backlog_rows > 0
        assert scrape.of("memwal_table_backlog_bytes", **of) == before.backlog_bytes > 0
        assert scrape.of("memwal_table_regions", **of) == 2
        assert scrape.of("memwal_table_base_rows", **of) == 0
        run_job(catalog, JobRequest("flights", "merge"))
        catalog.record_backlog("flights", table.status())
        assert scrape.of("memwal_table_backlog_generations", **of) == 0
        assert scrape.of("memwal_table_backlog_age_seconds", **of) == 0
        assert scrape.of("memwal_table_base_rows", **of) == 20
        size = scrape.of("memwal_table_base_size_bytes", **of)
        data = (Path(table.uri) / "data").rglob("*.lance")
        assert size == sum(file.stat().st_size for file in data)
        index = {"table": "flights", "index": "id_idx"}
        assert scrape.of("memwal_table_catchup_generations", **index) == 6
        merge = {"table": "flights", "job": "merge"}
        assert scrape.of("memwal_job_runs_total", **merge, outcome="succeeded") == 1
        assert scrape.of("memwal_job_rows_total", **merge) == 20
        assert scrape.of("memwal_job_bytes_total", **merge) == before.backlog_bytes
        assert scrape.of("memwal_job_commits_total", **merge) == 1

    def test_the_policy(self, catalog: Catalog, scrape: Any, flights: str) -> None:
        policy = Policy(late_seconds=60, critical_seconds=90, schedule="*/15 * * * *")
        catalog.update(flights, policy=policy, enabled=False)
        found = scrape()
        key = (("memwal_table", flights),)
        assert found["memwal_table_late_seconds"][key] == 60
        assert found["memwal_table_critical_seconds"][key] == 90
        assert found["memwal_table_interval_seconds"][key] == 900
        assert found["memwal_table_enabled"][key] == 0
        labels = {"memwal_table": flights, "memwal_table_uri": "/lake/flights"}
        info = (("memwal_owner", "data"), *sorted(labels.items()))
        assert found["memwal_table_info"] == {info: 1}

    @pytest.mark.parametrize("schedule", [None, "every other day"])
    def test_without_an_interval_there_is_none(
        self, catalog: Catalog, scrape: Any, flights: str, schedule: str | None
    ) -> None:
        catalog.update(flights, policy=Policy(schedule=None))
        if schedule is not None:
            policy = json.dumps(Policy().to_dict() | {"schedule": "0 0 * * L"})
            with catalog.database.writing() as session:
                session.execute(text("UPDATE managed_tables SET policy = :p"), {"p": policy})
        assert scrape.of("memwal_table_interval_seconds", table=flights) is None
        assert scrape.of("memwal_catalog_up") == 1

    def test_ages_go_on_after_the_look(self, catalog: Catalog, scrape: Any, flights: str) -> None:
        waiting = region(backlog_generations=2, oldest_backlog_seconds=50.0)
        catalog.record_backlog(flights, status(waiting))
        age_state(catalog, timedelta(hours=2))
        found = scrape.of("memwal_table_backlog_age_seconds", table=flights)
        assert 7250 <= found < 7400
        assert 7200 <= scrape.of("memwal_table_status_age_seconds", table=flights) < 7350

    def test_one_whose_status_was_never_read(self, scrape: Any, flights: str) -> None:
        found = scrape()
        assert found["memwal_table_status_age_seconds"][("memwal_table", flights),] >= 0
        assert "memwal_table_backlog_age_seconds" not in found

    def test_one_that_is_gone(self, catalog: Catalog, scrape: Any, flights: str) -> None:
        finish(catalog, flights)
        scrape()
        catalog.unregister(flights)
        assert flights not in str(scrape())

    def test_a_policy_that_cannot_be_read_takes_nothing_down(
        self, catalog: Catalog, scrape: Any, flights: str
    ) -> None:
        catalog.register("other", uri="/data/other.lance")
        spoil_policy(catalog, flights, "{")
        assert scrape.of("memwal_catalog_up") == 1
        assert scrape.of("memwal_job_attempts", table=flights, job="policy") == 1
        assert scrape.of("memwal_table_enabled", table="other") == 1

    def test_a_run_that_failed_is_counted_before_it_is_tried_again(
        self, catalog: Catalog, scrape: Any, flights: str
    ) -> None:
        catalog.finish_run(catalog.start_run(flights, "gc"), error="no")
        catalog.start_run(flights, "gc")
        assert scrape.of("memwal_job_attempts", table=flights, job="gc") == 1

    def test_rows_that_an_index_cannot_hold(
        self, catalog: Catalog, scrape: Any, flights: str
    ) -> None:
        result = JobResult(job="index", table="/data", version=1, metrics={"unindexable_rows": 2})
        catalog.finish_run(catalog.start_run(flights, "index"), result=result.to_dict())
        assert scrape.of("memwal_table_unindexable_rows", table=flights) == 2

    def test_skipped_regions_and_failed_jobs(
        self, catalog: Catalog, scrape: Any, flights: str
    ) -> None:
        skipped = SkippedRegion(region_id="r", generation=2, reason="gone")
        catalog.backoffs.skip_regions(flights, [skipped])
        catalog.backoffs.record_failure(flights, "status", "no")
        assert scrape.of("memwal_table_skipped_regions", table=flights) == 1
        assert scrape.of("memwal_job_attempts", table=flights, job="status") == 1
        assert scrape.of("memwal_job_failing_seconds", table=flights, job="status") >= 0
        assert scrape.of("memwal_table_health", table=flights, health="failing") == 1
        assert scrape.of("memwal_table_health", table=flights, health="ok") == 0
        assert scrape.of("memwal_job_running", table=flights, job="gc") is None
        with catalog.leases.acquire(job_resource(flights, "gc")):
            assert scrape.of("memwal_job_running", table=flights, job="gc") == 1


class TestOverTime:
    def test_runs_count_from_the_first_scrape(
        self, catalog: Catalog, scrape: Any, flights: str
    ) -> None:
        finish(catalog, flights)
        going_on = catalog.start_run(flights, "merge")
        runs = {"table": flights, "job": "merge"}
        assert scrape.of("memwal_job_runs_total", **runs, outcome="succeeded") == 0
        catalog.finish_run(going_on, error="no")
        finish(catalog, flights)
        finish(catalog, flights)
        for _ in range(2):
            assert scrape.of("memwal_job_runs_total", **runs, outcome="succeeded") == 2
            assert scrape.of("memwal_job_runs_total", **runs, outcome="failed") == 1
        assert scrape.of("memwal_job_rows_total", **runs) == 14

    def test_counters_do_not_fall_when_history_is_pruned(
        self, catalog: Catalog, scrape: Any, flights: str
    ) -> None:
        scrape()
        for _ in range(3):
            finish(catalog, flights)
        runs = {"table": flights, "job": "merge", "outcome": "succeeded"}
        assert scrape.of("memwal_job_runs_total", **runs) == 3
        with catalog.database.writing() as session:
            session.execute(text("DELETE FROM job_runs"))
        assert scrape.of("memwal_job_runs_total", **runs) == 3

    def test_time_since_a_success(self, catalog: Catalog, scrape: Any, flights: str) -> None:
        finish(catalog, flights)
        with catalog.database.writing() as session:
            session.execute(text("UPDATE job_runs SET finished_at = '2001-01-01 00:00:00'"))
        catalog.finish_run(catalog.start_run(flights, "merge"), error="no")
        assert scrape.of("memwal_job_success_age_seconds", table=flights, job="merge") > 1e8
        # One that never succeeded counts from the registration.
        assert scrape.of("memwal_job_success_age_seconds", table=flights, job="gc") < 1e4

    def test_claims(self, catalog: Catalog, scrape: Any, flights: str) -> None:
        def look(*epochs: int) -> None:
            regions = [region(n, writer_epoch=e) for n, e in enumerate(epochs)]
            catalog.record_backlog(flights, status(*regions))

        look(7, 1)
        assert scrape.of("memwal_region_claims_total", table=flights) == 0
        look(9, 2)
        assert scrape.of("memwal_region_claims_total", table=flights) == 3
        assert scrape.of("memwal_region_claims_most", table=flights) == 2
        look(10, 2, 1)
        found = scrape()
        key = (("memwal_table", flights),)
        assert found["memwal_region_claims_total"][key] == 5
        assert found["memwal_region_claims_most"][key] == 3
        # A region that went away takes nothing back.
        look(10)
        assert scrape.of("memwal_region_claims_total", table=flights) == 5

    def test_claims_are_forgotten_after_a_while(
        self, catalog: Catalog, scrape: Any, flights: str
    ) -> None:
        catalog.record_backlog(flights, status(region(writer_epoch=1)))
        scrape()
        catalog.record_backlog(flights, status(region(writer_epoch=9)))
        age_state(catalog, timedelta(minutes=16))
        assert scrape.of("memwal_region_claims_most", table=flights) == 0
        assert scrape.of("memwal_region_claims_total", table=flights) == 8

    def test_how_long_an_index_is_behind(
        self,
        catalog: Catalog,
        scrape: Any,
        flights: str,
    ) -> None:
        ago = timedelta(hours=1)
        scrape = replace(scrape, clock=lambda: datetime.now(UTC) - ago)

        def age() -> float:
            return scrape.of("memwal_table_catchup_age_seconds", table=flights)

        catalog.record_backlog(flights, status(lag=2))
        assert age() == 0
        ago = timedelta(0)
        assert 3600 <= age() < 7200
        finish(catalog, flights, job="index")
        assert 0 <= age() < 3600
        catalog.record_backlog(flights, status(lag=0))
        assert age() == 0
        # Rows that were appended to the base table directly are in no generation.
        appended = IndexLag(name="id_idx", generations=0, regions=0, rows=5)
        ago = timedelta(hours=1)
        catalog.record_backlog(flights, status(indexes=(appended,)))
        assert age() == 0
        ago = timedelta(0)
        assert age() > 0


class TestCost:
    def test_queries_do_not_grow_with_the_tables(self, catalog: Catalog, scrape: Any) -> None:
        def fill(number: int) -> int:
            for n in range(number):
                name = f"t{number}-{n}"
                catalog.register(name, uri=f"/lake/{name}")
                catalog.record_backlog(name, status(lag=1))
                finish(catalog, name)
            with counted(catalog) as statements:
                scrape()
            return len(statements)

        scrape()
        assert fill(2) == fill(9) < 28

    def test_an_answer_is_repeated_for_a_while(self, catalog: Catalog, scrape: Any) -> None:
        cached = replace(scrape, cache_seconds=3600.0)
        first = cached()
        catalog.register("flights", uri="/lake/flights")
        with counted(catalog) as statements:
            assert cached() == first
        assert statements == []

    def test_old_numbers_are_not_shown_as_new_ones(
        self, catalog: Catalog, scrape: Any, flights: str
    ) -> None:
        assert scrape.of("memwal_catalog_up") == 1
        with catalog.database.writing() as session:
            session.execute(text("ALTER TABLE managed_tables RENAME TO elsewhere"))
        assert scrape() == {"memwal_catalog_up": {(): 0}}
        with catalog.database.writing() as session:
            session.execute(text("ALTER TABLE elsewhere RENAME TO managed_tables"))
        assert scrape.of("memwal_table_enabled", table=flights) == 1

    def test_of_many_scrapes_none_waits_for_ever(
        self, catalog: Catalog, scrape: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scrape = replace(scrape, patience_seconds=0.05)
        reading, over = threading.Event(), threading.Event()
        real = catalog.list

        def slow() -> Any:
            reading.set()
            assert over.wait(240)
            return real()

        monkeypatch.setattr(catalog, "list", slow)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(scrape)
            assert reading.wait(240)
            assert scrape() == {"memwal_catalog_up": {(): 0}}
            over.set()
            assert first.result()["memwal_catalog_up"] == {(): 1}


class TestServer:
    def test_serves(self, catalog: Catalog, flights: str) -> None:
        with MetricsEndpoint(catalog, port=0) as endpoint:
            assert endpoint.url.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(endpoint.url) as answer:
                assert answer.status == 200
                assert answer.headers["Content-Type"].startswith("text/plain")
                page = answer.read().decode()
        assert 'memwal_table_enabled{memwal_table="flights"} 1.0' in page
        assert "python_info" not in page

    def test_a_signal_that_another_thread_catches_ends_the_wait(self, catalog: Catalog) -> None:
        endpoint = MetricsEndpoint(catalog, port=0)
        with endpoint, caught_elsewhere(signal.SIGTERM, endpoint.close):
            endpoint.wait()

    def test_a_port_that_is_taken(self, catalog: Catalog) -> None:
        with (
            MetricsEndpoint(catalog, port=0) as endpoint,
            pytest.raises(InvalidInputError, match=str(endpoint.port)),
        ):
            MetricsEndpoint(catalog, port=endpoint.port)

    def test_from_the_command_line(self, catalog: Catalog, url: str) -> None:
        command = [
            sys.executable,
            "-m",
            "memwal.cli.commands.app",
            "metrics",
            "serve",
            "--port",
            "0",
        ]
        with subprocess.Popen(
            [*command, "--catalog", url, "--json"], stdout=subprocess.PIPE, text=True
        ) as serving:
            assert serving.stdout is not None
            where = json.loads(serving.stdout.readline())["url"]
            with urllib.request.urlopen(where) as answer:
                assert b"memwal_catalog_up 1.0" in answer.read()
            serving.send_signal(signal.SIGTERM)
            assert serving.wait(240) == 0


class TestNames:
    def test_are_those_of_the_sdk(self) -> None:
        found = CollectorRegistry()
        reader = PrometheusMetricReader(registry=found, scope_info_enabled=False)
        provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
        meter = provider.get_meter("memwal")
        gauges: list[MetricDefinition] = [
            *TABLE_GAUGES,
            *INDEX_GAUGES,
            *(one for one in vars(collector).values() if isinstance(one, MetricDefinition)),
        ]
        counters = {JOB_RUNS, collector.REGION_CLAIMS, *JOB_SUMS, *COUNTERS}
        expected = {"target_info"}
        for metric in {*gauges, *counters}:
            if metric in counters:
                meter.create_counter(metric.name, metric.unit).add(1)
            else:
                meter.create_gauge(metric.name, metric.unit).set(1)
            expected.add(prometheus_name(metric, counter=metric in counters))
        shown = {sample.name for one in found.collect() for sample in one.samples}
        provider.shutdown()
        assert shown == expected

    def test_a_scrape_has_all_that_the_lists_name(self) -> None:
        gauges = {prometheus_name(one) for one in (*TABLE_GAUGES, *INDEX_GAUGES)}
        sums = {prometheus_name(one, counter=True) for one in (JOB_RUNS, *JOB_SUMS)}
        assert gauges | sums <= set(of_the_endpoint())

    def test_a_producer_has_all_that_the_lists_name(self) -> None:
        found = set(of_a_producer())
        assert {prometheus_name(one) for one in GAUGES} <= found
        assert {prometheus_name(one, counter=True) for one in COUNTERS} <= found
        assert {f"{prometheus_name(one)}_sum" for one in HISTOGRAMS} <= found

    def test_both_sources_agree_on_labels(self) -> None:
        both = set(of_a_producer()) & set(of_the_endpoint())
        assert "memwal_job_runs_total" in both
        for name in both:
            assert of_a_producer()[name] == of_the_endpoint()[name]


def test_no_metric_is_named_by_a_region_or_a_secret() -> None:
    labels = set().union(*of_the_endpoint().values())
    known = {"table", "table_uri", "owner", "job", "outcome", "index", "health"}
    assert labels == {f"memwal_{name}" for name in known}
    assert all(re.fullmatch(r"memwal_[a-z_]+", name) for name in of_the_endpoint())


def finish(catalog: Catalog, table: str, *, job: str = "merge") -> None:
    """A run that went well, with 7 rows."""
    result = JobResult(job=job, table="/t", version=2, metrics={"rows_upserted": 7})
    catalog.finish_run(catalog.start_run(table, job), result=result.to_dict())


def age_state(catalog: Catalog, by: timedelta) -> None:
    """Let the latest status of every table be older."""
    with catalog.database.writing() as session:
        moved = f"-{by.total_seconds():.0f} seconds"
        for rows in ("table_states", "backlog_samples"):
            session.execute(
                text(f"UPDATE {rows} SET at = strftime('%Y-%m-%d %H:%M:%f', at, :by)"),
                {"by": moved},
            )


@contextmanager
def counted(catalog: Catalog) -> Iterator[list[str]]:
    """The statements that the block sends."""
    found: list[str] = []

    def keep(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        found.append(statement)

    event.listen(catalog.database.engine, "before_cursor_execute", keep)
    try:
        yield found
    finally:
        event.remove(catalog.database.engine, "before_cursor_execute", keep)
