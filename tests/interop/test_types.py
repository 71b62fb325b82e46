"""Columns and keys of every type: ours written and Lance's read, and the other way round."""

from typing import Any

import pyarrow as pa
import pytest
from support.data.columns import STORED, Column, shown, shown_rows, side_by_side
from support.data.merging import Merge
from support.data.sampled import drawn, every
from support.data.tables import MakeTable
from support.oracles import native

import memwal

pytestmark = pytest.mark.usefixtures("quick_faults")

# Lance's scanner shows them as the bytes they are stored as, whoever wrote them.
SHOWN_AS_BYTES = ("json",)
COLUMNS = [column for column in STORED if column.name not in SHOWN_AS_BYTES]
# The others stand side by side by default; these have a table of their own as well.
ALONE = ("null", "text-view", "list-of-structs", "dictionary", "large-values")
FORMS = [
    (column, nullable)
    for nullable in (True, False)
    for column in COLUMNS
    if nullable or column.may_be_required
]


def forms(seed: str) -> list[Any]:
    """Columns, with and without nulls, as parameters."""

    def by_default(form: tuple[Column, bool]) -> bool:
        column, nullable = form
        return column.name in ALONE if nullable else column.name == "list"

    return drawn(15, FORMS, seed=seed, ids=str, default=by_default)


def changed(data: pa.Table) -> tuple[pa.Table, dict[int, dict[str, str]]]:
    """The first row with the last row's value, and what is there when the second is deleted."""
    last = compact(data.slice(data.num_rows - 1))
    again = last.set_column(0, data.schema.field(0), pa.array([0]))
    wanted = shown(data)
    return again, {
        k: wanted[data.num_rows - 1] if k == 0 else v for k, v in wanted.items() if k != 1
    }


def compact(rows: pa.Table) -> pa.Table:
    """The same rows without those that a slice hides: at some of them Lance's own writer panics."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    aligned = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)
    return pa.ipc.open_stream(sink.getvalue(), options=aligned).read_all()


@pytest.mark.few(3)
@pytest.mark.parametrize(("column", "nullable"), forms("lance reads"))
def test_lance_reads_ours(
    make_table: MakeTable, column: Column, nullable: bool, merge: Merge
) -> None:
    check_lance_reads_ours(make_table, column.rows(nullable=nullable), merge)


SIDE_BY_SIDE = pytest.mark.parametrize("nullable", [True, False], ids=["nulls", "required"])


@pytest.mark.few(1)
@SIDE_BY_SIDE
def test_lance_reads_columns_of_every_type(
    make_table: MakeTable, nullable: bool, merge: Merge
) -> None:
    check_lance_reads_ours(make_table, side_by_side(COLUMNS, nullable=nullable), merge)


def check_lance_reads_ours(make_table: MakeTable, data: pa.Table, merge: Merge) -> None:
    table = make_table(data.schema)
    again, wanted = changed(data)
    with table.writer() as writer:
        writer.upsert(data)
        writer.flush()
        assert shown(native.scan(table)) == shown(data)
        writer.upsert(again)
        writer.delete(pa.array([1]))
    assert shown(native.scan(table)) == wanted
    found = native.lookup(table, data.select(["id"]))
    assert shown_rows(found) == wanted
    merge(table)
    assert shown(native.scan(table)) == wanted
    assert shown(native.dataset(table).to_table()) == wanted


@pytest.mark.few(3)
@pytest.mark.parametrize(("column", "nullable"), forms("ours reads"))
def test_ours_reads_what_lance_wrote(
    make_table: MakeTable, column: Column, nullable: bool, merge: Merge
) -> None:
    check_ours_reads_what_lance_wrote(make_table, column.rows(nullable=nullable), merge)


@pytest.mark.few(1)
@SIDE_BY_SIDE
def test_ours_reads_columns_of_every_type(
    make_table: MakeTable, nullable: bool, merge: Merge
) -> None:
    check_ours_reads_what_lance_wrote(make_table, side_by_side(COLUMNS, nullable=nullable), merge)


def check_ours_reads_what_lance_wrote(make_table: MakeTable, data: pa.Table, merge: Merge) -> None:
    table = make_table(data.schema)
    again, wanted = changed(data)
    shard = native.writer(table)
    put(shard, table, data)
    with table.writer() as writer:
        writer.claim()
        assert shown(writer.scan().to_table()) == shown(data)
    with native.writer(table) as shard:
        put(shard, table, again)
        shard.delete(pa.table({"id": [1]}))
    assert shown(table.scan().to_table()) == wanted
    assert shown(table.lookup(pa.array(range(data.num_rows))).to_table()) == wanted
    merge(table)
    assert shown(table.scan().to_table()) == wanted


@pytest.mark.parametrize(
    "column", drawn(8, COLUMNS, seed="lance replays", default=lambda c: c.name in ALONE)
)
def test_lance_replays_ours(make_table: MakeTable, column: Column) -> None:
    check_lance_replays_ours(make_table, column.rows())


def test_lance_replays_columns_of_every_type(make_table: MakeTable) -> None:
    check_lance_replays_ours(make_table, side_by_side(COLUMNS))


def check_lance_replays_ours(make_table: MakeTable, data: pa.Table) -> None:
    table = make_table(data.schema)
    again, wanted = changed(data)
    writer = table.writer()
    writer.upsert(data)
    writer.upsert(again)
    writer.delete(pa.array([1]))
    writer.abort()
    with native.writer(table):
        pass
    assert shown(table.scan().to_table()) == wanted
    assert shown(native.scan(table)) == wanted


def test_json(make_table: MakeTable, merge: Merge) -> None:
    column = next(column for column in STORED if column.name == "json")
    table = make_table(column.schema())
    table.upsert(column.rows())
    as_bytes = shown(native.scan(table))
    merge(table)
    assert shown(native.dataset(table).to_table()) == shown(column.rows())
    assert shown(native.scan(table)) == as_bytes


KEYS: dict[str, pa.Array] = {
    "text": pa.array(["", "\0", "a\0b", "é😀" * 2000]),
    "large-text": pa.array(["", "\0", "'`", "e\u0301"], pa.large_string()),
    "binary": pa.array([b"", b"\0", b"\0\xff", b"\xff" * 6000]),
    "large-binary": pa.array([b"", b"\0", b"\0\0", b"a"], pa.large_binary()),
    "bool": pa.array([True, False]),
    **{
        f"int{bits}": pa.array([-(1 << bits - 1), -1, 0, (1 << bits - 1) - 1], f"int{bits}")
        for bits in (8, 16, 32, 64)
    },
    **{
        f"uint{bits}": pa.array([0, 1, 1 << bits - 1, (1 << bits) - 1], f"uint{bits}")
        for bits in (8, 16, 32, 64)
    },
}
COMPOSITE = [
    ("text", "int64"),
    ("binary", "text"),
    ("uint8", "large-text"),
    ("bool", "int16"),
    ("large-binary", "uint64"),
    ("int32", "bool"),
    ("int8", "uint32"),
]


def check_keys(make_table: MakeTable, keys: dict[str, pa.Array], who: str) -> None:
    count = min(len(values) for values in keys.values())
    keys = {name: values.slice(0, count) for name, values in keys.items()}
    schema = pa.schema(
        [
            *(pa.field(n, values.type, nullable=False) for n, values in keys.items()),
            ("n", pa.int64()),
        ]
    )
    table = make_table(schema, primary_key=list(keys))
    data = pa.table({**keys, "n": pa.array(range(count))}, schema=schema)
    gone = data.select(list(keys)).slice(0, 1)
    if who == "ours":
        with table.writer() as writer:
            writer.upsert(data)
            writer.flush()
            writer.upsert(data)
            writer.delete(gone)
    else:
        with native.writer(table) as shard:
            put(shard, table, data)
        with native.writer(table) as shard:
            put(shard, table, data)
            shard.delete(gone)
    for settle in (lambda: None, table.merge):
        settle()
        key = list(keys)
        wanted = native.ordered(data.slice(1), key)
        assert native.ordered(native.scan(table), key) == wanted
        assert native.ordered(table.scan().to_table(), key) == wanted
        assert native.ordered(native.lookup(table, data.select(key)), key) == wanted
        assert table.lookup(data.select(key)).to_pylist() == data.slice(1).to_pylist()


@pytest.mark.few(3)
@pytest.mark.parametrize("who", ["ours", "native"])
@pytest.mark.parametrize("name", every(3, KEYS))
def test_a_key(make_table: MakeTable, name: str, who: str) -> None:
    check_keys(make_table, {"k": KEYS[name]}, who)


@pytest.mark.few(3)
@pytest.mark.parametrize("who", ["ours", "native"])
@pytest.mark.parametrize("names", COMPOSITE, ids="-".join)
def test_a_composite_key(make_table: MakeTable, names: tuple[str, str], who: str) -> None:
    check_keys(make_table, {"a": KEYS[names[0]], "b": KEYS[names[1]]}, who)


def put(shard: Any, table: memwal.Table, rows: pa.Table) -> None:
    """Lance wants exactly the table's schema, down to the metadata of its fields."""
    shard.put(pa.Table.from_arrays(rows.columns, schema=table.schema))
