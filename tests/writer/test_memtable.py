"""The MemTable: rows in the order of the log."""

from __future__ import annotations

import pyarrow as pa

from memwal.writer.memtable import MemTable, newest_per_key

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])


def batch(*pairs: tuple[int, int]) -> pa.RecordBatch:
    return pa.record_batch([[a for a, _ in pairs], [b for _, b in pairs]], schema=SCHEMA)


def test_counts_what_it_takes() -> None:
    table = MemTable(SCHEMA, 3)
    assert (table.rows, table.bytes, table.last_position) == (0, 0, 0)

    table.add([batch((1, 1)), batch((2, 2), (1, 3))], position=7)

    assert (table.generation, table.rows, table.last_position) == (3, 3, 7)
    assert table.bytes == 3 * 16


def test_contents_stay_as_they_were_when_more_is_written() -> None:
    table = MemTable(SCHEMA, 1)
    table.add([batch((1, 1))], position=1)
    before = table.contents()

    table.add([batch((2, 2))], position=2)

    assert before.column("id").to_pylist() == [1]
    assert table.contents().column("id").to_pylist() == [1, 2]


def test_an_empty_one_has_the_schema() -> None:
    assert MemTable(SCHEMA, 1).contents().schema == SCHEMA


def test_the_newest_row_per_key_keeps_the_order_of_the_log() -> None:
    rows = pa.Table.from_batches([batch((1, 1), (2, 2)), batch((1, 3), (3, 3)), batch((2, 4))])

    assert newest_per_key(rows, ["id"]).to_pylist() == [
        {"id": 1, "n": 3},
        {"id": 3, "n": 3},
        {"id": 2, "n": 4},
    ]
