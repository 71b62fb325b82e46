"""What an append costs, and how small batches become one."""

import math
from collections.abc import Callable
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from support.data.claims import claim_at
from support.data.entries import append
from support.stores.faulty_store import FaultyStore

from memwal.errors import OutcomeUnknownError, RegionFencedError, StoreAccessError
from memwal.format.paths import wal_key
from memwal.format.wal_entry import decode_entry
from memwal.lsm.wal.appender import LogAppender, join_batches

REGION = uuid4()
SCHEMA = pa.schema([("id", pa.int64())])


def batch(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


class Epoch:
    """Counts the looks at the epoch, and answers them."""

    def __init__(self) -> None:
        self.looks = 0
        self.answers: list[Exception | None] = []

    def __call__(self) -> None:
        self.looks += 1
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer


def appender(
    store: FaultyStore,
    verify: Callable[[], None],
    *,
    verified_at: float = -math.inf,
    clock: Callable[[], float] = lambda: 100.0,
) -> LogAppender:
    return LogAppender(
        store,
        claim_at(REGION, epoch=5, verified_at=verified_at),
        schema=SCHEMA,
        convert=lambda position, entry: list(entry.batches),
        verify_epoch=verify,
        start_check=lambda: lambda: None,
        check_interval=10.0,
        clock=clock,
    )


class TestRequests:
    def test_an_append_is_one_put(self, store: FaultyStore) -> None:
        epoch = Epoch()
        log = appender(store, epoch, verified_at=95.0)

        for number in range(5):
            append(log, [batch(number)], generation=1)

        assert store.calls == [("create", wal_key(REGION, n)) for n in range(1, 6)]
        assert epoch.looks == 0

    def test_a_check_counts_from_its_start(self, store: FaultyStore) -> None:
        epoch = Epoch()
        moments = iter([104.0, 105.0, 114.0, 115.0])
        log = appender(store, epoch, verified_at=95.0, clock=lambda: next(moments))

        looks = []
        for number in range(4):
            append(log, [batch(number)], generation=1)
            looks.append(epoch.looks)

        assert looks == [0, 1, 1, 2]

    def test_a_failed_check_is_retried_before_the_entry_is_acknowledged(
        self, store: FaultyStore
    ) -> None:
        epoch = Epoch()
        epoch.answers = [StoreAccessError("no"), RegionFencedError("lost")]
        log = appender(store, epoch)

        with pytest.raises(OutcomeUnknownError):
            append(log, [batch(1)], generation=1)
        with pytest.raises(RegionFencedError):
            append(log, [batch(2)], generation=1)
        append(log, [batch(3)], generation=1)

        assert epoch.looks == 3


def test_rows_do_not_change_with_the_callers_memory(store: FaultyStore) -> None:
    values = np.array([1, 2, 3])
    rows = pa.record_batch(
        [pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(values)])], schema=SCHEMA
    )

    appended = append(appender(store, Epoch()), [rows], generation=1)
    values[:] = -1

    assert appended.entry.batches == (batch(1, 2, 3),)
    entry = decode_entry(store.get(wal_key(REGION, 1)), name="entry")
    assert entry.batches == appended.entry.batches


class TestJoined:
    def test_one_batch_is_returned_unchanged(self) -> None:
        rows = batch(1, 2)
        assert join_batches([rows])[0] is rows

    def test_many_batches_become_one_in_order(self) -> None:
        parts = [batch(n, -n) for n in range(32)]
        assert join_batches(parts) == [batch(*(x for n in range(32) for x in (n, -n)))]

    def test_dictionaries_become_one(self) -> None:
        kind = pa.dictionary(pa.int8(), pa.string())
        schema = pa.schema([("a", kind), ("b", pa.list_(kind))])
        values = ["red", "green", None, "red"]
        parts = [
            pa.record_batch([pa.array([v], kind), pa.array([[v]], schema.field("b").type)], schema)
            for v in values
        ]

        (whole,) = join_batches(parts)

        assert whole.to_pydict() == {"a": values, "b": [[v] for v in values]}
        assert whole.column("a").dictionary.to_pylist() == ["red", "green"]

    def test_batches_that_do_not_fit_into_one_stay_separate(self) -> None:
        kind = pa.dictionary(pa.int8(), pa.string())
        parts = [pa.record_batch({"a": pa.array([f"color {n}"], kind)}) for n in range(200)]
        assert join_batches(parts) == parts
