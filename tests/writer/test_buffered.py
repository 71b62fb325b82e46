"""Buffered writes: acknowledged at once, durable later, and a handle that tells when."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.data.tables import MakeTable, keys, log, numbered, rows, state
from support.stores.faulty_store import WAL, FaultyStores
from support.waiting import until

import memwal
from memwal import WriterOptions
from memwal.errors import (
    BackPressureError,
    PartialWriteError,
    RegionFencedError,
    StoreFullError,
    WriterClosedError,
)

PATIENT = WriterOptions(durable=False, buffer_interval=3600)
"""Writes nothing by itself in the time of a test."""


def test_a_write_returns_before_anything_is_stored(table: memwal.Table) -> None:
    writer = table.writer(options=PATIENT)
    handle = writer.upsert(rows({1: 1}))
    again = writer.delete(keys(7))

    assert log(table) == {}
    assert not handle.done()
    assert handle.exception() is None
    writer.flush_wal()
    assert handle.done()
    assert again.done()
    handle.wait()
    assert len(log(table)) == 1
    writer.abort()
    with table.writer() as reopened:
        reopened.claim()
        assert state(reopened) == {1: 1}


def test_what_is_buffered_is_read_by_this_process_and_lost_with_it(table: memwal.Table) -> None:
    writer = table.writer(options=PATIENT)
    writer.upsert(rows({1: 1, 2: 2})).done()
    writer.flush_wal()
    handle = writer.upsert(rows({2: 3}))
    writer.delete(keys(1))

    assert state(writer) == {2: 3}
    assert state(table) == {}
    writer.abort()
    with pytest.raises(WriterClosedError):
        handle.wait()
    with table.writer() as reopened:
        reopened.claim()
        assert state(reopened) == {1: 1, 2: 2}


@pytest.mark.parametrize(
    "options",
    [
        WriterOptions(durable=False, buffer_interval=3600, buffer_writes=5),
        WriterOptions(durable=False, buffer_interval=3600, buffer_bytes=1),
        WriterOptions(durable=False, buffer_interval=0.01),
    ],
    ids=["count", "bytes", "time"],
)
def test_writes_go_to_the_log_by_threshold(table: memwal.Table, options: WriterOptions) -> None:
    with table.writer(options=options) as writer:
        handles = [writer.upsert(rows({n: n})) for n in range(5)]
        for handle in handles:
            handle.wait(240)
        assert sum(batch.num_rows for e in log(table).values() for batch in e.batches) == 5


def test_below_the_thresholds_writes_gather(table: memwal.Table) -> None:
    options = WriterOptions(durable=False, buffer_interval=3600, buffer_writes=10)
    with table.writer(options=options) as writer:
        handles = [writer.upsert(rows({n: n})) for n in range(10)]
        handles[9].wait(240)
        handles += [writer.upsert(rows({n: n})) for n in range(10, 15)]
        assert sum(batch.num_rows for e in log(table).values() for batch in e.batches) == 10
        assert not handles[10].done()
        writer.flush_wal()
        assert handles[14].done()
        assert len(log(table)) == 2


def test_order_is_kept_across_entries(table: memwal.Table) -> None:
    options = WriterOptions(durable=False, buffer_interval=0, max_entry_bytes=1)
    with table.writer(options=options) as writer:
        for n in range(50):
            writer.upsert(rows({1: n}))
        writer.delete(keys(1))
        writer.upsert(rows({1: 99}))
        assert state(writer) == {1: 99}
    assert state(table) == {1: 99}


def test_close_and_flush_wait_for_the_log(table: memwal.Table) -> None:
    writer = table.writer(options=PATIENT)
    first = writer.upsert(rows({1: 1}))
    writer.flush()
    assert first.done()
    assert state(table) == {1: 1}
    second = writer.upsert(rows({1: 2}))
    writer.close()
    assert second.done()
    assert state(table) == {1: 2}


def test_a_single_write_can_be_waited_for(table: memwal.Table) -> None:
    with table.writer(options=PATIENT) as writer:
        before = writer.upsert(rows({1: 1}))
        assert writer.upsert(rows({1: 2}), wait=True).done()
        assert before.done()
        assert state(writer) == {1: 2}


def test_a_durable_writer_need_not_wait(faults: FaultyStores, table: memwal.Table) -> None:
    """Then a row that is not durable yet is not read either."""
    store = faults.of(table.location)
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        pause = store.pause("create", WAL)
        handle = writer.upsert(rows({1: 2}), wait=False)
        pause.wait_until_reached()
        assert not handle.done()
        assert state(writer) == {1: 1}
        with pytest.raises(BackPressureError):
            handle.wait(0.01)
        pause.release()
        handle.wait(240)
        assert state(writer) == {1: 2}


class TestHandle:
    def test_calls_back_when_all_regions_have_their_part(self, make_table: MakeTable) -> None:
        table = make_table(buckets=4)
        with table.writer(options=PATIENT) as writer:
            called = threading.Event()
            handle = writer.upsert(numbered(0, 40))
            handle.add_done_callback(lambda h: called.set() if h.done() else None)
            assert not called.wait(0.05)
            writer.flush_wal()
            assert called.wait(240)
            late = []
            handle.add_done_callback(late.append)
            assert late == [handle]

    def test_of_nothing_is_done(self, table: memwal.Table) -> None:
        with table.writer(options=PATIENT) as writer:
            handle = writer.upsert(numbered(0, 0))
            assert handle.done()
            handle.wait()
            called = []
            handle.add_done_callback(called.append)
            assert called == [handle]

    def test_tells_what_went_wrong(self, faults: FaultyStores, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        writer = table.writer(options=PATIENT)
        writer.upsert(numbered(0, 20)).done()
        writer.flush_wal()
        handle = writer.upsert(numbered(0, 20, n=1))
        region = writer.stats().regions[0].region_id
        faults.of(table.location).fail(
            "create", WAL.replace("*", str(region), 1), StoreFullError("full")
        )
        assert writer.stats().buffered_writes == 2
        with pytest.raises(StoreFullError):
            writer.flush_wal()
            writer.flush_wal()
            handle.wait()
        with pytest.raises(PartialWriteError):
            handle.wait()
        assert isinstance(handle.exception(), PartialWriteError)
        assert writer.stats().buffered_writes == 0
        writer.close()
        assert set(state(table).values()) == {0, 1}

    def test_of_a_fenced_writer_fails(self, table: memwal.Table) -> None:
        writer = table.writer(options=PATIENT)
        writer.upsert(rows({1: 1}))
        writer.flush_wal()
        handle = writer.upsert(rows({1: 2}))
        with table.writer() as other:
            other.upsert(rows({1: 3}))
        with pytest.raises(RegionFencedError):
            writer.flush_wal()
        with pytest.raises(RegionFencedError):
            handle.wait(240)
        with pytest.raises(RegionFencedError):
            writer.upsert(rows({1: 4}))
        assert state(table) == {1: 3}


def test_memory_is_bounded_while_the_log_is_slow(faults: FaultyStores, table: memwal.Table) -> None:
    store = faults.of(table.location)
    options = WriterOptions(
        durable=False, buffer_interval=0, max_buffered_bytes=1, backpressure_timeout=0.1
    )
    with table.writer(options=options) as writer:
        writer.upsert(rows({0: 0}), wait=True)
        pause = store.pause("create", WAL)
        writer.upsert(rows({1: 1}))
        pause.wait_until_reached()
        writer.upsert(rows({2: 2}))
        with pytest.raises(BackPressureError):
            writer.upsert(rows({3: 3}))
        assert writer.stats().totals.refused_writes == 1
        pause.release()
        writer.flush_wal()
        writer.upsert(rows({4: 4}))
        assert state(writer) == {0: 0, 1: 1, 2: 2, 4: 4}


def test_a_memtable_is_sealed_by_age(table: memwal.Table) -> None:
    with table.writer(options=WriterOptions(max_memtable_age=0.05)) as writer:
        writer.upsert(rows({1: 1}))
        until(lambda: state(table) == {1: 1})
        writer.upsert(rows({1: 2}))
        until(lambda: state(table) == {1: 2})


class TestIdleRegions:
    OPTIONS = WriterOptions(release_idle_after=0.05)

    def test_are_released_and_claimed_again(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        with table.writer(options=self.OPTIONS) as writer:
            writer.upsert(numbered(0, 20))
            until(lambda: writer.stats().regions == ())
            assert state(table) == dict.fromkeys(range(20), 0)
            writer.upsert(numbered(0, 20, n=1))
            assert all(region.epoch > 1 for region in writer.stats().regions)
            assert writer.stats().totals.rows == 40
            assert state(writer) == dict.fromkeys(range(20), 1)

    def test_can_be_claimed_by_others_without_fencing_anybody(self, table: memwal.Table) -> None:
        with table.writer(options=self.OPTIONS) as writer:
            writer.upsert(rows({1: 1}))
            until(lambda: writer.stats().regions == ())
            with table.writer() as other:
                other.upsert(rows({1: 2}))
            writer.upsert(rows({2: 2}))
        assert state(table) == {1: 2, 2: 2}

    def test_writes_that_meet_a_release_are_not_lost(self, table: memwal.Table) -> None:
        options = WriterOptions(release_idle_after=0.001)
        with table.writer(options=options) as writer:
            for n in range(30):
                writer.upsert(rows({n: n, -1: n}))
                time.sleep(0.003 * (n % 3))
            assert state(writer) == {n: n for n in range(30)} | {-1: 29}
        assert state(table) == {n: n for n in range(30)} | {-1: 29}


class TestClose:
    def test_has_a_deadline(self, faults: FaultyStores, table: memwal.Table) -> None:
        store = faults.of(table.location)
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        pause = store.pause("create", "_mem_wal/*/manifest/*")
        with pytest.raises(BackPressureError):
            writer.close(timeout=0.1)
        with pytest.raises(WriterClosedError):
            writer.upsert(rows({1: 2}))
        pause.release()
        with table.writer() as reopened:
            reopened.claim()
            assert state(reopened) == {1: 1}

    def test_of_a_flush_has_one_too(self, faults: FaultyStores, table: memwal.Table) -> None:
        store = faults.of(table.location)
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
            pause = store.pause("create", "_mem_wal/*/manifest/*")
            with pytest.raises(BackPressureError):
                writer.flush(timeout=0.1)
            pause.release()
            writer.flush(timeout=60)
            assert state(table) == {1: 1}


def test_many_regions_wait_for_each_other_without_running_out_of_threads(
    make_table: MakeTable,
) -> None:
    """More regions than threads that append: those that wait must not keep those that write."""
    table = make_table(buckets=40)
    with table.writer() as writer, ThreadPoolExecutor(4) as pool:
        writer.claim()
        writing = [
            pool.submit(lambda n=n: writer.upsert(numbered(0, 200, n=n), wait=False).wait(120))
            for n in range(20)
        ]
        waiting = [pool.submit(writer.flush_wal) for _ in range(20)]
        for done in (*writing, *waiting):
            done.result(timeout=120)
        assert set(state(writer)) == set(range(200))
