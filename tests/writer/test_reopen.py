"""Producers that share a region and claim it back from each other."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.data.tables import REGION, MakeTable, keys, log, rows, state
from support.processes import running_python

import memwal
from memwal.aio import open_writer
from memwal.errors import OutcomeUnknownError, RegionFencedError, TableReplacedError
from memwal.lsm.wal import appender
from memwal.lsm.wal.appender import LogAppender, PreparedEntry
from memwal.writer import takeovers

OPTIONS = memwal.WriterOptions(reopen=True, epoch_check_interval=0)

PRODUCER = """
import sys
import memwal
uri, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
table = memwal.open(uri)
writer = table.writer(options=memwal.WriterOptions(reopen=True))
with writer:
    for key in range(first, first + count):
        writer.upsert({"id": [key, -1], "n": [key, key], "text": [f"{key}={key}", f"-1={key}"]})
        print(key, flush=True)
"""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeovers, "_MAX_SECONDS", 0.01)


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that has a call happen once, around a method of the log's appender."""

    def set_up(method: str, call: Callable[[Callable[[], object]], object]) -> None:
        real = getattr(LogAppender, method)
        calls = [call]

        def around(self: LogAppender, entry: PreparedEntry) -> object:
            go_on = lambda: real(self, entry)  # noqa: E731
            return calls.pop()(go_on) if calls else go_on()

        monkeypatch.setattr(LogAppender, method, around)

    return set_up


def entries_of(table: memwal.Table, number: int) -> int:
    """Return how many entries of the log have a row with a number."""
    return sum(
        number in batch.column("n").to_pylist()
        for entry in log(table).values()
        for batch in entry.batches
    )


def test_writers_take_turns(table: memwal.Table) -> None:
    with table.writer(options=OPTIONS) as one, table.writer(options=OPTIONS) as other:
        for n in range(3):
            one.upsert(rows({1: n, 10 + n: n}))
            other.upsert(rows({2: n, 20 + n: n}))
        one.delete(keys(2))
        other.upsert({"id": [1], "n": [7], "text": ["1=7"]}, partial=True)
        one.flush()
        assert state(table) == state(one)
    expected = {1: 7} | {10 + n: n for n in range(3)} | {20 + n: n for n in range(3)}
    assert state(table) == expected


def test_without_the_option_a_fence_is_an_error_of_a_public_type(table: memwal.Table) -> None:
    with table.writer() as other:
        one = table.writer()
        one.upsert(rows({1: 1}))
        other.upsert(rows({2: 2}))
        for write in (lambda: one.upsert(rows({1: 3})), one.flush):
            with pytest.raises(RegionFencedError) as raised:
                write()
            assert type(raised.value) is RegionFencedError
            assert raised.value.not_logged
        one.abort()


@pytest.mark.parametrize("flushes", [False, True])
def test_a_write_that_was_stored_before_the_fence_is_not_written_again(
    table: memwal.Table, once: Callable[..., None], flushes: bool
) -> None:
    """Another producer claims between the entry and the check behind it, and overwrites the row."""
    with table.writer(options=OPTIONS) as one, table.writer(options=OPTIONS) as other:

        def claim_first(acknowledge: Callable[[], None]) -> None:
            other.upsert(rows({1: 2}))
            if flushes:
                other.flush()
            return acknowledge()

        one.upsert(rows({5: 5}))
        once("acknowledge", claim_first)
        if flushes:
            # Whether the other one had replayed the entry, or it came behind a collected fence, is
            # not known any more.
            with pytest.raises(RegionFencedError) as raised:
                one.upsert(rows({1: 1}))
            assert not raised.value.not_logged
        else:
            handle = one.upsert(rows({1: 1}))
            assert handle.position.entries == ((REGION, 2),)
        assert entries_of(table, 1) == 1
        one.upsert(rows({3: 3}))
        assert state(one) == {5: 5, 1: 2, 3: 3}


@pytest.mark.parametrize("stored", [False, True])
def test_a_write_with_an_unknown_outcome_is_settled_by_the_log(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    def lose_the_answer(*entry: Any) -> None:
        monkeypatch.undo()
        if stored:
            appender.put_entry(*entry)
        raise OutcomeUnknownError("no answer")

    with table.writer(options=OPTIONS) as writer:
        writer.upsert(rows({5: 5}))
        monkeypatch.setattr(appender, "put_entry", lose_the_answer)
        writer.upsert(rows({1: 1}))
        assert entries_of(table, 1) == 1
        assert state(writer) == {5: 5, 1: 1}


def test_parts_of_a_write_are_repeated_where_they_failed(make_table: MakeTable) -> None:
    table = make_table(buckets=4)
    everything = dict.fromkeys(range(40), 1)
    with table.writer(options=OPTIONS) as one, table.writer(options=OPTIONS) as other:
        one.upsert(rows(everything))
        other.upsert(rows({1: 2}))
        one.upsert(rows(dict.fromkeys(range(40), 3)))
        assert state(one) == dict.fromkeys(range(40), 3)


def test_a_step_is_written_once(table: memwal.Table, once: Callable[..., None]) -> None:
    with table.writer(options=OPTIONS) as one, table.writer(options=OPTIONS) as other:

        def claim_first(acknowledge: Callable[[], None]) -> None:
            other.upsert(rows({1: 2}))
            return acknowledge()

        one.upsert(rows({5: 5}))
        once("acknowledge", claim_first)
        one.apply(upserts=rows({1: 1}), source="s", version=1)
        assert entries_of(table, 1) == 1
        assert state(one) == {5: 5, 1: 2}
        assert table.applied("s") == {REGION: 1}


def test_writes_that_do_not_wait_report_the_fence_and_later_ones_work(table: memwal.Table) -> None:
    options = memwal.WriterOptions(reopen=True, durable=False, buffer_interval=1000)
    with table.writer(options=OPTIONS) as other, table.writer(options=options) as one:
        one.upsert(rows({5: 5}), wait=True)
        handle = one.upsert(rows({1: 1}))
        other.upsert(rows({2: 2}))
        with pytest.raises(RegionFencedError):
            one.flush_wal()
        assert isinstance(handle.exception(), RegionFencedError)
        one.upsert(rows({3: 3}), wait=True)
        one.flush()
    assert state(table) == {5: 5, 2: 2, 3: 3}


def test_rows_that_are_taken_over_again_and_again_are_flushed(table: memwal.Table) -> None:
    options = memwal.WriterOptions(reopen=True, max_memtable_age=0.2)
    with table.writer(options=options) as one, table.writer(options=options) as other:
        n = 0
        while not state(table):
            n += 1
            one.upsert(rows({n: 1}))
            other.upsert(rows({n: 2}))
            assert n < 10_000


def test_another_table_in_its_place_is_not_claimed(table: memwal.Table) -> None:
    with table.writer(options=OPTIONS) as writer:
        writer.upsert(rows({1: 1}))
        folder = Path(table.uri)
        folder.rename(folder.with_name("moved"))
        with pytest.raises(TableReplacedError):
            writer.upsert(rows({1: 2}))
        folder.with_name("moved").rename(folder)
        writer.abort()


def test_asynchronous_writers_take_turns(table: memwal.Table) -> None:
    async def write() -> None:
        async with (
            open_writer(table, options=OPTIONS) as one,
            open_writer(table, options=OPTIONS) as other,
        ):
            for n in range(3):
                await asyncio.gather(
                    one.upsert(rows({1: n, 10 + n: n})), other.upsert(rows({2: n, 20 + n: n}))
                )

    asyncio.run(write())
    assert set(state(table)) == {1, 2, 10, 11, 12, 20, 21, 22}


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_two_processes_write_to_one_region(table: memwal.Table, kill: bool) -> None:
    """Each row of both is there, also if one is killed in the middle."""
    count = 20
    written: list[int] = []
    with ExitStack() as stack:
        producers = [
            stack.enter_context(running_python(PRODUCER, table.uri, first, count))
            for first in (0, 1000)
        ]
        for producer in producers:
            assert producer.stdout is not None
            killed = kill and producer is producers[0]
            if killed:
                written += [int(producer.stdout.readline()) for _ in range(count // 2)]
                producer.kill()
            written += map(int, producer.stdout)
            assert (producer.wait(120) == 0) is not killed
    table.recover(min_age_seconds=0)
    found = state(table)
    assert {key: found.get(key) for key in written} == {key: key for key in written}
    assert found[-1] in {key for key in found if key >= 0}
