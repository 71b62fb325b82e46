"""The writer for asyncio: nothing blocks the loop, tasks share entries, cancelling is harmless."""

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from support.data.tables import REGION, generations, keys, log, rows, state
from support.stores.faulty_store import GENERATION, REGION_MANIFEST, WAL, FaultyStores, Pause

import memwal
from memwal.aio import AsyncHandle, AsyncQueries, open_writer
from memwal.errors import (
    ArgumentTypeError,
    BackPressureError,
    InvalidInputError,
    StoreFullError,
    WriterClosedError,
)
from memwal.lsm.wal.position import WritePosition
from memwal.queries import Queries
from memwal.writer.region_writer.handle import PendingWrite, WriteHandle

BUFFERED = memwal.WriterOptions(durable=False, buffer_interval=3600.0)
"""Nothing becomes durable before it is asked for."""


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine; one that hangs fails."""

    async def limited() -> None:
        await asyncio.wait_for(main(), 120)

    asyncio.run(limited())


async def reached(pause: Pause) -> None:
    """Wait until some thread stands at the pause."""
    await asyncio.to_thread(pause.wait_until_reached)


class TestWrites:
    def test_are_seen_by_the_writers_own_reads(self, table: memwal.Table) -> None:
        async def main() -> None:
            async with open_writer(table) as writer:
                await writer.upsert(rows({1: 1, 2: 2, 3: 3}))
                await writer.delete(keys(2))
                await writer.upsert(pa.table({"id": [3], "text": ["3=None"]}), partial=True)
                handle = await writer.upsert(rows({1: 7, 3: 7}), only_if_unchanged=rows({3: 7}))
                assert (await handle.changed()).to_pydict() == {"id": [1, 3]}
                found = await writer.lookup(keys(1, 2), columns=["n"])
                assert found.column("n").to_pylist() == [1]
                assert (await writer.scan(filter="id = 1", columns=["id"])).to_pydict() == {
                    "id": [1]
                }
                assert (await writer.scan(limit=1)).num_rows == 1
                assert len(log(table)) == 3
                newest = WritePosition(((REGION, max(log(table))),))
                for position in (newest, str(newest)):
                    assert (await writer.fresh(at_least=position).lookup(keys(1))).num_rows == 1
                    assert (await writer.fresh(at_least=position).scan()).num_rows == 2

        run(main)
        assert generations(table) == [1]
        found = table.scan().to_table().sort_by("id")
        assert found.column("n").to_pylist() == [1, 3]
        assert found.column("text").to_pylist() == ["1=1", "3=None"]

    def test_take_rows_keys_and_conditions_in_every_form(self, table: memwal.Table) -> None:
        async def main() -> None:
            async with open_writer(table) as writer:
                await writer.upsert([{"id": n, "n": n, "text": f"{n}={n}"} for n in range(6)])
                await writer.upsert({"id": 9, "n": 9, "text": "9=9"})
                await writer.delete(0)
                await writer.delete(where="n > 1 and n < 4")
                await writer.apply(source="s", version=1, deletes=[4])
                assert (await writer.lookup([1, 2])).num_rows == 1
                with pytest.raises(InvalidInputError):
                    await writer.delete()
                await writer.flush(timeout=timedelta(minutes=1))

        run(main)
        assert state(table) == {1: 1, 5: 5, 9: 9}

    def test_of_many_tasks_share_entries(self, table: memwal.Table) -> None:
        async def main() -> None:
            async with open_writer(table) as writer:
                await writer.upsert(rows({0: 0}))
                await asyncio.gather(*(writer.upsert(rows({n: n})) for n in range(1, 1001)))
                totals = writer.stats().totals
                assert totals.writes == 1001
                assert totals.entries == len(log(table))
                # One entry for each would be a thousand; a group is whatever came meanwhile.
                assert totals.entries < 500

        run(main)
        assert state(table) == {n: n for n in range(1001)}

    def test_that_failed_say_so_to_everybody_who_asks(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        async def main() -> None:
            async with open_writer(table, options=BUFFERED) as writer:
                await writer.upsert(rows({1: 1}), wait=False)
                await writer.flush_wal()
                faults.of(table.location).fail("create", WAL, StoreFullError("full"))
                handle = await writer.upsert(rows({2: 2}), wait=False)
                with pytest.raises(StoreFullError):
                    await writer.flush_wal()
                assert handle.done()
                assert isinstance(handle.exception(), StoreFullError)
                for _ in range(2):
                    with pytest.raises(StoreFullError):
                        await handle
                await writer.upsert(rows({3: 3}))

        run(main)
        assert state(table) == {1: 1, 3: 3}


class TestQueries:
    def test_are_all_there(self) -> None:
        public = {name for name in vars(Queries) if not name.startswith("_")}
        assert public == {name for name in vars(AsyncQueries) if not name.startswith("_")}
        assert all(inspect.iscoroutinefunction(getattr(AsyncQueries, name)) for name in public)

    def test_of_a_writer_and_of_its_view(self, table: memwal.Table) -> None:
        async def main() -> None:
            with table.writer() as other:
                other.upsert(rows({1: 1, 2: 2}))
                other.abort()
            async with open_writer(table) as writer:
                assert await writer.count_rows() == 0
                fresh = writer.fresh()
                assert await fresh.count_rows(filter="n > 1") == 1
                assert (await fresh.head(1)).num_rows == 1
                found = await fresh.scan(columns=["id"], offset=1, with_generation=True)
                assert (found.num_rows, found.column_names) == (1, ["id", "_gen"])
                assert sorted((await fresh.to_pandas())["id"]) == [1, 2]
                assert (await fresh.to_polars()).height == 2
                assert (await fresh.explain()).consistency == "fresh"
                assert await fresh.to_dataset() is None
                with pytest.raises(InvalidInputError):
                    await fresh.search([1.0, 2.0])
                with pytest.raises(ArgumentTypeError):
                    await fresh.scan(offset="1")  # type: ignore[arg-type]

        run(main)


class TestHandle:
    def test_tells_when_a_buffered_write_is_durable(self, table: memwal.Table) -> None:
        async def main() -> None:
            async with open_writer(table, options=BUFFERED) as writer:
                handle = await writer.upsert(rows({1: 1}))
                assert not handle.done()
                assert handle.exception() is None
                assert state(await writer.scan()) == {1: 1}
                waiting = asyncio.ensure_future(_wait(handle))
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(handle, 0.01)
                assert log(table) == {}

                await writer.flush_wal()

                await waiting
                await handle
                assert handle.done()
                assert len(log(table)) == 1

        run(main)

    def test_may_become_done_when_the_loop_is_gone(self, caplog: pytest.LogCaptureFixture) -> None:
        write = PendingWrite([])

        async def main() -> None:
            waiting = asyncio.ensure_future(_wait(AsyncHandle(WriteHandle([], settle))))
            await waiting
            waiting = asyncio.ensure_future(_wait(AsyncHandle(WriteHandle([part], settle))))
            await asyncio.sleep(0)
            waiting.cancel()

        def settle(parts: Any) -> None:
            """Nothing went wrong."""

        part = (REGION, write)
        run(main)
        with caplog.at_level(logging.DEBUG):
            write.finish()
        assert write.done
        assert caplog.text == ""


async def _wait(handle: AsyncHandle) -> None:
    await handle


class TestLoop:
    def test_goes_on_while_a_write_waits_for_the_store(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        async def main() -> None:
            async with open_writer(table) as writer:
                await writer.upsert(rows({1: 1}))
                pause = faults.of(table.location).pause("create", WAL)
                writing = asyncio.ensure_future(writer.upsert(rows({2: 2})))
                await reached(pause)
                found = await writer.lookup(keys(1))
                assert found.num_rows == 1
                assert not writing.done()
                pause.release()
                await writing

        run(main)
        assert state(table) == {1: 1, 2: 2}

    def test_goes_on_while_writes_wait_for_a_flush(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        """All threads that hand writes over stand still, and reads must not queue behind them."""
        options = memwal.WriterOptions(max_memtable_rows=1, max_sealed_memtables=1)

        async def main() -> None:
            pause = faults.of(table.location).pause("sync", GENERATION)
            async with open_writer(table, options=options, threads=2) as writer:
                await writer.upsert(rows({0: 0}))
                await reached(pause)
                writing = [asyncio.ensure_future(writer.upsert(rows({n: n}))) for n in range(1, 6)]
                assert (await writer.scan()).num_rows >= 1
                assert not all(write.done() for write in writing)
                pause.release()
                await asyncio.gather(*writing)

        run(main)
        assert state(table) == {n: n for n in range(6)}


class TestCancelled:
    def test_tasks_do_not_take_back_what_was_handed_over(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        async def main() -> None:
            async with open_writer(table) as writer:
                await writer.upsert(rows({1: 1}))
                pause = faults.of(table.location).pause("create", WAL)
                writing = asyncio.ensure_future(writer.upsert(rows({2: 2})))
                await reached(pause)
                writing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await writing
                pause.release()
                await writer.upsert(rows({3: 3}))

        run(main)
        assert state(table) == {1: 1, 2: 2, 3: 3}

    def test_tasks_that_still_wait_for_a_thread_write_nothing(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        async def main() -> None:
            pause = faults.of(table.location).pause("create", REGION_MANIFEST)
            async with open_writer(table, threads=1) as writer:
                claiming = asyncio.ensure_future(writer.upsert(rows({1: 1})))
                await reached(pause)
                waiting = asyncio.ensure_future(writer.upsert(rows({2: 2})))
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                pause.release()
                await claiming

        run(main)
        assert state(table) == {1: 1}

    def test_close_goes_on_to_its_end(self, faults: FaultyStores, table: memwal.Table) -> None:
        async def main() -> None:
            pause = faults.of(table.location).pause("sync", GENERATION)
            async with open_writer(table) as writer:
                await writer.upsert(rows({1: 1}))
                closing = asyncio.ensure_future(writer.close())
                await reached(pause)
                closing.cancel()
                await asyncio.sleep(0)
                assert not closing.done()
                pause.release()
                with pytest.raises(asyncio.CancelledError):
                    await closing
                assert generations(table) == [1]
                with pytest.raises(WriterClosedError):
                    await writer.upsert(rows({2: 2}))

        run(main)
        assert state(table) == {1: 1}

    def test_block_leaves_its_rows_to_the_next_claim(self, table: memwal.Table) -> None:
        async def main() -> None:
            written = asyncio.Event()

            async def produce() -> None:
                async with open_writer(table) as writer:
                    await writer.upsert(rows({1: 1}))
                    written.set()
                    await asyncio.Event().wait()

            producer = asyncio.ensure_future(produce())
            await written.wait()
            producer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await producer

        run(main)
        assert generations(table) == []
        with table.writer() as writer:
            writer.claim()
            assert state(writer) == {1: 1}


class TestEnd:
    def test_with_an_error_does_not_flush_and_loses_nothing(self, table: memwal.Table) -> None:
        async def main() -> None:
            async with open_writer(table) as writer:
                await writer.upsert(rows({1: 1}))
                raise KeyError("the producer's own")

        with pytest.raises(KeyError, match="own"):
            run(main)
        assert generations(table) == []
        with table.writer() as writer:
            writer.claim()
        assert state(table) == {1: 1}

    def test_takes_no_more_rows(self, table: memwal.Table) -> None:
        async def main() -> None:
            async with open_writer(table) as writer:
                await writer.upsert(rows({1: 1}))
                await writer.close()
                await writer.close()
                with pytest.raises(WriterClosedError):
                    await writer.upsert(rows({2: 2}))
            for call in (
                writer.upsert(rows({2: 2})),
                writer.delete(keys(1)),
                writer.flush(),
                writer.scan(),
            ):
                with pytest.raises(WriterClosedError):
                    await call
            assert writer.stats().closed

        run(main)
        assert state(table) == {1: 1}

    def test_of_a_close_comes_at_its_deadline(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        async def main() -> None:
            pause = faults.of(table.location).pause("sync", GENERATION)
            async with open_writer(table) as writer:
                await writer.upsert(rows({1: 1}))
                with pytest.raises(BackPressureError):
                    await writer.close(timeout=0.05)
                with pytest.raises(WriterClosedError):
                    await writer.upsert(rows({2: 2}))
                pause.release()

        run(main)
        with table.writer() as writer:
            writer.claim()
            assert state(writer) == {1: 1}

    def test_leaves_no_thread(self, table: memwal.Table) -> None:
        before = set(threading.enumerate())

        async def main() -> None:
            async with open_writer(table) as writer:
                await asyncio.gather(*(writer.upsert(rows({n: n})) for n in range(20)))
                await writer.scan()

        run(main)
        for thread in set(threading.enumerate()) - before:
            thread.join(240)
            assert not thread.is_alive()


@pytest.mark.parametrize("threads", [0, -1])
def test_needs_a_thread(table: memwal.Table, threads: int) -> None:
    async def main() -> None:
        async with open_writer(table, threads=threads):
            raise AssertionError("it opened")

    with pytest.raises(InvalidInputError, match="threads"):
        run(main)


def test_a_step_is_written_once(table: memwal.Table) -> None:
    async def main() -> None:
        async with open_writer(table) as writer:
            step = {"upserts": rows({1: 1}), "deletes": keys(2), "source": "s", "version": 1}
            both = await asyncio.gather(writer.apply(**step), writer.apply(**step))
            assert sorted((len(one.written), len(one.skipped)) for one in both) == [(0, 1), (1, 0)]

    run(main)
    assert state(table) == {1: 1}
    assert table.applied("s") == {REGION: 1}
