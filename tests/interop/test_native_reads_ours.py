"""Lance's scanner, point lookup and vector search show what our writer wrote, as ours do."""

import datetime
import decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.data.merging import Merge
from support.data.sampled import every
from support.data.tables import MakeTable, region_folders, rows, state
from support.oracles import native
from support.oracles.native import Rows, collect_all, everything, ordered

import memwal
from memwal.writer.region_writer import writer as region_writer

COUNT = 20
"""Keys of each shape."""

KEYS = {
    "int64": pa.table({"id": pa.array([-(2**63), 2**63 - 1, *range(-9, 9)])}),
    "int8": pa.table({"id": pa.array(range(-10, 10), pa.int8())}),
    "uint64": pa.table({"id": pa.array([2**64 - 1, 2**63, *range(18)], pa.uint64())}),
    "text": pa.table({"id": ["", "a", "a\0", "a\0a", "b'", "é", *(f"k{i}" for i in range(14))]}),
    "binary": pa.table({"id": [b"", b"\0", b"\0\xff", b"\xff", *(b"%d\0" % i for i in range(16))]}),
    "large binary": pa.table(
        {"id": pa.array([b"%d" % i for i in range(COUNT)], pa.large_binary())}
    ),
    "integer and text": pa.table(
        {"i": pa.array([n // 2 for n in range(COUNT)], pa.int32()), "t": ["b", "a"] * 10}
    ),
    "text and text": pa.table(
        {"t": ["", "a", "a\0", "a\0a"] * 5, "u": [f"{n}" for n in range(20)]}
    ),
    "binary, bool and integer": pa.table(
        {
            "k": [bytes([n % 3]) for n in range(COUNT)],
            "b": [n % 2 == 0 for n in range(COUNT)],
            "i": pa.array(range(COUNT), pa.uint16()),
        }
    ),
}

PAIR = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string(), nullable=False)])

VALUES = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("maybe", pa.int32()),
        pa.field("pair", PAIR),
        pa.field("list", pa.list_(pa.string())),
        pa.field("pairs", pa.list_(PAIR)),
        pa.field("vector", pa.list_(pa.float32(), 3)),
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("flag", pa.bool_(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("needed", PAIR, nullable=False),
    ]
)


def values(n: int) -> dict[str, Any]:
    """Values of a row; every third one lacks whatever may be absent."""
    pair = {"x": None if n % 2 else n, "y": f"y{n}"}
    there = n % 3 != 0
    return {
        "n": n,
        "maybe": n if there else None,
        "pair": pair if there else None,
        "list": [str(n), None] * (n % 4) if there else None,
        "pairs": [pair, None][: n % 3] if there else None,
        "vector": [n, 0.5, -n] if there else None,
        "time": datetime.datetime(2024, 1, 1, 1, tzinfo=datetime.UTC) if there else None,
        "day": datetime.date(1969, 1, 1 + n % 28) if there else None,
        "flag": n % 2 == 0,
        "text": "t" * (n % 5),
        "needed": pair,
    }


class Model:
    """A table, and what must be in it: a number per key, counted from 0."""

    def __init__(self, table: memwal.Table, keys: pa.Table) -> None:
        self.table = table
        self.keys = keys
        self.wanted: dict[int, int] = {}

    def rows(self, numbers: dict[int, int]) -> pa.Table:
        data = pa.Table.from_pylist([values(n) for n in numbers.values()], schema=VALUES)
        chosen = self.keys.take(list(numbers))
        for position, name in enumerate(chosen.column_names):
            data = data.add_column(position, name, chosen[name])
        return data

    def upsert(self, writer: Any, keys: range, n: int) -> None:
        numbers = {key: n + key for key in keys}
        writer.upsert(self.rows(numbers))
        self.wanted |= numbers

    def delete(self, writer: Any, keys: range) -> None:
        writer.delete(self.keys.take(list(keys)))
        for key in keys:
            self.wanted.pop(key, None)

    def check(self) -> None:
        """Every way to read must show exactly what is wanted."""
        wanted = self.ordered(self.rows(self.wanted))
        assert everything(self.table) == wanted
        assert self.ordered(self.table.lookup(self.keys).to_table()) == wanted
        assert self.ordered(native.lookup(self.table, self.keys)) == wanted

    def ordered(self, rows: pa.Table | Rows) -> Rows:
        return ordered(rows, self.keys.column_names)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", every(2, KEYS, lambda name: name.replace(" ", "-")))
def test_generations(make_table: MakeTable, name: str, merge: Merge) -> None:
    """From the first flush until everything is merged, indexed, published and collected."""
    keys = KEYS[name]
    schema = pa.schema([*keys.schema, *VALUES])
    table = make_table(schema, primary_key=keys.column_names, maintained_indexes=["n_idx"])
    model = Model(table, keys)
    with table.writer() as writer:
        model.upsert(writer, range(12), 100)
        writer.flush()
        model.delete(writer, range(2, 5))
        model.delete(writer, range(18, 19))
    model.check()
    merge(table)
    model.check()
    with table.writer() as writer:
        model.upsert(writer, range(3, 8), 200)
        model.delete(writer, range(6, 7))
        writer.flush()
        model.upsert(writer, range(6, 20), 300)
        model.delete(writer, range(9, 13))
        model.upsert(writer, range(10, 11), 400)
        writer.flush()
        model.delete(writer, range(6, 7))
        model.delete(writer, range(1))
    model.check()
    merge(table)
    assert model.ordered(native.dataset(table).to_table()) == model.ordered(
        model.rows(model.wanted)
    )
    table.build_indexes()
    model.check()
    table.build_snapshot()
    model.check()
    collect_all(table)
    assert not region_folders(table)
    model.check()
    with table.writer() as writer:
        model.upsert(writer, range(9, 11), 500)
        model.delete(writer, range(5, 6))
    model.check()


def test_boolean_keys(make_table: MakeTable, merge: Merge) -> None:
    keys = pa.table({"id": [False, True]})
    table = make_table(pa.schema([*keys.schema, *VALUES]))
    model = Model(table, keys)
    with table.writer() as writer:
        model.upsert(writer, range(2), 1)
        writer.flush()
        model.delete(writer, range(1))
    model.check()
    merge(table)
    model.check()


@pytest.mark.timeout(60)
def test_values_of_sixteen_bytes(make_table: MakeTable, merge: Merge) -> None:
    """Lance wants them aligned to 16 bytes, and streams of the log align to 8 only."""
    fields = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("money", pa.decimal128(12, 2)),
        pa.field("more", pa.struct([pa.field("big", pa.decimal256(50, 1))])),
    ]
    # Names of other lengths move all buffers of an entry, which starts wherever memory was free.
    for length in range(1, 9):
        schema = pa.schema([*fields, pa.field("x" * length, pa.string())])
        table = make_table(schema)
        wanted = [
            {"id": n, "money": value, "more": {"big": value * 2}, "x" * length: "-" * n}
            for n, value in enumerate([decimal.Decimal("0.25"), decimal.Decimal("-3.50")])
        ]
        data = pa.Table.from_pylist(wanted, schema=schema)
        table.upsert(data)
        assert everything(table) == ordered(wanted)
        writer = table.writer()
        writer.upsert(data)
        writer.abort()
        with table.writer() as writer:
            writer.claim()
            assert ordered(writer.scan().to_table()) == ordered(wanted)
        merge(table)
        assert everything(table) == ordered(wanted)


@pytest.mark.timeout(60)
def test_a_panic_in_lance_during_a_flush(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python sees it as something that is no Exception; whoever waits must still be told."""

    class PanicException(BaseException):
        pass

    def panic(*_: Any, **__: Any) -> None:
        raise PanicException("not aligned")

    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        with monkeypatch.context() as patched:
            patched.setattr(region_writer, "write_generation", panic)
            with pytest.raises(memwal.MemWalError, match="PanicException"):
                writer.flush()
        writer.flush()
        assert state(table) == {1: 1}


def test_many_rows_in_one_generation(make_table: MakeTable) -> None:
    """The sidecar that lookups read has pages of 8,192 keys."""
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("n", pa.int64())])
    table = make_table(schema)
    order = np.random.default_rng(7).permutation(20_000)
    with table.writer() as writer:
        writer.upsert(pa.table({"id": [f"{i:05}" for i in order], "n": order}))
        writer.delete(pa.array([f"{i:05}" for i in range(0, 20_000, 7)]))
    found = everything(table)
    assert found == [{"id": f"{i:05}", "n": i} for i in range(20_000) if i % 7]
    keys = pa.table({"id": [f"{i:05}" for i in (0, 1, 8191, 8192, 9999, 16_384, 19_998, 20_000)]})
    looked_up = ordered(table.lookup(keys).to_table())
    assert looked_up == ordered(native.lookup(table, keys))
    assert [row["n"] for row in looked_up] == [1, 8191, 8192, 9999, 16_384, 19_998]


FILTERS = ("n > 2", "n is null", "text = 'new'", "id in (1, 3, 7)", "text like 'o%' and n < 3")


def test_filters(table: memwal.Table) -> None:
    """A filter must not bring back what a newer row or a delete hides."""

    def rows(values: dict[int, int | None], text: str) -> pa.Table:
        return pa.table(
            {"id": list(values), "n": list(values.values()), "text": [text] * len(values)},
            schema=pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string())]),
        )

    table.upsert(rows({key: key for key in range(8)}, "old"))
    table.merge()
    with table.writer() as writer:
        writer.upsert(rows({1: 10, 2: None, 7: 0}, "new"))
        writer.flush()
        writer.upsert(rows({1: 1}, "new"))
        writer.delete(pa.array([3]))
    shown = [
        {row["id"] for row in native.scan(table, filter=condition).to_pylist()}
        for condition in FILTERS
    ]
    assert shown == [{4, 5, 6}, {2}, {1, 2, 7}, {1, 7}, {0}]
    assert shown == [
        {row["id"] for row in table.scan(filter=condition).to_table().to_pylist()}
        for condition in FILTERS
    ]


@pytest.mark.parametrize("index_type", ["IVF_PQ", "IVF_FLAT"])
def test_vector_search(tmp_path: Path, index_type: str) -> None:
    """Lance's search hides what a generation replaced, and finds the rows once they are indexed."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.list_(pa.float32(), 8))]
    )
    points = np.random.default_rng(3).random((310, 8), dtype=np.float32)

    def rows(ids: range) -> pa.Table:
        vectors = pa.FixedSizeListArray.from_arrays(points[list(ids)].ravel(), 8)
        return pa.table({"id": pa.array(ids), "v": vectors}, schema=schema)

    uri = str(tmp_path / "vectors")
    options = {"num_sub_vectors": 4} if index_type == "IVF_PQ" else {}
    lance.write_dataset(rows(range(300)), uri).create_index(
        "v", index_type, num_partitions=2, **options
    )
    table = memwal.enable(
        uri, primary_key=["id"], region_spec="unsharded", maintained_indexes=["v_idx"]
    )
    with table.writer() as writer:
        replaced = pa.table([pa.array([5]), rows(range(300, 301))["v"]], schema=schema)
        writer.upsert(pa.concat_tables([replaced, rows(range(301, 310))]))
        writer.flush()
        writer.delete(pa.array([7, 305]))
    assert native.nearest(table, "v", points[6])[0] == 6
    assert not {5, 7} & set(native.nearest(table, "v", points[5], k=20))
    assert not {5, 7} & set(native.nearest(table, "v", points[7], k=20))
    table.checkpoint()
    collect_all(table)
    for key, point in ((6, 6), (5, 300), (301, 301), (309, 309)):
        assert native.nearest(table, "v", points[point])[0] == key
    for gone, point in ((5, 5), (7, 7), (305, 305)):
        assert gone not in native.nearest(table, "v", points[point], k=20)
