"""Writer of a table for asyncio.

Blocking calls run on the writer's own threads, never on the event loop. A write holds a thread only
while it is queued, not until it is durable: a thousand tasks that write at the same time share log
entries just as a thousand threads would.

Cancelling a task does not undo its write. If a thread had started to queue it, the rows are written
without a result; if the write still waited for a thread, they are not. A task that needs certainty
writes the rows again, which is always right.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

import pyarrow as pa

from memwal.boundary.public import public, public_methods
from memwal.errors import InvalidInputError, WriterClosedError
from memwal.lsm.wal.position import WritePosition
from memwal.queries import Queries
from memwal.reader.result import Result
from memwal.reading_writer import Writer
from memwal.table import Table
from memwal.util.clock import Duration
from memwal.util.concurrency import ThreadPool
from memwal.writer.region_writer.handle import WriteHandle
from memwal.writer.region_writer.options import WriterOptions
from memwal.writer.region_writer.stats import WriterStats

Params = ParamSpec("Params")
Answer = TypeVar("Answer")

# Threads for reads, flushes and the close, which must not queue behind writes that wait for a
# flush.
_READ_THREADS = 4


@public
@asynccontextmanager
async def open_writer(
    table: Table,
    *,
    options: WriterOptions | None = None,
    region_ids: Collection[UUID] | None = None,
    threads: int = 8,
) -> AsyncIterator[AsyncWriter]:
    """Open a writer for the duration of an ``async with`` block: :meth:`memwal.Table.writer`.

    At the end of the block the writer flushes and closes. If the block raises or is cancelled, it
    closes without a flush: the log keeps the rows for the next claim.

    Parameters
    ----------
    table : memwal.Table
    threads : int, default 8
        Writes that can be queued at the same time. Further writes wait without a thread. A write
        that waits for a flush (back-pressure) or for a claim keeps its thread.

    Raises
    ------
    InvalidInputError, TableSetupError
        As :meth:`memwal.Table.writer`.
    """
    if threads < 1:
        raise InvalidInputError(f"threads must be at least 1, not {threads}")
    writes = ThreadPool(threads, thread_name_prefix="memwal-aio-write")
    others = ThreadPool(_READ_THREADS, thread_name_prefix="memwal-aio")
    try:
        inner = await _run_to_end(others, table.writer, options=options, region_ids=region_ids)
        writer = AsyncWriter(inner, durable=inner.settings.durable, writes=writes, others=others)
        try:
            yield writer
        except BaseException:
            await _run_to_end(others, inner.abort)
            raise
        await writer.close()
    finally:
        # The writer is closed, so the threads end soon; the event loop must not wait for them.
        writes.shutdown(wait=False)
        others.shutdown(wait=False)


def _awaited(
    method: Callable[Concatenate[Any, Params], Answer], threads: str = "_others"
) -> Callable[Concatenate[AsyncQueries, Params], Coroutine[Any, Any, Answer]]:
    """Make a method of queries, or of a writer, run on one of the object's ``threads``."""

    @functools.wraps(method)
    async def call(self: AsyncQueries, /, *args: Params.args, **kwargs: Params.kwargs) -> Answer:
        pool: ThreadPoolExecutor = getattr(self, threads)
        return await _run_on_thread(pool, method, self._queries, *args, **kwargs)

    return call


def _into_memory(query: Callable[Params, Result]) -> Callable[Params, pa.Table]:
    """Make a lazy query read its rows into memory."""

    @functools.wraps(query)
    def call(*args: Params.args, **kwargs: Params.kwargs) -> pa.Table:
        return query(*args, **kwargs).to_table()

    return call


@public_methods
class AsyncQueries:
    """Queries of a writer, or of its view, for asyncio.

    Each method takes the arguments, and raises the errors, of the method of
    :class:`memwal.queries.Queries` that has its name: ``scan``, ``count_rows``, ``head``,
    ``to_arrow``, ``to_pandas``, ``to_polars``, ``to_dataset``, ``explain``, ``lookup``,
    ``take_blobs``, ``search``, ``search_text``, ``search_hybrid``. A query that is lazy there reads
    its rows into memory here, and returns a :class:`pyarrow.Table`. ``others`` are the threads that
    run the ``queries``.
    """

    def __init__(self, queries: Queries, others: ThreadPoolExecutor) -> None:
        self._queries = queries
        self._others = others

    scan = _awaited(_into_memory(Queries.scan))
    lookup = _awaited(_into_memory(Queries.lookup))
    search = _awaited(_into_memory(Queries.search))
    search_text = _awaited(_into_memory(Queries.search_text))
    search_hybrid = _awaited(_into_memory(Queries.search_hybrid))
    count_rows = _awaited(Queries.count_rows)
    head = _awaited(Queries.head)
    to_pandas = _awaited(Queries.to_pandas)
    to_arrow = _awaited(Queries.to_arrow)
    to_polars = _awaited(Queries.to_polars)
    to_dataset = _awaited(Queries.to_dataset)
    explain = _awaited(Queries.explain)
    take_blobs = _awaited(Queries.take_blobs)


def _queued(
    method: Callable[Concatenate[Writer, Params], WriteHandle],
) -> Callable[Concatenate[AsyncWriter, Params], Coroutine[Any, Any, AsyncHandle]]:
    """Make a write queue its rows on a thread, and wait for them without one."""

    @functools.wraps(method)
    async def call(
        self: AsyncWriter, /, *args: Params.args, **kwargs: Params.kwargs
    ) -> AsyncHandle:
        wait = kwargs.get("wait")
        wait = self._durable if wait is None else wait
        # A write that may have to be repeated holds a thread; any other is only queued by it.
        kwargs["wait"] = wait and self._writer.settings.reopen
        handle = AsyncHandle(
            await _run_on_thread(self._writes, method, self._writer, *args, **kwargs)
        )
        if wait:
            await handle
        return handle

    return call


@public_methods
class AsyncWriter(AsyncQueries):
    """Asynchronous writer of one table, made by :func:`open_writer`. Safe to use from many tasks.

    ``upsert``, ``append``, ``delete``, ``apply``, ``flush_wal``, ``flush`` and the queries take the
    arguments, and raise the errors, of the methods of :class:`memwal.Writer` that have their names.
    The data of a write must not be changed before its rows are durable. ``upsert``, ``append`` and
    ``delete`` return an :class:`AsyncHandle`. Without ``wait``, the write is queued when they
    return: consecutive writes of a task keep their order. ``apply`` holds a thread until its step
    is durable. The calls of ``writer`` run on the threads ``writes`` and ``others``; ``durable`` is
    the default of ``wait``.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        durable: bool,
        writes: ThreadPoolExecutor,
        others: ThreadPoolExecutor,
    ) -> None:
        super().__init__(writer, others)
        self._writer = writer
        self._durable = durable
        self._writes = writes

    upsert = _queued(Writer.upsert)
    append = _queued(Writer.append)
    delete = _queued(Writer.delete)
    apply = _awaited(Writer.apply, "_writes")
    flush_wal = _awaited(Writer.flush_wal)
    flush = _awaited(Writer.flush)

    async def close(self, *, timeout: Duration | None = None) -> None:
        """Flush all regions and refuse further writes, even if the task is cancelled.

        ``timeout`` and errors are those of :meth:`memwal.writer.table_writer.TableWriter.close`.
        """
        await _run_to_end(self._others, self._writer.close, timeout=timeout)

    def stats(self) -> WriterStats:
        """Return a snapshot of the writer's counters and MemTables."""
        return self._writer.stats()

    def fresh(
        self, *, at_least: WritePosition | str | None = None, timeout: Duration = 10.0
    ) -> AsyncQueries:
        """Return queries that see the rows of all writers, as of :meth:`memwal.Table.fresh`."""
        return AsyncQueries(self._writer.fresh(at_least=at_least, timeout=timeout), self._others)


@public_methods
class AsyncHandle:
    """Awaitable of a queued write, which returns when the write is durable, or raises its error.

    Many tasks may await it, more than once, or never. Cancelling a task that awaits it does not
    change the write, whose synchronous handle is ``handle``.
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: WriteHandle) -> None:
        self._handle = handle

    def done(self) -> bool:
        """Return whether the write is durable or has failed."""
        return self._handle.done()

    def exception(self) -> BaseException | None:
        """Return why the write failed; None if it succeeded or is not done yet."""
        return self._handle.exception()

    async def position(self) -> WritePosition:
        """Wait until the write is durable, and return its position in the logs.

        See :attr:`memwal.writer.region_writer.handle.WriteHandle.position`.
        """
        await self
        return self._handle.position

    async def changed(self) -> pa.Table:
        """Wait until the write is durable, and return the keys that ``only_if_unchanged`` left out.

        See :attr:`memwal.writer.region_writer.handle.WriteHandle.changed`.
        """
        await self
        return self._handle.changed

    def __await__(self) -> Generator[object, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        if not self._handle.done():
            loop = asyncio.get_running_loop()
            settled = loop.create_future()
            self._handle.add_done_callback(lambda _: _wake_waiter(loop, settled))
            await settled
        error = self._handle.exception()
        if error is not None:
            raise error


async def _run_on_thread(
    pool: ThreadPoolExecutor,
    call: Callable[Params, Answer],
    *args: Params.args,
    **kwargs: Params.kwargs,
) -> Answer:
    """Run a call on a thread. If the task is cancelled before the call starts, it is dropped."""
    loop = asyncio.get_running_loop()
    try:
        running = loop.run_in_executor(pool, functools.partial(call, *args, **kwargs))
    except RuntimeError as error:
        raise WriterClosedError(
            "the async with block of this writer is over; open a new one"
        ) from error
    return await running


async def _run_to_end(
    pool: ThreadPoolExecutor,
    call: Callable[Params, Answer],
    *args: Params.args,
    **kwargs: Params.kwargs,
) -> Answer:
    """Run a call on a thread to its end, even if the task is cancelled."""
    running = asyncio.ensure_future(_run_on_thread(pool, call, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError as cancelled:
        await asyncio.wait([running])
        raise cancelled from running.exception()


def _wake_waiter(loop: asyncio.AbstractEventLoop, settled: asyncio.Future[None]) -> None:
    """Wake a waiting task, from any thread."""
    try:
        loop.call_soon_threadsafe(_settle, settled)
    except RuntimeError:
        # The event loop is closed, and no task waits any more. The write itself is not affected.
        if not loop.is_closed():
            raise


def _settle(settled: asyncio.Future[None]) -> None:
    if not settled.done():
        settled.set_result(None)
