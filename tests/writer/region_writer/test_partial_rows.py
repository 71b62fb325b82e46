"""Partial upserts: some columns of a row are given, the rest keep their value."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.data.tables import MakeTable, keys, log, rows
from support.stores.faulty_store import WAL, FaultyStores, Pause

import memwal
from memwal import WriterOptions
from memwal.errors import InvalidInputError, StoreFullError
from memwal.format.paths import TOMBSTONE

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("a", pa.int64()),
        pa.field("b", pa.string()),
        pa.field("c", pa.list_(pa.float32())),
    ]
)


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    """A table with columns to leave out."""
    return memwal.create(str(tmp_path / "t"), SCHEMA, primary_key=["id"], region_spec="unsharded")


def whole(*values: tuple[int, int | None, str | None, list[float] | None]) -> pa.Table:
    """Rows of all columns."""
    return pa.table(list(zip(*values, strict=True)), schema=SCHEMA)


def some(**columns: list[Any]) -> pa.Table:
    """Rows of some columns."""
    return pa.table({name: pa.array(v, SCHEMA.field(name).type) for name, v in columns.items()})


def content(found: Any) -> dict[int, tuple[Any, ...]]:
    """All rows by key."""
    table = found.scan().to_table()
    assert len(set(table.column("id").to_pylist())) == table.num_rows
    return {row["id"]: (row["a"], row["b"], row["c"]) for row in table.to_pylist()}


WHERE = ["memtable", "sealed", "flushed", "merged"]


@pytest.mark.parametrize("where", WHERE)
def test_the_other_columns_keep_their_value(table: memwal.Table, where: str) -> None:
    with table.writer() as writer:
        writer.upsert(whole((1, 1, "one", [1.0]), (2, 2, "two", None), (3, 3, None, [])))
        writer.delete(keys(3))
        if where != "memtable":
            writer.flush()
        if where == "merged":
            table.merge()
        writer.upsert(some(id=[1, 3, 4], b=["uno", "tres", "cuatro"]), partial=True)
        writer.upsert(some(id=[2], a=[None]), partial=True)

        expected = {
            1: (1, "uno", [1.0]),
            2: (None, "two", None),
            3: (None, "tres", None),
            4: (None, "cuatro", None),
        }
        assert content(writer) == expected
    assert content(table) == expected


def test_every_stored_row_is_whole(table: memwal.Table) -> None:
    """So that other clients, which know nothing of it, read the same."""
    with table.writer() as writer:
        writer.upsert(whole((1, 1, "one", [1.0])))
        writer.upsert(some(id=[1], b=["uno"]), partial=True)
        entry = max(log(table).items())[1]
    (batch,) = entry.batches
    assert batch.schema.names == ["id", "a", "b", "c", TOMBSTONE]
    assert batch.to_pylist() == [{"id": 1, "a": 1, "b": "uno", "c": [1.0], TOMBSTONE: False}]


def test_all_columns_may_be_given_and_only_the_key(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(whole((1, 1, "one", [1.0])), partial=True)
        writer.upsert(some(id=[1, 2]), partial=True)
        assert content(writer) == {1: (1, "one", [1.0]), 2: (None, None, None)}


def test_nothing_is_nothing(table: memwal.Table) -> None:
    with table.writer() as writer:
        assert writer.upsert(some(id=[], b=[]), partial=True).done()
    assert log(table) == {}


class TestRefused:
    def test_without_being_asked_for(self, table: memwal.Table) -> None:
        with table.writer() as writer, pytest.raises(InvalidInputError, match="partial=True"):
            writer.upsert(some(id=[1], b=["x"]))

    def test_new_rows_that_lack_what_may_not_be_null(self, tmp_path: Path) -> None:
        schema = SCHEMA.set(1, pa.field("a", pa.int64(), nullable=False))
        table = memwal.create(
            str(tmp_path / "n"), schema, primary_key=["id"], region_spec="unsharded"
        )
        with table.writer() as writer:
            writer.upsert(whole((1, 1, "one", None)).cast(schema))
            writer.upsert(some(id=[1], b=["uno"]), partial=True)
            with pytest.raises(InvalidInputError):
                writer.upsert(some(id=[1, 2], b=["x", "y"]), partial=True)
            assert content(writer) == {1: (1, "uno", None)}


class TestAtTheSameTime:
    def test_different_columns_of_one_row_are_all_kept(self, table: memwal.Table) -> None:
        """Each completes the row with what the others wrote, whoever comes first."""
        options = WriterOptions(max_memtable_rows=20, max_sealed_memtables=4)
        with table.writer(options=options) as writer:
            writer.upsert(whole(*((n, -1, "", None) for n in range(4))))

            def go(thread: int) -> None:
                for step in range(25):
                    column = {0: {"a": [step] * 4}, 1: {"b": [str(step)] * 4}}[thread % 2]
                    writer.upsert(some(id=[0, 1, 2, 3], **column), partial=True)

            with ThreadPoolExecutor(2) as pool:
                list(pool.map(go, range(2)))
            assert content(writer) == dict.fromkeys(range(4), (24, "24", None))
        assert content(table) == dict.fromkeys(range(4), (24, "24", None))

    def test_a_whole_row_written_meanwhile_counts(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        """One that is queued but not in the log when the partial one gets its place."""
        store = faults.of(table.location)
        with table.writer() as writer:
            writer.upsert(whole((1, 1, "one", None)))
            pause = store.pause("create", WAL)
            with pause.holding(writer.upsert, whole((1, 2, "two", None))) as first:
                second = writer.upsert(some(id=[1], b=["zwei"]), partial=True, wait=False)
            first.result()
            second.wait()
            assert content(writer) == {1: (2, "zwei", None)}

    def test_it_fails_with_the_write_it_builds_on(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        store = faults.of(table.location)
        with table.writer() as writer:
            writer.upsert(whole((1, 1, "one", None)))
            pause = Pause()

            def stand_and_fail() -> None:
                pause.stand()
                raise StoreFullError("full")

            store.act("create", stand_and_fail, key=WAL)
            with pause.holding(writer.upsert, whole((1, 2, "two", None))) as first:
                second = writer.upsert(some(id=[1], b=["zwei"]), partial=True, wait=False)
            with pytest.raises(StoreFullError):
                first.result()
            with pytest.raises(StoreFullError):
                second.wait()
            assert content(writer) == {1: (1, "one", None)}
            writer.upsert(some(id=[1], b=["zwei"]), partial=True)
            assert content(writer) == {1: (1, "zwei", None)}

    def test_flushes_while_a_row_is_looked_up_lose_nothing(
        self, faults: FaultyStores, table: memwal.Table
    ) -> None:
        """What was written since the lookup may have left memory: then it is looked up again."""
        store = faults.of(table.location)
        with table.writer() as writer:
            writer.upsert(whole((1, 1, "one", None)))
            writer.flush()

            def flush_another() -> None:
                writer.upsert(whole((1, 2, "two", None)))
                writer.flush()

            # By then the lookup has decided to read the first generation, and no other.
            rule = store.act("get", flush_another, key="*_gen_1/bloom_filter.bin", after=True)
            writer.upsert(some(id=[1], b=["zwei"]), partial=True)
            assert rule.hits == 1
            assert content(writer) == {1: (2, "zwei", None)}


def test_buffered_ones_build_on_buffered_ones(table: memwal.Table) -> None:
    options = WriterOptions(durable=False, buffer_interval=3600)
    with table.writer(options=options) as writer:
        writer.upsert(whole((1, 1, "one", None)))
        writer.upsert(some(id=[1], b=["uno"]), partial=True)
        handle = writer.upsert(some(id=[1], a=[7]), partial=True)
        assert content(writer) == {1: (7, "uno", None)}
        assert not handle.done()
    assert content(table) == {1: (7, "uno", None)}


def test_composite_keys_and_many_regions(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("k", pa.string(), nullable=False),
            pa.field("n", pa.int32(), nullable=False),
            pa.field("x", pa.int64()),
            pa.field("y", pa.int64()),
        ]
    )
    table = memwal.create(
        str(tmp_path / "t"), schema, primary_key=["k", "n"], region_spec="bucket:k:4"
    )
    model: dict[tuple[str, int], list[int | None]] = {}
    chance = random.Random(7)
    with table.writer() as writer:
        for step in range(20):
            count = chance.randint(1, 30)
            ks = [f"k{chance.randint(0, 9)}" for _ in range(count)]
            ns = [chance.randint(0, 3) for _ in range(count)]
            values = [chance.randint(0, 99) for _ in range(count)]
            column = chance.choice(["x", "y"])
            data = pa.table(
                {"k": ks, "n": pa.array(ns, pa.int32()), column: pa.array(values, pa.int64())}
            )
            writer.upsert(data, partial=True)
            for key, value in zip(zip(ks, ns, strict=True), values, strict=True):
                model.setdefault(key, [None, None])["xy".index(column)] = value
            if step % 7 == 3:
                writer.flush()
            if step % 11 == 5:
                table.merge()
        for found in (writer, table):
            if found is table:
                writer.close()
            got = found.scan().to_table().to_pylist()
            assert {(r["k"], r["n"]): [r["x"], r["y"]] for r in got} == model


def test_after_another_writer_took_over(make_table: MakeTable) -> None:
    table = make_table(buckets=2)
    with table.writer() as first:
        first.upsert(rows({n: n for n in range(10)}))
    with table.writer() as second:
        second.upsert(pa.table({"id": pa.array([3]), "text": ["x"]}), partial=True)
        assert second.lookup(keys(3)).to_pylist() == [{"id": 3, "n": 3, "text": "x"}]
