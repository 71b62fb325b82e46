"""One region's writer: durable writes, group commit, flush in the background, fencing, replay."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from support.data.tables import (
    REGION,
    generations,
    keys,
    log,
    manifest,
    merged,
    region_folders,
    rows,
    state,
)
from support.faults.collecting import collect
from support.stores.faulty_store import REGION_MANIFEST, WAL, FaultyStore, FaultyStores, Killed

import memwal
from memwal.errors import (
    BackPressureError,
    MemWalError,
    OutcomeUnknownError,
    RegionFencedError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
    WriterClosedError,
)
from memwal.format.paths import wal_key
from memwal.lsm.flush import generation
from memwal.writer.region_writer.options import WriterOptions
from memwal.writer.region_writer.stats import RegionStats
from memwal.writer.table_writer import TableWriter

OFTEN = WriterOptions(max_memtable_rows=3)


@pytest.fixture
def store(faults: FaultyStores, table: memwal.Table) -> Iterator[FaultyStore]:
    """The store of ``table``, wrapped."""
    found = faults.of(table.location)
    yield found
    found.clear()


def reclaimed(table: memwal.Table) -> dict[int, int | None]:
    """What a new writer brings back and flushes: all that is durable."""
    with table.writer() as writer:
        writer.claim()
    return state(table)


def wait_until_queued(writer: TableWriter, writes: int) -> None:
    """Wait until so many threads wait for the log of the only region."""
    (region,) = writer._regions.all()
    while len(region._log_queue) < writes:
        time.sleep(0.001)


class TestDurability:
    def test_rows_that_the_caller_changes_afterwards_stay_as_they_were_acknowledged(
        self, table: memwal.Table
    ) -> None:
        """Producers use one buffer again and again, and the log has the old content."""
        ids, n = np.array([1, 2, 3]), np.array([10, 20, 30])
        text = pa.array(["1=10", "2=20", "3=30"])
        writer = table.writer()
        writer.upsert(pa.table({"id": pa.array(ids), "n": pa.array(n), "text": text}))

        ids[:], n[:] = [4, 5, 6], [40, 50, 60]

        assert state(writer) == {1: 10, 2: 20, 3: 30}
        writer.close()
        assert state(table) == {1: 10, 2: 20, 3: 30}


class TestGroupCommit:
    def test_writes_of_many_threads_share_entries_and_keep_their_order(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        writer = table.writer()
        writer.upsert(rows({-1: 0}))
        pause = store.pause("create", WAL)
        threads, writes = 8, 12

        def go(thread: int) -> None:
            for step in range(writes):
                # The key is written again and again: the last one must win.
                writer.upsert(rows({thread: step, 1000 * (thread + 1) + step: step}))

        with ThreadPoolExecutor(threads) as pool:
            running = [pool.submit(go, thread) for thread in range(threads)]
            pause.wait_until_reached()
            wait_until_queued(writer, threads - 1)
            pause.release()
            for one in running:
                one.result()

        entries = [entry for entry in log(table).values() if entry.batches]
        expected = {-1: 0, **dict.fromkeys(range(threads), writes - 1)}
        for thread in range(threads):
            expected |= {1000 * (thread + 1) + step: step for step in range(writes)}
        assert len(entries) < 1 + threads * writes
        assert max(sum(b.num_rows for b in entry.batches) for entry in entries) >= 2 * (threads - 1)
        assert state(writer) == expected
        writer.abort()
        assert reclaimed(table) == expected

    def test_a_group_is_bounded_by_its_bytes(self, store: FaultyStore, table: memwal.Table) -> None:
        writer = table.writer(options=WriterOptions(max_entry_bytes=1))
        writer.upsert(rows({0: 0}))
        pause = store.pause("create", WAL)
        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(writer.upsert, rows({n: n})) for n in range(4)]
            pause.wait_until_reached()
            pause.release()
            for one in running:
                one.result()

        assert [sum(b.num_rows for b in e.batches) for e in log(table).values()] == [1] * 5

    def test_a_group_that_is_refused_fails_as_a_whole_and_the_writer_goes_on(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        writer = table.writer()
        writer.upsert(rows({0: 0}))
        pause = store.pause("create", WAL)
        store.fail("create", WAL, StoreFullError("full"))
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(writer.upsert, rows({1: 1}))
            pause.wait_until_reached()
            others = [writer.upsert(rows({n: n}), wait=False) for n in (2, 3, 4)]
            pause.release()
            first.result()
            for one in others:
                with pytest.raises(StoreFullError):
                    one.wait()
            errors = [one.exception() for one in others]

        assert len({id(error) for error in errors}) == 3
        writer.upsert(rows({5: 5}))
        assert state(writer) == {0: 0, 1: 1, 5: 5}
        writer.abort()
        assert reclaimed(table) == {0: 0, 1: 1, 5: 5}

    def test_a_thread_that_is_interrupted_in_the_append_leaves_an_answer_to_the_others(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        """As by Ctrl-C in the thread that happens to write for all."""
        writer = table.writer()
        writer.upsert(rows({0: 0}))
        pause = store.pause("create", WAL)
        store.kill("create", WAL)
        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(writer.upsert, rows({1: 1}))
            pause.wait_until_reached()
            others = [pool.submit(writer.upsert, rows({n: n})) for n in (2, 3)]
            wait_until_queued(writer, 2)
            pause.release()
            first.result()
            errors = [one.exception() for one in others]

        assert sum(isinstance(error, Killed) for error in errors) == 1
        rest = [error for error in errors if not isinstance(error, Killed)]
        assert all(isinstance(error, MemWalError) for error in rest), rest
        writer.abort()
        assert {0: 0, 1: 1}.items() <= reclaimed(table).items()


class TestAmbiguousAppends:
    def test_an_epoch_that_cannot_be_read_does_not_lose_rows_of_others(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        """The entry holds rows that another writer was told are durable."""
        old = table.writer()
        old.upsert(rows({1: 1}))
        entry = table.location.store.get(wal_key(REGION, 1))
        writer = table.writer(options=WriterOptions(epoch_check_interval=0))
        writer.upsert(rows({2: 2}))
        position = max(log(table)) + 1
        # What a client without this project's care leaves: an older epoch's entry at the tip.
        store.inner.create(wal_key(REGION, position), entry)
        store.fail("head", REGION_MANIFEST, times=1000)

        with pytest.raises(OutcomeUnknownError):
            writer.upsert(rows({3: 3}))
        store.clear()
        with pytest.raises(OutcomeUnknownError):
            writer.upsert(rows({4: 4}))
        with pytest.raises(OutcomeUnknownError):
            writer.close()

        # {3: 3} was not acknowledged, and is in the log all the same.
        assert reclaimed(table) == {1: 1, 2: 2, 3: 3}


class TestForeignEntries:
    def test_are_taken_up_where_a_fenced_writer_left_them(self, table: memwal.Table) -> None:
        old = table.writer()
        old.upsert(rows({1: 1, 2: 2}))
        entry = table.location.store.get(wal_key(REGION, 1))
        writer = table.writer()
        writer.upsert(rows({1: 11}))
        writer.flush()
        table.location.store.create(wal_key(REGION, max(log(table)) + 1), entry)

        writer.upsert(rows({2: 22}))

        # In the order of the log: the older epoch's entry came after {1: 11}, before {2: 22}.
        assert state(writer) == {1: 1, 2: 22}
        writer.close()
        assert state(table) == {1: 1, 2: 22}
        assert reclaimed(table) == {1: 1, 2: 22}


class TestFencing:
    def test_pending_writes_of_a_fenced_writer_all_fail(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        first = table.writer()
        first.upsert(rows({1: 1}))
        pause = store.pause("create", WAL)
        with ThreadPoolExecutor(6) as pool:
            pending = [pool.submit(first.upsert, rows({n: n})) for n in range(10, 16)]
            pause.wait_until_reached()
            second = table.writer()
            second.upsert(rows({2: 2}))
            pause.release()
            errors = [one.exception() for one in pending]

        assert all(isinstance(error, RegionFencedError) for error in errors)
        second.close()
        assert state(table) == {1: 1, 2: 2}

    def test_a_flush_of_a_fenced_writer_commits_nothing(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        first = table.writer()
        first.upsert(rows({1: 1}))
        with store.pause("create", REGION_MANIFEST).holding(first.flush) as flushing:
            second = table.writer()
            second.upsert(rows({1: 11}))

        assert isinstance(flushing.exception(), RegionFencedError)
        assert generations(table) == []
        second.close()
        assert generations(table) == [1]
        assert state(table) == {1: 11}

    def test_stale_memtables_of_a_fenced_writer_do_not_hide_newer_flushed_rows(
        self, table: memwal.Table
    ) -> None:
        first = table.writer()
        first.upsert(rows({1: 1}))
        second = table.writer()
        second.upsert(rows({1: 11, 2: 2}))
        second.close()

        assert state(first) == {1: 11, 2: 2}

    def test_a_later_memtable_of_a_fenced_writer_does_not_hide_newer_flushed_rows(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        first = table.writer()
        first.upsert(rows({1: 1}))
        with store.pause("create", REGION_MANIFEST).holding(first.flush):
            first.upsert(rows({1: 2, 3: 3}))
            first.delete(keys(2))
            # All of it becomes its first generation.
            with table.writer() as second:
                second.upsert(rows({1: 11, 2: 2}))
            assert state(first) == {1: 11, 2: 2, 3: 3}
            with table.writer() as third:
                third.delete(keys(3))
                assert state(first) == {1: 11, 2: 2}
        first.abort()

    def test_a_new_region_is_claimed_after_its_manifest_failed_once(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        rule = store.fail("create", REGION_MANIFEST)
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
        assert rule.hits == 1
        assert state(table) == {1: 1}

    def test_a_claim_that_another_one_overtakes_is_refused(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        late = table.writer()
        table.upsert(rows({1: 1}))
        with store.pause("create", WAL).holding(late.upsert, rows({3: 3})) as claiming:
            table.upsert(rows({2: 2}))

        assert isinstance(claiming.exception(), RegionFencedError)
        late.abort()
        assert state(table) == {1: 1, 2: 2}

    def test_a_fenced_writer_sees_what_it_acknowledged(self, table: memwal.Table) -> None:
        first = table.writer()
        first.upsert(rows({1: 1, 2: 1}))
        second = table.writer()
        second.upsert(rows({2: 2}))
        assert state(first) == {1: 1, 2: 2}
        assert state(table) == {}
        second.abort()
        first.abort()


class TestReplay:
    def test_of_several_generations_keeps_them_apart(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        store.fail("create", REGION_MANIFEST, StoreAccessError("no"), skip=1, times=1000)
        writer = table.writer(
            options=WriterOptions(max_memtable_rows=2, max_sealed_memtables=9, flush_attempts=1)
        )
        for n in range(7):
            writer.upsert(rows({n: n, 50: n}))
        writer.abort()
        store.clear()
        assert [entry.generation for entry in log(table).values()] == [1, 2, 3, 4, 5, 6, 7]

        with table.writer() as again:
            again.claim()

        assert generations(table) == [1, 2, 3, 4, 5, 6, 7]
        assert state(table) == {**{n: n for n in range(7)}, 50: 6}
        table.merge()
        assert state(table) == {**{n: n for n in range(7)}, 50: 6}

    def test_of_rows_behind_a_flush_whose_answer_got_lost(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        writer = table.writer(options=WriterOptions(flush_attempts=1))
        writer.upsert(rows({1: 1}))
        store.kill("create", REGION_MANIFEST, after=True)

        with pytest.raises(MemWalError):
            writer.flush()
        writer.abort()

        assert generations(table) == [1]
        assert reclaimed(table) == {1: 1}
        assert generations(table) == [1]


class TestFlush:
    def test_runs_in_the_background_while_writes_go_on(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        writer = table.writer(options=OFTEN)
        pause = store.pause("sync", "*_gen_1")
        writer.upsert(rows({1: 1, 2: 2, 3: 3}))
        pause.wait_until_reached()

        writer.upsert(rows({4: 4}))
        writer.upsert(rows({3: 33}))

        assert state(writer) == {1: 1, 2: 2, 3: 33, 4: 4}
        assert state(table) == {}
        pause.release()
        writer.close()
        assert generations(table) == [1, 2]
        assert state(table) == {1: 1, 2: 2, 3: 33, 4: 4}

    @pytest.mark.parametrize("limit", ["rows", "batches", "bytes"])
    def test_a_memtable_is_sealed_by_the_write_that_reaches_a_limit(
        self, table: memwal.Table, limit: str
    ) -> None:
        def written(writer: TableWriter) -> RegionStats:
            for n in range(3):
                writer.upsert(rows({n: n}))
            return writer.stats().regions[0]

        with table.writer() as writer:
            taken = written(writer).to_dict()[f"memtable_{limit}"]
            writer.flush()
        for more, rows_left in ((0, 0), (1, 3)):
            options: dict[str, int] = {f"max_memtable_{limit}": taken + more}
            with table.writer(options=WriterOptions(**options)) as writer:
                assert written(writer).memtable_rows == rows_left

    def test_tells_the_manifest_how_much_it_flushed(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            writer.upsert(rows({2: 3}))

        (flushed,) = manifest(table).flushed
        assert flushed.rows == 2
        assert (flushed.memory_bytes or 0) > (flushed.key_bytes or 0) > 0
        assert manifest(table).replay_after == 2
        assert manifest(table).current_generation == 2

    def test_that_fails_is_tried_again_in_a_new_folder(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        store.fail("sync", "*_gen_1", StoreUnavailableError("500"), times=2)
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))

        assert len(region_folders(table)) == 3
        assert generations(table) == [1]
        assert state(table) == {1: 1}

    def test_whose_folder_is_collected_before_it_is_named_is_made_again(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        with store.pause("create", REGION_MANIFEST).holding(writer.flush) as flushing:
            collect(table, 2 * 86_400)

        flushing.result()
        writer.close()
        assert state(table) == {1: 1}

    def test_that_keeps_failing_is_reported_and_loses_nothing(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        store.fail("sync", "*_gen_1", StoreFullError("full"), times=1000)
        writer = table.writer(options=WriterOptions(flush_attempts=2))
        writer.upsert(rows({1: 1}))

        with pytest.raises(StoreFullError):
            writer.flush()
        writer.upsert(rows({2: 2}))
        assert state(writer) == {1: 1, 2: 2}
        with pytest.raises(StoreFullError):
            writer.flush()
        store.clear()
        writer.close()

        assert generations(table) == [1, 2]
        assert state(table) == {1: 1, 2: 2}

    def test_that_fails_in_lance_is_reported_as_one_of_our_errors(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*args: object, **kwargs: object) -> None:
            raise OSError("LanceError(IO): No space left on device (os error 28)")

        writer = table.writer(options=WriterOptions(flush_attempts=1))
        writer.upsert(rows({1: 1}))
        monkeypatch.setattr(generation, "LanceFileWriter", full)

        with pytest.raises(MemWalError):
            writer.flush()
        with pytest.raises(MemWalError):
            writer.close()

        monkeypatch.undo()
        assert reclaimed(table) == {1: 1}

    @pytest.mark.parametrize(
        "disturb",
        [
            pytest.param(lambda s: s.fail("create", REGION_MANIFEST), id="not-there"),
            pytest.param(lambda s: s.fail("create", REGION_MANIFEST, after=True), id="there"),
            pytest.param(lambda s: s.claim_exists("create", REGION_MANIFEST), id="our-own"),
            pytest.param(
                lambda s: (
                    s.fail("create", REGION_MANIFEST, after=True),
                    s.fail("create", REGION_MANIFEST, times=4),
                ),
                id="unknown-but-there",
            ),
            pytest.param(
                lambda s: s.fail("create", REGION_MANIFEST, times=5), id="unknown-not-there"
            ),
        ],
    )
    def test_whose_commit_is_ambiguous_is_settled(
        self, store: FaultyStore, table: memwal.Table, disturb: Callable[[FaultyStore], object]
    ) -> None:
        writer = table.writer()
        writer.upsert(rows({1: 1}))
        disturb(store)

        writer.flush()
        writer.upsert(rows({2: 2}))
        writer.close()

        assert generations(table) == [1, 2]
        assert state(table) == {1: 1, 2: 2}
        table.merge()
        assert state(table) == {1: 1, 2: 2}

    def test_waits_for_what_was_written_before_it_and_not_for_ever(
        self, table: memwal.Table
    ) -> None:
        """Others go on writing, so that some MemTable always waits for its flush."""
        writer = table.writer(options=WriterOptions(max_memtable_rows=1))
        writer.upsert(rows({0: 0}))
        stop = threading.Event()

        def go() -> None:
            key = 0
            while not stop.is_set():
                key += 1
                writer.upsert(rows({key: key}))

        with ThreadPoolExecutor(3) as pool:
            writing = [pool.submit(go) for _ in range(2)]
            flushing = pool.submit(writer.flush)
            try:
                flushing.result(timeout=240)
                assert 0 in state(table)
            finally:
                stop.set()
            for one in writing:
                one.result()
        writer.close()


class TestBackPressure:
    OPTIONS = WriterOptions(
        max_memtable_rows=1, max_sealed_memtables=2, backpressure_timeout=0.2, flush_attempts=1
    )

    def test_writes_wait_and_then_fail_and_then_go_on(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        pause = store.pause("sync", "*_gen_1")
        writer = table.writer(options=self.OPTIONS)
        writer.upsert(rows({1: 1}))
        writer.upsert(rows({2: 2}))

        with pytest.raises(BackPressureError):
            writer.upsert(rows({3: 3}))
        entries = log(table)
        assert len(entries) == 2, "a write that was not accepted is in the log"

        pause.release()
        writer.flush()
        writer.upsert(rows({4: 4}))
        writer.close()
        assert state(table) == {1: 1, 2: 2, 4: 4}

    def test_a_write_that_waits_goes_on_as_soon_as_there_is_room(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        pause = store.pause("sync", "*_gen_1")
        options = WriterOptions(
            max_memtable_rows=1, max_sealed_memtables=1, backpressure_timeout=60
        )
        writer = table.writer(options=options)
        writer.upsert(rows({1: 1}))
        pause.wait_until_reached()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(writer.upsert, rows({2: 2}))
            assert not waiting.done()
            pause.release()
            waiting.result(timeout=240)
        writer.close()
        assert state(table) == {1: 1, 2: 2}

    def test_a_failing_flush_is_named_as_the_cause_and_tried_again(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        store.fail("sync", "*_gen_*", StoreFullError("full"), times=1000)
        writer = table.writer(options=self.OPTIONS)
        writer.upsert(rows({1: 1}))
        writer.upsert(rows({2: 2}))

        def cause_of_refusal() -> BaseException | None:
            with pytest.raises(BackPressureError) as caught:
                writer.upsert(rows({3: 3}))
            return caught.value.__cause__

        # The flush may take longer to fail than the first write waits.
        causes = (cause_of_refusal() for _ in range(100))
        assert any(isinstance(cause, StoreFullError) for cause in causes)
        store.clear()
        # The flush may take longer than a write waits.
        for _ in range(1_000):
            with suppress(BackPressureError):
                writer.upsert(rows({4: 4}))
                break
        writer.close()
        assert state(table) == {1: 1, 2: 2, 4: 4}

    def test_a_writer_that_is_fenced_while_writes_wait_tells_them(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        pause = store.pause("sync", "*_gen_1")
        options = WriterOptions(max_memtable_rows=1, max_sealed_memtables=1)
        first = table.writer(options=options)
        first.upsert(rows({1: 1}))
        pause.wait_until_reached()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(first.upsert, rows({2: 2}))
            second = table.writer()
            second.claim()
            pause.release()
            assert isinstance(waiting.exception(timeout=30), RegionFencedError)
        second.close()
        assert state(table) == {1: 1}


class TestClosing:
    def test_an_exception_in_the_block_aborts(self, table: memwal.Table) -> None:
        with pytest.raises(ZeroDivisionError), table.writer() as writer:
            writer.upsert(rows({1: 1}))
            raise ZeroDivisionError

        assert generations(table) == []
        assert reclaimed(table) == {1: 1}

    def test_close_that_cannot_flush_says_so_and_keeps_the_log(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        store.fail("sync", "*_gen_*", StoreFullError("full"), times=1000)
        writer = table.writer(options=WriterOptions(flush_attempts=1))
        writer.upsert(rows({1: 1}))

        with pytest.raises(StoreFullError):
            writer.close()

        with pytest.raises(WriterClosedError):
            writer.upsert(rows({2: 2}))
        store.clear()
        assert reclaimed(table) == {1: 1}

    def test_close_while_others_write_loses_nothing_that_was_acknowledged(
        self, table: memwal.Table
    ) -> None:
        writer = table.writer(options=WriterOptions(max_memtable_rows=5))
        writer.upsert(rows({0: 0}))
        acknowledged: dict[int, int | None] = {0: 0}
        started = threading.Event()
        unexpected: list[BaseException] = []

        def go(thread: int) -> None:
            try:
                for step in range(300):
                    key = thread * 10_000 + step + 1
                    writer.upsert(rows({key: step}))
                    acknowledged[key] = step
                    if step == 5:
                        started.set()
            except WriterClosedError:
                pass
            except BaseException as error:
                unexpected.append(error)

        threads = [threading.Thread(target=go, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        started.wait(240)
        writer.close()
        for thread in threads:
            thread.join()

        assert not unexpected
        assert reclaimed(table) == acknowledged


def test_positions_and_generations_only_grow(table: memwal.Table) -> None:
    """Over claims, flushes, merges and collections."""
    seen_positions, seen_generations = [0], [0]
    expected = {}
    for turn in range(4):
        with table.writer() as writer:
            for step in range(3):
                writer.upsert(rows({turn * 10 + step: turn}))
                expected[turn * 10 + step] = turn
            assert max(log(table)) > seen_positions[-1]
            seen_positions.append(max(log(table)))
        assert generations(table)[-1] > seen_generations[-1]
        seen_generations.append(generations(table)[-1])
        table.merge()
        for _ in range(2):
            collect(table, 86_400)
        assert len(log(table)) == 1
        assert merged(table) == seen_generations[-1]
    assert state(table) == expected
