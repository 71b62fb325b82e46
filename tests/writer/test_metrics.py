"""Metrics, collected by OpenTelemetry's own SDK."""

import gc
import weakref
from typing import Any
from uuid import UUID

import pytest
from opentelemetry import metrics
from support.data.tables import MakeTable, keys, log, numbered, rows
from support.metrics import collected as collected_metrics
from support.metrics.region_stats import region_stats
from support.processes import run_python
from support.stores.faulty_store import GENERATION, FaultyStores

import memwal
from memwal.errors import StoreFullError
from memwal.region.router import bucket_region_id
from memwal.storage.location import TableLocation
from memwal.writer import table_writer
from memwal.writer.metrics import COUNTERS, GAUGES, HISTOGRAMS, REGION_ID, TABLE_URI, WriterMetrics
from memwal.writer.region_writer.stats import RegionStats, WriterCounters, WriterStats

LAKE = TableLocation("/lake/flights")
FIRST, SECOND = UUID(int=1), UUID(int=2)


class Collected(collected_metrics.Collected):
    """What a producer's exporter would be given."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics = WriterMetrics(self.meter)

    def of(self, location: TableLocation) -> dict[str, Any]:
        """Value, or count of a histogram, by metric, of one table."""
        key = ((TABLE_URI, location.uri),)
        return {name: points[key] for name, points in self.points().items() if key in points}


@pytest.fixture
def collected() -> Collected:
    return Collected()


@pytest.fixture
def real(collected: Collected, monkeypatch: pytest.MonkeyPatch) -> Collected:
    """Collect from writers that the test opens."""
    monkeypatch.setattr(table_writer, "process_metrics", lambda: collected.metrics)
    return collected


class Holder:
    """Stands for a writer that holds what it is told."""

    def __init__(self, *regions: RegionStats, uri: str = LAKE.uri) -> None:
        self.counters = WriterCounters(TableLocation(uri))
        self.regions = regions
        self.closed = False

    def stats(self) -> WriterStats:
        return self.counters.stats(self.regions, closed=self.closed)


def region(region_id: UUID = FIRST, **state: Any) -> RegionStats:
    return region_stats(WriterCounters(LAKE).region(region_id), **state)


class TestRealWriter:
    def test_fills_every_metric(
        self, real: Collected, faults: FaultyStores, table: memwal.Table
    ) -> None:
        options = memwal.WriterOptions(max_memtable_rows=10, max_sealed_memtables=1)
        with table.writer(options=options) as writer:
            writer.upsert(numbered(0, 4))
            writer.delete(keys(1, 2))
            found = real.of(table.location)
            assert found["memwal.writer.writes"] == 2
            assert found["memwal.writer.rows"] == 6
            assert found["memwal.writer.bytes"] > 0
            assert found["memwal.writer.entries"] == 2 == len(log(table))
            assert found["memwal.writer.append.duration"] == 2
            assert found["memwal.writer.generations"] == 0
            assert found["memwal.writer.regions"] == 1
            assert found["memwal.writer.memtable.size"] == writer.stats().memtable_bytes > 0
            assert found["memwal.writer.unflushed.age"] > 0
            assert "memwal.writer.flush.duration" not in found

            faults.of(table.location).fail("sync", GENERATION, StoreFullError("full"))
            writer.flush()
            found = real.of(table.location)
            assert found["memwal.writer.generations"] == 1
            assert found["memwal.writer.flush.failures"] == 1
            assert found["memwal.writer.flush.duration"] == 1
            assert found["memwal.writer.memtable.size"] == 0
            assert found["memwal.writer.unflushed.age"] == 0
        after = real.of(table.location)
        assert after["memwal.writer.writes"] == 2
        assert "memwal.writer.regions" not in after

    def test_tells_what_is_buffered(self, real: Collected, table: memwal.Table) -> None:
        options = memwal.WriterOptions(durable=False, buffer_interval=3600.0)
        with table.writer(options=options) as writer:
            writer.upsert(rows({1: 1}))
            writer.upsert(rows({2: 2}))
            found = real.of(table.location)
            assert found["memwal.writer.buffered.writes"] == 2
            assert found["memwal.writer.buffered.size"] > 0
            assert found["memwal.writer.writes"] == 0
            writer.flush_wal()
            found = real.of(table.location)
            assert found["memwal.writer.buffered.writes"] == 0
            assert found["memwal.writer.buffered.size"] == 0
            assert found["memwal.writer.writes"] == 2

    def test_tells_of_waits_and_refusals(
        self, real: Collected, faults: FaultyStores, table: memwal.Table
    ) -> None:
        options = memwal.WriterOptions(
            max_memtable_rows=1, max_sealed_memtables=1, backpressure_timeout=0.0
        )
        pause = faults.of(table.location).pause("sync", GENERATION)
        with table.writer(options=options) as writer:
            writer.upsert(rows({1: 1}))
            with pytest.raises(memwal.errors.BackPressureError):
                writer.upsert(rows({2: 2}))
            found = real.of(table.location)
            assert found["memwal.writer.memtable.sealed"] == 1
            assert found["memwal.writer.refusals"] == 1
            assert found["memwal.writer.backpressure.duration"] == 1
            pause.release()

    def test_is_not_kept_alive(self, real: Collected, table: memwal.Table) -> None:
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        gone = weakref.ref(writer)
        real.points()
        del writer
        gc.collect()
        assert gone() is None
        found = real.of(table.location)
        assert found["memwal.writer.writes"] == 1
        assert "memwal.writer.regions" not in found


class TestSums:
    def test_of_all_writers_of_a_table_are_one(self, collected: Collected) -> None:
        writers = [Holder(), Holder(), Holder(uri="/lake/other")]
        for number, writer in enumerate(writers, start=1):
            collected.metrics.watch(writer, writer.counters)
            writer.counters.region(FIRST).add_entry(number, 10 * number, 100, 0.1)
        found = collected.points()["memwal.writer.rows"]
        assert found == {((TABLE_URI, "/lake/flights"),): 30, ((TABLE_URI, "/lake/other"),): 30}

    @pytest.mark.parametrize("end", ["unwatch", "collect"])
    def test_stay_when_the_writer_is_gone(self, collected: Collected, end: str) -> None:
        totals = []
        for _ in range(3):
            writer = Holder()
            unwatch = collected.metrics.watch(writer, writer.counters)
            writer.counters.region(FIRST).add_entry(1, 10, 100, 0.1)
            totals.append(collected.of(LAKE)["memwal.writer.rows"])
            if end == "unwatch":
                unwatch()
                unwatch()
            del writer
            if end == "collect":
                gc.collect()
            totals.append(collected.of(LAKE)["memwal.writer.rows"])
        assert totals == [10, 10, 20, 20, 30, 30]

    def test_are_kept_in_little_room_though_nobody_collects(self, collected: Collected) -> None:
        kept = []
        for _ in range(50):
            writer = Holder()
            collected.metrics.watch(writer, writer.counters)()
            kept.append(weakref.ref(writer.counters))
        del writer
        assert sum(counters() is not None for counters in kept) <= 1


class TestLevels:
    def test_are_added_up_but_for_the_age(self, collected: Collected) -> None:
        first = Holder(region(memtable_bytes=5, sealed_bytes=2, unflushed_age_seconds=3.0))
        second = Holder(
            region(sealed_memtables=2, unflushed_age_seconds=9.0),
            region(SECOND, memtable_bytes=30, unflushed_age_seconds=1.0),
        )
        for writer in (first, second):
            collected.metrics.watch(writer, writer.counters)
        found = collected.of(LAKE)
        assert found["memwal.writer.regions"] == 3
        assert found["memwal.writer.memtable.size"] == 37
        assert found["memwal.writer.memtable.sealed"] == 2
        assert found["memwal.writer.unflushed.age"] == 9.0

    def test_of_a_closed_writer_are_none(self, collected: Collected) -> None:
        writer = Holder(region(memtable_bytes=5))
        collected.metrics.watch(writer, writer.counters)
        writer.closed = True
        assert "memwal.writer.memtable.size" not in collected.of(LAKE)


class TestPerRegion:
    def test_is_one_series_for_each(self, collected: Collected) -> None:
        writer = Holder(region(memtable_bytes=5), region(SECOND, memtable_bytes=7))
        collected.metrics.watch(writer, writer.counters, per_region=True)
        writer.counters.region(FIRST).add_entry(1, 10, 100, 0.1)
        writer.counters.region(SECOND).add_entry(2, 20, 200, 0.1)
        found = collected.points()

        def series(region_id: UUID) -> tuple[tuple[str, str], ...]:
            return ((REGION_ID, str(region_id)), (TABLE_URI, LAKE.uri))

        assert found["memwal.writer.rows"] == {series(FIRST): 10, series(SECOND): 20}
        assert found["memwal.writer.memtable.size"] == {series(FIRST): 5, series(SECOND): 7}

    def test_is_off_unless_asked_for(self, real: Collected, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        with table.writer() as writer:
            writer.upsert(numbered(0, 20))
            assert len(writer.stats().regions) == 2
            found = real.points()
        assert set(found["memwal.writer.rows"]) == {((TABLE_URI, table.uri),)}
        assert str(bucket_region_id(0)) not in str(found)


class TestNoProvider:
    def test_nothing_is_asked_of_a_writer(self) -> None:
        class Untouchable(Holder):
            def stats(self) -> WriterStats:
                raise AssertionError("nobody collects")

        nothing = WriterMetrics(metrics.NoOpMeter("memwal"))
        writer = Untouchable()
        nothing.watch(writer, writer.counters)()
        nothing.durations(LAKE)("append", 0.1)

    def test_one_that_is_set_later_gets_it_all(self) -> None:
        code = """
import sys
from uuid import UUID
from opentelemetry import metrics
from memwal.storage.location import TableLocation
from memwal.writer.metrics import process_metrics
from memwal.writer.region_writer.stats import WriterCounters

assert not any(name.startswith("opentelemetry.sdk") for name in sys.modules)
location = TableLocation("/lake/flights")
counters = WriterCounters(location, durations=process_metrics().durations(location))
class Writer:
    def stats(self):
        return counters.stats([], closed=False)
writer = Writer()
process_metrics().watch(writer, counters)
counters.region(UUID(int=1)).add_entry(1, 2, 3, 0.1)

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
counters.region(UUID(int=1)).add_entry(0, 0, 100, 0.5)
(resource,) = reader.get_metrics_data().resource_metrics
(scope,) = resource.scope_metrics
print(scope.scope.name)
for metric in scope.metrics:
    point = metric.data.data_points[0]
    print(metric.name, getattr(point, "value", None) or getattr(point, "count", 0))
"""
        lines = run_python(code).stdout.splitlines()
        assert lines[0] == "memwal"
        assert "memwal.writer.rows 2" in lines
        assert "memwal.writer.append.duration 1" in lines


def test_names_are_said_once() -> None:
    names = [metric.name for metric in (*COUNTERS, *GAUGES, *HISTOGRAMS)]
    assert len(set(names)) == len(names)
    assert all(name.startswith("memwal.writer.") for name in names)
