"""A process without free descriptors, threads or memory gets an error, and then goes on."""

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from support.data.tables import MakeTable, base_state, rows, state

import memwal
from memwal.errors import MemWalError, PartialWriteError, ResourceLimitError
from memwal.format.wal_encoder import EntryEncoder
from memwal.storage import local
from memwal.storage.folders import hold
from memwal.storage.local import LocalStore
from memwal.storage.object_store import create_settled
from memwal.util import system
from memwal.util.timers import TimerThread
from memwal.writer.region_writer import memtables

REGIONS = 40
EVERYTHING = dict.fromkeys(range(8 * REGIONS), 1)


@contextmanager
def few_files(free: int) -> Iterator[None]:
    """Let this process open a few more files only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))
    opened = []
    try:
        with suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(free):
            os.close(opened.pop())
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def no_more_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def reasons(error: MemWalError) -> set[type]:
    failures = error.failures if isinstance(error, PartialWriteError) else ()
    return {type(failure.error) for failure in failures} or {type(error)}


def test_held_folders_follow_the_limit(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "max_open_files", lambda: 80)
    hold.close_held_folders()
    with make_table(buckets=REGIONS).writer() as writer:
        writer.upsert(rows(EVERYTHING))
        assert len(hold._open) == 10


def test_without_descriptors_writes_fail_and_work_again(make_table: MakeTable) -> None:
    table = make_table(buckets=REGIONS)
    hold.close_held_folders()
    with table.writer() as writer:
        with few_files(3), pytest.raises(MemWalError) as raised:
            writer.upsert(rows(EVERYTHING))
        assert reasons(raised.value) == {ResourceLimitError}
        assert writer.is_open
        writer.upsert(rows(EVERYTHING))
        with few_files(0), pytest.raises(ResourceLimitError):
            table.scan().to_table()
        assert state(writer) == EVERYTHING
    assert state(table) == EVERYTHING


def test_an_object_that_exists_and_cannot_be_read_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request stores the object, and its answer is lost; so are the next ones."""
    store = LocalStore(tmp_path)
    real = local.fsync_folder
    failing = [True, True]

    def fsync_folder(path: str) -> None:
        if failing and failing.pop():
            raise OSError(24, "Too many open files")
        real(path)

    monkeypatch.setattr(local, "fsync_folder", fsync_folder)
    assert create_settled(store, "a", b"mine") is None
    assert store.get("a") == b"mine"
    assert not failing


def test_without_threads_the_calling_thread_does_the_work(
    make_table: MakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(buckets=4)
    options = memwal.WriterOptions(durable=False, buffer_interval=0.01)
    with no_more_threads(monkeypatch):
        writer = table.writer(options=options)
        handle = writer.upsert(rows(dict.fromkeys(range(20), 1)))
        writer.flush()
        assert handle.done()
        writer.upsert(rows({1: 2}))
        assert state(writer)[1] == 2
        assert table.verify().findings == ()
        table.collect_garbage()
        table.merge()
        assert base_state(table)[1] == 1
        with pytest.raises(ResourceLimitError):
            table.copy_to(str(tmp_path / "copy.lance"))
    writer.upsert(rows({2: 3}))
    writer.close()
    table.merge()
    assert state(table) == dict.fromkeys(range(20), 1) | {1: 2, 2: 3}


def test_a_merge_that_needs_a_thread_is_refused_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dictionaries are decoded before a commit names them, in a thread that may call Lance."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.dictionary(pa.int32(), pa.string()))])
    table = memwal.create(str(tmp_path / "t.lance"), schema, primary_key=["id"])
    table.upsert(pa.table({"id": [1], "name": ["a"]}))
    with no_more_threads(monkeypatch), pytest.raises(ResourceLimitError):
        table.merge()
    table.merge()
    assert table.base().dataset.to_table().num_rows == 1


def test_timers_start_when_a_thread_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    timers, ran = TimerThread(), [threading.Event(), threading.Event()]
    with no_more_threads(monkeypatch):
        timers.new_timer(ran[0].set).schedule(0)
    timers.new_timer(ran[1].set).schedule(0)
    assert all(event.wait(240) for event in ran)
    timers.close(timeout=None)


def test_without_memory_a_write_fails_and_the_next_one_works(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise MemoryError

    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        with monkeypatch.context() as patch:
            patch.setattr(EntryEncoder, "encode", refuse)
            with pytest.raises(ResourceLimitError):
                writer.upsert(rows({1: 2}))
        writer.upsert(rows({2: 2}))
        assert state(writer) == {1: 1, 2: 2}


def test_a_memtable_that_cannot_be_made_loses_no_rows(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before it takes the rows that follow, and is not flushed until it is complete."""

    def fail(*arguments: object, **options: object) -> None:
        monkeypatch.undo()
        raise MemoryError

    with table.writer(options=memwal.WriterOptions(max_memtable_rows=2)) as writer:
        writer.upsert(rows({1: 1}))
        monkeypatch.setattr(memtables, "MemTable", fail)
        with pytest.raises(ResourceLimitError):
            writer.upsert(rows({2: 2, 3: 3}))
        writer.upsert(rows({4: 4}))
        writer.flush()
        assert state(table) == {1: 1, 4: 4}
        writer.abort()
    with table.writer() as other:
        other.claim()
        assert state(other) == {1: 1, 4: 4}
