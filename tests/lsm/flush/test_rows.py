"""Generations from rows in memory and from rows that are read as they are written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.data.tables import REGION, MakeTable, keys, numbered, region_folders, rows

import memwal
from memwal.errors import InvalidInputError, StoreAccessError, TableSetupError
from memwal.format.bloom import BloomFilter
from memwal.format.paths import generation_dir
from memwal.format.region_manifest import FlushedGeneration
from memwal.lsm.flush.generation import write_generation
from memwal.lsm.flush.key_index import NewestKeys
from memwal.lsm.flush.rows import GenerationRows, NewestRowStream, TableRows
from memwal.lsm.indexes.maintained import maintained_indexes
from memwal.lsm.row_schema import RowSchema
from memwal.region.rows import key_column


class Stream:
    """Rows that are made anew each time, as if they were read from a log."""

    def __init__(self, batches: list[pa.RecordBatch], primary_key: tuple[str, ...]) -> None:
        self.schema = batches[0].schema
        self.primary_key = primary_key
        self.passes = 0
        self._batches = batches

    def keys(self) -> pa.Array:
        return key_column(pa.Table.from_batches(self._batches), self.primary_key)

    def batches(self) -> Iterator[pa.RecordBatch]:
        self.passes += 1
        yield from self._batches


def stored(table: memwal.Table, *parts: Any) -> list[pa.RecordBatch]:
    base = table.base()
    row_schema = RowSchema(base.identified_schema, base.primary_key)
    return [
        batch
        for part in parts
        for batch in (
            row_schema.convert_deletes(part)
            if isinstance(part, pa.Array)
            else row_schema.convert_upserts(part)
        )
    ]


def write(table: memwal.Table, contents: GenerationRows | pa.Table) -> FlushedGeneration:
    base = table.base()
    return write_generation(base, REGION, 1, contents, maintained_indexes(base))


def read(table: memwal.Table, flushed: FlushedGeneration) -> pa.Table:
    return lance.dataset(path(table, flushed)).to_table()


def path(table: memwal.Table, flushed: FlushedGeneration) -> str:
    return table.location.child(generation_dir(REGION, flushed.path))


@pytest.fixture(params=["stream", "rows", "table"])
def form(request: pytest.FixtureRequest) -> Any:
    """Each form in which contents may come."""

    def make(batches: list[pa.RecordBatch], primary_key: tuple[str, ...] = ("id",)) -> Any:
        if request.param == "stream":
            return Stream(batches, primary_key)
        table = pa.Table.from_batches(batches)
        return table if request.param == "table" else TableRows(table, primary_key)

    return make


def test_newest_row_of_each_key(table: memwal.Table, form: Any) -> None:
    batches = stored(table, rows({3: 3, 1: 1}), keys(1), rows({2: 2, 3: 33}), rows({3: 34}))

    flushed = write(table, form(batches))

    assert read(table, flushed).to_pylist() == [
        {"id": 1, "n": None, "text": None, "_tombstone": True},
        {"id": 2, "n": 2, "text": "2=2", "_tombstone": False},
        {"id": 3, "n": 34, "text": "3=34", "_tombstone": False},
    ]
    assert (flushed.rows, flushed.key_bytes) == (3, 24)


def test_same_files_from_every_form(table: memwal.Table) -> None:
    batches = stored(table, numbered(0, 3000), numbered(500, 3000, 7), keys(*range(0, 100, 3)))
    forms = [Stream(batches, ("id",)), TableRows(pa.Table.from_batches(batches), ("id",))]
    written = [write(table, form) for form in forms]
    assert read(table, written[0]).equals(read(table, written[1]))
    assert written[0].rows == written[1].rows == 3500
    blooms = [Path(path(table, flushed), "bloom_filter.bin").read_bytes() for flushed in written]
    assert blooms[0] == blooms[1]
    assert BloomFilter.from_bytes(blooms[0]).might_contain([keys(*range(3500))]).all()


def test_composite_keys(make_table: MakeTable, form: Any) -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False),
            pa.field("b", pa.string(), nullable=False),
            pa.field("n", pa.int64()),
        ]
    )
    table = make_table(schema, primary_key=("b", "a"))
    data = pa.table({"a": [1, 2, 1, 2], "b": ["x", "x", "y", "x"], "n": range(4)}).cast(schema)

    flushed = write(table, form(stored(table, data), ("b", "a")))

    assert read(table, flushed)["n"].to_pylist() == [0, 2, 3]
    bloom = BloomFilter.from_bytes(Path(path(table, flushed), "bloom_filter.bin").read_bytes())
    assert bloom.might_contain([data["b"], data["a"]]).all()


def test_dictionaries_that_differ(make_table: MakeTable, form: Any) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    table = make_table(pa.schema([pa.field("id", pa.int64(), nullable=False), ("d", kind)]))

    def part(start: int) -> pa.Table:
        values = pa.array([f"v{n}" for n in range(start, start + 100)])
        return pa.table({"id": range(start, start + 100), "d": values.dictionary_encode()}).cast(
            pa.schema([pa.field("id", pa.int64(), nullable=False), ("d", kind)])
        )

    batches = stored(table, part(0), part(50))
    flushed = write(table, form(batches))
    found = read(table, flushed)
    assert dict(zip(found["id"].to_pylist(), found["d"].to_pylist(), strict=True)) == {
        n: f"v{n}" for n in range(150)
    }


def test_structs_in_a_table_of_the_oldest_storage_version(make_table: MakeTable) -> None:
    """It has no null structs, and a deleted row is full of nulls."""
    pair = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("pair", pair)])
    table = make_table(schema, data_storage_version="2.0")
    data = pa.table({"id": [1, 2], "pair": [{"x": 1, "y": "a"}] * 2}, schema=schema)
    with table.writer() as writer:
        writer.upsert(data)
        writer.delete(keys(2))
    assert table.scan().to_table().to_pylist() == data.slice(0, 1).to_pylist()
    table.merge()
    assert table.base().dataset.to_table().to_pylist() == data.slice(0, 1).to_pylist()


class TestErrors:
    def test_of_the_stream_are_raised_unchanged(self, table: memwal.Table) -> None:
        class Broken(Stream):
            def batches(self) -> Iterator[pa.RecordBatch]:
                yield from super().batches()
                raise StoreAccessError("the log cannot be read")

        with pytest.raises(StoreAccessError):
            write(table, Broken(stored(table, rows({1: 1})), ("id",)))

    def test_a_value_that_cannot_become_the_type(self, table: memwal.Table) -> None:
        (batch,) = stored(table, rows({1: 1}))
        field = batch.schema.field("n").with_type(pa.string())
        batch = batch.set_column(1, field, pa.array(["one"]))
        with pytest.raises(InvalidInputError, match=r"\bn\b"):
            write(table, Stream([batch], ("id",)))

    def test_a_key_column_is_missing(self, table: memwal.Table) -> None:
        (batch,) = stored(table, rows({1: 1}))
        batch = batch.set_column(0, pa.field("was", pa.int64()), batch.column("id"))
        with pytest.raises(InvalidInputError, match=r"\bid\b"):
            write(table, Stream([batch], ("was",)))

    def test_a_table_that_was_replaced(self, table: memwal.Table) -> None:
        """Its field ids start anew: they say nothing about the rows."""
        batches = stored(table, rows({1: 1}))
        lance.write_dataset(rows({7: 7}), table.uri, mode="overwrite")
        with pytest.raises(TableSetupError):
            write(table, Stream(batches, ("id",)))
        assert not region_folders(table)


@settings(max_examples=90)
@given(
    st.one_of(
        st.lists(kind, min_size=1)
        for kind in (st.integers(0, 20), st.text(max_size=2), st.booleans())
    ).map(pa.array)
)
@example(pa.array([2**64 - 1, 0, 2**63, 0], pa.uint64()))
def test_newest_keys(array: pa.Array) -> None:
    newest = NewestKeys.of(array)
    last = {value: position for position, value in enumerate(array.to_pylist())}
    kept = sorted(last.values())
    assert newest.positions.tolist() == kept
    assert newest.keys.equals(array.take(pa.array([last[v] for v in sorted(last)])))
    assert newest.rows.tolist() == [kept.index(last[value]) for value in sorted(last)]
    assert newest.rows.dtype == np.int64


def test_memory_does_not_grow_with_the_rows(make_table: MakeTable) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.large_binary())])
    table = make_table(schema)
    value = pa.scalar(b"x" * 10_000, pa.large_binary())
    count = 100

    def part(number: int) -> pa.RecordBatch:
        ids = pa.array(range(number * 100, number * 100 + 100))
        (batch,) = stored(table, pa.table([ids, pa.repeat(value, 100)], schema=schema))
        return batch

    most = 0

    class Watched(Stream):
        def batches(self) -> Iterator[pa.RecordBatch]:
            nonlocal most
            for number in range(count):
                most = max(most, pa.total_allocated_bytes() - before)
                yield part(number)

        def keys(self) -> pa.Array:
            return pa.array(range(count * 100))

    watched = Watched([part(0)], ("id",))
    before = pa.total_allocated_bytes()
    write(table, watched)
    # A hundred batches of a megabyte were written, and a few at a time were in memory.
    assert most < 30_000_000


def test_rows_for_lance_are_not_in_the_memory_of_arrow(make_table: MakeTable) -> None:
    """Lance frees them on threads of its own, of which Arrow's allocator would get few back."""
    table = make_table()
    batches = stored(table, *(numbered(start, 500) for start in range(0, 5_000, 250)))
    contents = TableRows(pa.Table.from_batches(batches), ("id",))
    newest = NewestRowStream(contents, NewestKeys.of(contents.keys()).positions, table.base())
    usual = pa.default_memory_pool()
    handed_on, before = pa.system_memory_pool().bytes_allocated(), usual.bytes_allocated()
    rows = list(newest.reader())
    size = sum(batch.nbytes for batch in rows)
    assert size > 50_000
    assert pa.system_memory_pool().bytes_allocated() - handed_on >= size // 2
    # Unless somebody has made that of the C library the usual one.
    assert usual.backend_name == "system" or usual.bytes_allocated() - before < size // 10


def test_wide_rows_are_read_a_few_at_a_time() -> None:
    wide = pa.table({"id": range(40), "data": [bytes(1 << 18)] * 40})
    batches = list(TableRows(wide, ("id",)).batches())
    assert max(batch.nbytes for batch in batches) < 3 << 20
    assert pa.Table.from_batches(batches) == wide
