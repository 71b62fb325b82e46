"""Entries are made of pieces, and must be what Arrow writes in one go."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from memwal.errors import InvalidInputError
from memwal.format.wal_encoder import EncodedEntry, EntryEncoder
from memwal.format.wal_entry import decode_entry

UUID = b"0123456789abcdef"
ID = pa.field("id", pa.int64(), nullable=False, metadata={"unit": "none"})
COLUMNS = {
    "string": pa.array(["a", None, "ccc"]),
    "large binary": pa.array([b"a" * 2_000_000, None, b""], pa.large_binary()),
    "vector": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
    "nested": pa.array(
        [{"a": [1, None], "b": "x"}, None, {"a": None, "b": None}],
        pa.struct([("a", pa.list_(pa.int8())), ("b", pa.large_string())]),
    ),
    "boolean": pa.array([True, None, False]),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "json": pa.array(["{}", None, "1"]).cast(pa.json_()),
    "uuid": pa.array([UUID, None, UUID], pa.binary(16)).cast(pa.uuid()),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "inner dictionary": pa.array(
        [["a"], None, ["a", "b"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))
    ),
    "decimal": pa.array([Decimal("1.5"), None, Decimal("-2")], pa.decimal128(20, 2)),
    "no rows": pa.array([], pa.string()),
}


def rows(column: pa.Array) -> pa.RecordBatch:
    ids = pa.array(range(len(column)), pa.int64())
    schema = pa.schema([ID, pa.field("x", column.type)], metadata={"owner": "tests"})
    return pa.record_batch([ids, column], schema=schema)


def encoder(schema: pa.Schema) -> EntryEncoder:
    return EntryEncoder(schema, writer_epoch=3, writer_id="writer")


def streamed(entry: EncodedEntry, *batches: pa.RecordBatch) -> bytes:
    """The same entry, written by Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.ipc.open_stream(entry.data).schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("name", COLUMNS)
def test_an_entry_is_what_arrow_writes(name: str) -> None:
    batch = rows(COLUMNS[name])

    for batches in ([], [batch], [batch, batch.slice(1), batch]):
        entry = encoder(batch.schema).encode(batches, generation=8)

        assert entry.data == streamed(entry, *batches)
        assert list(entry.batches) == batches
        decoded = decode_entry(entry.data, name="x")
        assert decoded.batches == entry.batches
        assert (decoded.writer_epoch, decoded.generation) == (3, 8)
        for made in entry.batches:
            made.validate(full=True)
            assert made.schema.equals(batch.schema, check_metadata=True)


def test_one_encoder_serves_generation_after_generation() -> None:
    batch = rows(COLUMNS["string"])
    entries = encoder(batch.schema)

    for generation in (7, 7, 8, 123_456_789, 7, 0):
        entry = decode_entry(entries.encode([batch], generation=generation).data, name="x")
        assert (entry.generation, entry.writer_id) == (generation, "writer")
        assert entry.batches == (batch,)


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_have_a_memory_of_their_own(name: str) -> None:
    values = np.arange(3)
    column = COLUMNS[name][: len(values)]
    batch = rows(column)
    given = pa.record_batch(
        [pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(values)]), column],
        schema=batch.schema,
    )

    entry = encoder(batch.schema).encode([given], generation=1)
    values[:] = -1

    assert entry.batches == (batch,)


def test_wide_values_are_aligned() -> None:
    batch = rows(COLUMNS["decimal"])

    for _ in range(8):
        (made,) = encoder(batch.schema).encode([batch], generation=1).batches
        assert made.column("x").buffers()[1].address % 16 == 0


def test_a_batch_in_another_schema_is_refused_and_the_next_is_not() -> None:
    batch = rows(COLUMNS["string"])
    entries = encoder(batch.schema)

    with pytest.raises(InvalidInputError):
        entries.encode([batch, rows(COLUMNS["boolean"])], generation=1)
    assert entries.encode([batch], generation=1).batches == (batch,)
