"""Our writers and Lance's take a region from one another while writes are under way."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from support.data.merging import Merge
from support.data.tables import base_state, keys, manifest, rows, state
from support.oracles import native
from support.oracles.native import everything
from support.oracles.truth import Change, Truth

import memwal
from memwal.errors import RegionFencedError

TURNS = 5
LANES = 2
"""Threads that write at the same time through one writer."""

WRITES = 6
"""What each thread must have written before the next writer claims the region."""


class Written:
    """What all threads wrote, each time with a number of its own."""

    def __init__(self) -> None:
        self.truth: Truth[int] = Truth()
        self.numbers = itertools.count()
        self._lock = threading.Lock()

    @contextmanager
    def writing(self, change: Change[int], turn: int) -> Iterator[None]:
        """Record a write, which is acknowledged if the block ends well."""
        with self._lock:
            begun = self.truth.begin(change, epoch=turn)
        yield
        with self._lock:
            self.truth.acknowledge(begun)

    def claimed(self, turn: int) -> None:
        with self._lock:
            self.truth.fence(None, turn)


class Lane(threading.Thread):
    """Writes until the writer fails: a new key and one that it shares with its successors."""

    def __init__(self, number: int, writer: Writer, written: Written) -> None:
        super().__init__(daemon=True)
        self._shared_key = -1 - number
        self._writer = writer
        self._written = written
        self.enough = threading.Event()
        self.stop = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            for count in itertools.count():
                if self.stop.is_set():
                    return
                self._write()
                if count == WRITES:
                    self.enough.set()
        except Exception as error:
            self.error = error
        finally:
            self.enough.set()

    def _write(self) -> None:
        number = next(self._written.numbers)
        values = {number: number, self._shared_key: number}
        with self._written.writing(values, self._writer.turn):
            self._writer.put(rows(values))
        if number % 3 == 0:
            with self._written.writing({number: None}, self._writer.turn):
                self._writer.delete(keys(number))


class Writer:
    """A writer of either kind that claimed the region, with threads that write through it."""

    def __init__(self, table: memwal.Table, turn: int, written: Written) -> None:
        self.turn, self.is_ours = turn, turn % 2 == 0
        self.put: Callable[[pa.Table], None]
        self.delete: Callable[[pa.Array], None]
        self.close: Callable[[], None]
        # Some flush again and again meanwhile, others leave everything to their successors.
        size = 25 if turn % 4 < 2 else 10_000
        if self.is_ours:
            ours = table.writer(options=memwal.WriterOptions(max_memtable_rows=size))
            ours.claim()
            self.put, self.delete, self.close = ours.upsert, ours.delete, ours.close
        else:
            lances = native.writer(table, max_memtable_rows=size)
            self.put = lambda data: native.put(lances, table, data)
            self.delete = lambda key: lances.delete(pa.table({"id": key}))
            self.close = lances.close
        written.claimed(turn)
        self.lanes = [Lane(number, self, written) for number in range(LANES)]
        for lane in self.lanes:
            lane.start()

    def wait_until_under_way(self) -> None:
        for lane in self.lanes:
            assert lane.enough.wait(240)
            assert lane.error is None

    def check_fenced(self) -> None:
        """After another claim every write must fail, without help, and a flush of what is left."""
        for lane in self.lanes:
            lane.join(240)
            assert not lane.is_alive()
            self._check(lane.error)
        try:
            self.close()
        except (RegionFencedError, OSError) as error:
            self._check(error)
        else:
            # Lance's writer says nothing when all that it has is flushed.
            assert not self.is_ours

    def _check(self, error: Exception | None) -> None:
        if self.is_ours:
            assert isinstance(error, RegionFencedError)
        else:
            assert isinstance(error, OSError)
            assert "fenced" in str(error)

    def stop(self) -> None:
        for lane in self.lanes:
            lane.stop.set()
            lane.join(240)
            assert lane.error is None
        self.close()


@pytest.mark.parametrize("first", ["ours", "native"])
def test_fencing_one_another(table: memwal.Table, first: str, merge: Merge) -> None:
    written = Written()
    start = 0 if first == "ours" else 1
    writer = Writer(table, start, written)
    for turn in range(start + 1, start + TURNS):
        writer.wait_until_under_way()
        successor = Writer(table, turn, written)
        writer.check_fenced()
        writer = successor
        if turn % 3 == 0:
            merge(table)
            table.collect_garbage(
                dry_run=False, grace_seconds=300, retention_seconds=0, foreign_claim_seconds=0
            )
    writer.wait_until_under_way()
    writer.stop()
    assert manifest(table).writer_epoch == TURNS
    everything(table)
    written.truth.check(state(table), "our reader")
    merge(table)
    everything(table)
    written.truth.check(base_state(table), "the base table")
