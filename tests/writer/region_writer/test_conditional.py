"""Conditional upserts: rows are written only if those that were read are unchanged."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.data.tables import MakeTable, Rows, keys, log, rows, state
from support.oracles import native
from support.stores.faulty_store import WAL, FaultyStores, Pause

import memwal
from memwal import WriterOptions
from memwal.errors import InvalidInputError, RegionFencedError, StoreFullError
from memwal.writer import takeovers
from memwal.writer.region_writer.handle import WriteHandle

WHERE = ["memtable", "sealed", "flushed", "merged"]


def numbers(values: Rows) -> pa.Table:
    """The number of some keys, without their text."""
    return rows(values).select(["id", "n"])


def changed(handle: WriteHandle) -> list[int]:
    """Keys that a write left out."""
    found = handle.changed
    return sorted(found.column("id").to_pylist()) if found.num_columns else []


def writer_with(table: memwal.Table, values: Rows, where: str = "memtable") -> memwal.Writer:
    """A writer of a table that has some rows, after it deleted 9."""
    writer = table.writer()
    writer.upsert(rows(values | {9: 9}))
    writer.delete(keys(9))
    if where == "sealed":
        writer.flush()
        writer.upsert(rows({100: 100}))
        writer.delete(keys(100))
    if where in ("flushed", "merged"):
        writer.flush()
    if where == "merged":
        table.merge()
    return writer


@pytest.mark.few(4)
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("where", WHERE)
def test_a_row_is_written_if_it_is_as_it_was_read(
    table: memwal.Table, where: str, partial: bool
) -> None:
    with writer_with(table, {1: 1, 2: 2, 3: None, 4: None}, where) as writer:
        # 5 and 6 do not exist; 9 was deleted.
        read = numbers({1: 1, 2: 7, 3: None, 4: 7, 6: 6, 9: 9})
        new = rows({1: 10, 2: 20, 3: 30, 4: 40, 5: 50, 6: 60, 9: 90})
        handle = writer.upsert(new, partial=partial, only_if_unchanged=read)
        assert changed(handle) == [2, 4, 6, 9]
        expected = {1: 10, 2: 2, 3: 30, 4: None, 5: 50}
        assert state(writer) == expected
    assert state(table) == expected
    assert state(native.scan(table)) == expected


def test_a_value_computed_from_a_column_never_stands_beside_a_newer_one(
    table: memwal.Table,
) -> None:
    """The other columns are those of the newest row, compared or not."""
    with table.writer() as writer:
        writer.upsert({"id": [1, 2], "n": [None, None], "text": ["old", "same"]})
        read = writer.scan(columns=["id", "text"]).to_table()
        writer.upsert({"id": [1], "text": ["new"]}, partial=True)
        lengths = {"id": [1, 2], "n": [3, 4]}
        handle = writer.upsert(lengths, partial=True, only_if_unchanged=read)
        assert changed(handle) == [1]
        found = {row["id"]: (row["n"], row["text"]) for row in writer.scan().to_pylist()}
    assert found == {1: (None, "new"), 2: (4, "same")}


def test_only_new_rows(table: memwal.Table) -> None:
    nothing = rows({})
    with writer_with(table, {1: 1}) as writer:
        handle = writer.upsert(rows({1: 10, 2: 20}), only_if_unchanged=nothing)
        assert changed(handle) == [1]
        assert state(writer) == {1: 1, 2: 20}
        assert changed(writer.upsert(rows({3: 3}), only_if_unchanged=nothing)) == []
        assert changed(writer.upsert(rows({}), only_if_unchanged=nothing)) == []


def test_of_rows_with_one_key_the_last_counts(table: memwal.Table) -> None:
    with writer_with(table, {1: 1}) as writer:
        read = {"id": [1, 1], "n": [7, 1]}
        new = pa.concat_tables([rows({1: 2}), rows({1: 3})])
        assert changed(writer.upsert(new, only_if_unchanged=read)) == []
        assert state(writer) == {1: 3}


def test_nothing_is_logged_if_every_row_was_changed(table: memwal.Table) -> None:
    with writer_with(table, {1: 1}) as writer:
        before = log(table).keys()
        handle = writer.upsert(rows({1: 2}), only_if_unchanged=numbers({1: 7}))
        assert changed(handle) == [1]
        assert log(table).keys() == before


def test_values_of_many_types(tmp_path: Path) -> None:
    text = pa.array(["a", "b"])
    values = {
        "day": pa.array([1, 2], pa.int32()).cast(pa.date32()),
        "at": pa.array([1, 2]).cast(pa.timestamp("us", "UTC")),
        "real": pa.array([float("nan"), 0.5]),
        "raw": text.cast(pa.binary()),
        "flag": pa.array([True, False]),
        "price": pa.array([1, 2]).cast(pa.decimal128(21, 2)),
        "kind": text.dictionary_encode(),
    }
    data = pa.table({"id": [1, 2], **values})
    table = memwal.create(str(tmp_path / "t"), data.schema, primary_key="id")
    with table.writer() as writer:
        writer.upsert(data)
        for name in values:
            read = data.select(["id", name])
            assert changed(writer.upsert(data, only_if_unchanged=read)) == []
            swapped = read.set_column(1, read.field(1), read.column(1).take(pa.array([1, 0])))
            assert changed(writer.upsert(data, only_if_unchanged=swapped)) == [1, 2]


class TestRefused:
    def test_what_cannot_be_compared_or_is_no_column(self, tmp_path: Path) -> None:
        schema = pa.schema(
            [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.list_(pa.float32(), 2))]
        )
        table = memwal.create(str(tmp_path / "t"), schema, primary_key="id")
        row = {"id": [1], "v": [[1.0, 2.0]]}
        with table.writer() as writer:
            for read in (row, {"id": [1], "other": [1]}, {"v": [[1.0, 2.0]]}):
                with pytest.raises(InvalidInputError):
                    writer.upsert(row, only_if_unchanged=read)
            assert writer.count_rows() == 0

    def test_rows_that_are_not_whole(self, table: memwal.Table) -> None:
        with table.writer() as writer, pytest.raises(InvalidInputError):
            writer.upsert({"id": [1], "n": [1]}, only_if_unchanged={"id": [1]})


class TestAtTheSameTime:
    def test_no_increment_is_lost(self, make_table: MakeTable) -> None:
        """Threads read, add one and write back what is unchanged, while rows are flushed."""
        table = make_table(buckets=2)
        options = WriterOptions(max_memtable_rows=20, max_sealed_memtables=4)
        count = 6
        with table.writer(options=options) as writer:
            writer.upsert(rows(dict.fromkeys(range(count), 0)))

            def add(thread: int) -> np.ndarray[Any, Any]:
                added = np.zeros(count, int)
                for _ in range(20):
                    known = state(writer)
                    more = rows({key: (n or 0) + 1 for key, n in known.items()})
                    handle = writer.upsert(more, only_if_unchanged=numbers(known))
                    added += 1
                    added[changed(handle)] -= 1
                return added

            with ThreadPoolExecutor(3) as pool:
                added = sum(pool.map(add, range(3)))
            assert state(writer) == dict(enumerate(added))
        assert state(table) == dict(enumerate(added))

    def test_a_queued_row_counts(self, faults: FaultyStores, table: memwal.Table) -> None:
        store = faults.of(table.location)
        with writer_with(table, {1: 1, 2: 2}) as writer:
            pause = store.pause("create", WAL)
            with pause.holding(writer.upsert, rows({1: 7})) as first:
                read = numbers({1: 1, 2: 2})
                second = writer.upsert(rows({1: 10, 2: 20}), only_if_unchanged=read, wait=False)
            first.result()
            assert changed(second) == [1]
            assert state(writer) == {1: 7, 2: 20}

    @pytest.mark.parametrize("others", [{}, {2: 2}])
    def test_it_fails_with_a_queued_row_that_fails(
        self, faults: FaultyStores, table: memwal.Table, others: Rows
    ) -> None:
        """Else a row counted as changed that is still as it was."""
        store = faults.of(table.location)
        with writer_with(table, {1: 1, 2: 2}) as writer:
            pause = Pause()

            def stand_and_fail() -> None:
                pause.stand()
                raise StoreFullError("full")

            store.act("create", stand_and_fail, key=WAL)
            with pause.holding(writer.upsert, rows({1: 7})) as first:
                read = numbers({1: 1} | others)
                new = rows(dict.fromkeys((1, *others), 10))
                second = writer.upsert(new, only_if_unchanged=read, wait=False)
            assert isinstance(first.exception(), StoreFullError)
            with pytest.raises(StoreFullError):
                second.changed  # noqa: B018
            assert state(writer) == {1: 1, 2: 2}
            assert changed(writer.upsert(new, only_if_unchanged=read)) == []

    def test_a_flush_between_the_lookup_and_the_queue(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        store = faults.of(table.location)
        with writer_with(table, {1: 1}, "flushed") as writer:

            def flush_another() -> None:
                writer.upsert(rows({1: 7}))
                writer.flush()

            rule = store.act("get", flush_another, key="*_gen_1/bloom_filter.bin", after=True)
            handle = writer.upsert(rows({1: 10}), only_if_unchanged=numbers({1: 1}))
            assert rule.hits == 1
            assert changed(handle) == [1]
            assert state(writer) == {1: 7}


class TestAnotherWriter:
    """Its rows are newer than those with which a fenced writer would compare."""

    @pytest.mark.parametrize("read", [1, 7])
    def test_a_fenced_writer_decides_nothing(self, table: memwal.Table, read: int) -> None:
        one = writer_with(table, {1: 1})
        with table.writer() as other:
            other.upsert(rows({1: 7}))
            with pytest.raises(RegionFencedError):
                one.upsert(rows({1: 10}), only_if_unchanged=numbers({1: read}))
            assert state(other) == {1: 7}
        one.abort()

    @pytest.mark.parametrize(("read", "found"), [(1, 7), (7, 10)])
    def test_a_writer_that_reopens_compares_again(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch, read: int, found: int
    ) -> None:
        monkeypatch.setattr(takeovers, "_MAX_SECONDS", 0.01)
        options = WriterOptions(reopen=True)
        with table.writer(options=options) as one, table.writer(options=options) as other:
            one.upsert(rows({1: 1}))
            other.upsert(rows({1: 7}))
            handle = one.upsert(rows({1: 10}), only_if_unchanged=numbers({1: read}))
            assert changed(handle) == ([1] if found == 7 else [])
            assert state(one) == {1: found}


def test_buffered_ones_compare_with_buffered_ones(table: memwal.Table) -> None:
    options = WriterOptions(durable=False, buffer_interval=3600)
    with table.writer(options=options) as writer:
        writer.upsert(rows({1: 1, 2: 2}))
        handle = writer.upsert(rows({1: 10, 2: 20}), only_if_unchanged=numbers({1: 1, 2: 7}))
        assert state(writer) == {1: 10, 2: 2}
        assert not handle.done()
        writer.flush_wal()
        assert changed(handle) == [2]
        handle = writer.upsert(rows({1: 11}), only_if_unchanged=numbers({1: 1}))
        assert not handle.done()
        writer.flush_wal()
        assert changed(handle) == [1]
        stats = writer.stats()
        assert (stats.buffered_writes, stats.buffered_bytes) == (0, 0)


def test_composite_keys_and_many_regions(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("k", pa.string(), nullable=False),
            pa.field("n", pa.int32(), nullable=False),
            pa.field("x", pa.int64()),
        ]
    )
    table = memwal.create(
        str(tmp_path / "t"), schema, primary_key=["k", "n"], region_spec="bucket:k:4"
    )
    dice = random.Random(3)
    model: dict[tuple[str, int], int] = {}

    def table_of(values: dict[tuple[str, int], int]) -> pa.Table:
        flat = [{"k": k, "n": n, "x": x} for (k, n), x in values.items()]
        return pa.Table.from_pylist(flat, schema)

    with table.writer() as writer:
        for step in range(12):
            some = [(f"k{dice.randrange(9)}", dice.randrange(3)) for _ in range(15)]
            new = {key: dice.randrange(9) for key in some}
            read = {key: dice.choice([model[key], -1]) for key in new if key in model}
            handle = writer.upsert(table_of(new), only_if_unchanged=table_of(read))
            lost = {(row["k"], row["n"]) for row in handle.changed.to_pylist()}
            assert lost == {key for key, x in read.items() if x == -1}
            model |= {key: x for key, x in new.items() if key not in lost}
            if step % 5 == 2:
                writer.flush()
        found = writer.scan().to_pylist()
    assert {(row["k"], row["n"]): row["x"] for row in found} == model
