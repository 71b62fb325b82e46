"""All indexes of one MemTable together, against a dict of the newest rows."""

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.lsm.memtable.indexes import MemTableIndexes, MemTableSnapshot
from memwal.lsm.memtable.vector_index import nearest_rows

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("vec", pa.list_(pa.float32(), 2)),
        ("text", pa.string()),
        pa.field("_tombstone", pa.bool_(), nullable=False),
    ]
)
WORDS = ["red", "green", "blue"]

# One write of a key: a value, or None for a delete.
Write = tuple[int, int | None]


def row_of(key: int, value: int | None) -> dict[str, Any]:
    if value is None:
        return {"id": key, "vec": None, "text": None, "_tombstone": True}
    text = " ".join(word for place, word in enumerate(WORDS) if value >> place & 1)
    return {"id": key, "vec": [value, 1], "text": text, "_tombstone": False}


def batch_of(writes: list[Write]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row_of(*write) for write in writes], schema=SCHEMA)


def check(snapshot: MemTableSnapshot, writes: list[Write]) -> None:
    """Compare every kind of read with what the first writes say."""
    newest = {key: row for row, (key, _) in enumerate(writes[: snapshot.view.rows])}
    alive = sorted(row for row in newest.values() if writes[row][1] is not None)
    keys = pa.array(range(8), pa.int64())
    assert snapshot.lookup([keys]).tolist() == [newest.get(key, -1) for key in range(8)]
    is_alive = np.isin(np.arange(snapshot.view.rows), alive)
    assert snapshot.view.take(np.array(alive, np.int64), columns=["id"])["id"].to_pylist() == [
        writes[row][0] for row in alive
    ]
    near = sorted(alive, key=lambda row: (abs((writes[row][1] or 0) - 3), row))
    vectors, query = snapshot.view.column("vec"), np.array([3, 1])
    found = nearest_rows(vectors, query, k=100, metric="l2", column="vec", allowed=is_alive)
    assert found.rows.tolist() == near
    holds = [row for row in alive if (writes[row][1] or 0) & 1]
    lengths, counts = snapshot.text["text"].occurrences(["red"], snapshot.view)
    assert np.flatnonzero((counts["red"] > 0) & is_alive).tolist() == holds
    assert np.count_nonzero(lengths[is_alive]) == sum((writes[row][1] or 0) > 0 for row in alive)


WRITES = st.lists(st.tuples(st.integers(0, 7), st.none() | st.integers(0, 7)), max_size=10)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(WRITES, st.booleans(), st.booleans()), max_size=12))
def test_reads_see_the_newest_rows(steps: list[tuple[list[Write], bool, bool]]) -> None:
    table = MemTableIndexes(SCHEMA, ["id"], text={"text": {}})
    writes: list[Write] = []
    snapshots = []
    for fresh, indexes, keeps in steps:
        table.append(batch_of(fresh))
        writes += fresh
        if indexes:
            table.catch_up()
        if keeps:
            snapshots.append(table.snapshot())
    for snapshot in [table.snapshot(), *snapshots]:
        check(snapshot, writes)
    assert table.rows == len(writes)


def test_reads_while_rows_come() -> None:
    random = np.random.default_rng(5)
    writes: list[Write] = [
        (key, None if value == 8 else value)
        for key, value in zip(
            random.integers(0, 8, 400).tolist(), random.integers(0, 9, 400).tolist(), strict=True
        )
    ]
    table = MemTableIndexes(SCHEMA, ["id"], text={"text": {}})
    done = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        ended = False
        while not ended and not failures:
            ended = done.is_set()
            try:
                check(table.snapshot(), writes)
            except BaseException as error:
                failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number, write in enumerate(writes):
        table.append(batch_of([write]))
        if number % 3 == 0:
            table.catch_up()
    done.set()
    for reader in readers:
        reader.join()
    assert failures == []


def test_memory_is_counted() -> None:
    table = MemTableIndexes(SCHEMA, ["id"], text={"text": {}})
    batch = batch_of([(number, number % 8) for number in range(1_000)])
    table.append(batch)
    deferred = table.nbytes
    table.catch_up()
    assert deferred == batch.nbytes
    assert batch.nbytes + 12 * 1_000 < table.nbytes < batch.nbytes + 60 * 1_000


@pytest.mark.parametrize("column", ["id", "other"])
def test_refuses_text_columns_that_hold_no_text_before_any_row(column: str) -> None:
    with pytest.raises(InvalidInputError, match=column):
        MemTableIndexes(SCHEMA, ["id"], text={column: {}})
