"""The MemTable: rows in the order of the log."""

import pyarrow as pa

from memwal.lsm.row_schema import RowSchema
from memwal.writer.region_writer.memtables import MemTable

BASE = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64())])
ROW_SCHEMA = RowSchema(BASE, ["id"])


def batch(*pairs: tuple[int, int]) -> pa.RecordBatch:
    data = pa.table([[a for a, _ in pairs], [b for _, b in pairs]], schema=BASE)
    (stored,) = ROW_SCHEMA.convert_upserts(data)
    return stored


def test_contents_stay_as_they_were_when_more_is_written() -> None:
    table = MemTable(ROW_SCHEMA, 1)
    table.add([batch((1, 1))], position=1)
    before = table.contents()
    reading = table.unflushed()

    table.add([batch((2, 2), (1, 7))], position=2)

    assert before.column("id").to_pylist() == [1]
    assert reading.rows.column("n").to_pylist() == [1]
    assert reading.snapshot.lookup([pa.array([1, 2])]).tolist() == [0, -1]
    assert table.contents().column("id").to_pylist() == [1, 2, 1]
    table.catch_up()
    assert table.unflushed().snapshot.lookup([pa.array([1, 2])]).tolist() == [2, 1]


def test_rows_since_a_number_of_the_writer() -> None:
    table = MemTable(ROW_SCHEMA, 1, first_row=100)
    table.add([batch((1, 1)), batch((2, 2), (3, 3))], position=1)
    for start, expected in ((0, [1, 2, 3]), (100, [1, 2, 3]), (102, [3]), (103, []), (200, [])):
        assert table.since(start).column("id").to_pylist() == expected
