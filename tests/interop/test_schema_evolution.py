"""Rows that were written before the table's schema changed: right for both, or refused by both.

Lance identifies a column by its field id, whatever it is called. Each change is made while rows
are flushed and not merged, or durable in the log and not flushed.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.data.merging import Merge
from support.data.tables import log
from support.oracles import native
from support.oracles.native import Rows, everything, ordered

import memwal

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("a", pa.int32()),
        pa.field("b", pa.int32()),
        pa.field("s", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.int32())])),
        pa.field("l", pa.list_(pa.struct([pa.field("q", pa.int32()), pa.field("r", pa.int32())]))),
        pa.field("v", pa.list_(pa.float32(), 2)),
    ]
)


def row(key: int, n: int) -> dict[str, Any]:
    """A row whose values are all different; every third one lacks its nested values."""
    nested = key % 3 != 0
    return {
        "id": key,
        "a": n,
        "b": n + 1,
        "s": {"x": n + 2, "y": n + 3} if nested else None,
        "l": [{"q": n + 4, "r": n + 5}, None] if nested else None,
        "v": [n, n + 6],
    }


def rows(values: dict[int, int]) -> pa.Table:
    return pa.Table.from_pylist([row(key, n) for key, n in values.items()], schema=SCHEMA)


def rename(dataset: lance.LanceDataset, path: str, name: str) -> None:
    dataset.alter_columns({"path": path, "name": name})


def exchange(dataset: lance.LanceDataset, parent: str, one: str, other: str) -> None:
    rename(dataset, parent + one, "between")
    rename(dataset, parent + other, one)
    rename(dataset, parent + "between", other)


def replace(dataset: lance.LanceDataset, path: str, field: pa.Field) -> None:
    dataset.drop_columns([path])
    dataset.add_columns(pa.schema([field]))


def struct_of(name: str, child: pa.Field) -> pa.Field:
    return pa.field(name, pa.struct([child]))


def changed(value: dict[str, Any] | None, **new: Any) -> dict[str, Any] | None:
    """A struct with other children; a name that is given None loses its child."""
    return None if value is None else {**value, **new}


def without(value: dict[str, Any] | None, *names: str) -> dict[str, Any] | None:
    return None if value is None else {k: v for k, v in value.items() if k not in names}


def within(items: list[Any] | None, change: Callable[[Any], Any]) -> list[Any] | None:
    return None if items is None else [change(item) for item in items]


@dataclass(frozen=True)
class Change:
    """A change of the schema, and what it makes of a row that was written before it."""

    make: Callable[[lance.LanceDataset], object]
    then: Callable[[dict[str, Any]], dict[str, Any]]


CHANGES = {
    "column added": Change(
        lambda d: d.add_columns(pa.field("c", pa.int32())), lambda r: {**r, "c": None}
    ),
    "column dropped": Change(lambda d: d.drop_columns(["a"]), lambda r: without(r, "a") or {}),
    "last column dropped": Change(lambda d: d.drop_columns(["v"]), lambda r: without(r, "v") or {}),
    "column renamed": Change(
        lambda d: rename(d, "a", "z"), lambda r: {**(without(r, "a") or {}), "z": r["a"]}
    ),
    "names exchanged": Change(
        lambda d: exchange(d, "", "a", "b"), lambda r: {**r, "a": r["b"], "b": r["a"]}
    ),
    "name taken over": Change(
        lambda d: (d.drop_columns(["a"]), rename(d, "b", "a")),
        lambda r: {**(without(r, "b") or {}), "a": r["b"]},
    ),
    "column replaced": Change(
        lambda d: replace(d, "a", pa.field("a", pa.int32())), lambda r: {**r, "a": None}
    ),
    "column replaced by text": Change(
        lambda d: replace(d, "a", pa.field("a", pa.string())), lambda r: {**r, "a": None}
    ),
    "child added": Change(
        lambda d: d.add_columns(pa.schema([struct_of("s", pa.field("w", pa.int32()))])),
        lambda r: {**r, "s": changed(r["s"], w=None)},
    ),
    "child dropped": Change(
        lambda d: d.drop_columns(["s.x"]), lambda r: {**r, "s": without(r["s"], "x")}
    ),
    "child renamed": Change(
        lambda d: rename(d, "s.x", "z"),
        lambda r: {**r, "s": r["s"] and {"z": r["s"]["x"], "y": r["s"]["y"]}},
    ),
    "children exchanged": Change(
        lambda d: exchange(d, "s.", "x", "y"),
        lambda r: {**r, "s": r["s"] and {"x": r["s"]["y"], "y": r["s"]["x"]}},
    ),
    "child replaced": Change(
        lambda d: replace(d, "s.y", struct_of("s", pa.field("y", pa.int32()))),
        lambda r: {**r, "s": changed(r["s"], y=None)},
    ),
    "list's child renamed": Change(
        lambda d: rename(d, "l.item.q", "z"),
        lambda r: {**r, "l": within(r["l"], lambda i: i and {"z": i["q"], "r": i["r"]})},
    ),
}

OLD = {1: 100, 2: 200, 3: 300, 4: 400}
NEW = {2: 2000, 3: 3000, 5: 5000}
GONE = 4
LEFT = {1: 100, 2: 2000, 3: 3000, 5: 5000}


@pytest.fixture(params=CHANGES, ids=lambda name: name.replace(" ", "-"))
def change(request: pytest.FixtureRequest) -> Change:
    return CHANGES[request.param]


def each_change_with(*ways: tuple[str, ...], default: int) -> list[Any]:
    """Names of changes, each with all ways; by default with one of the first ``default`` in turn.

    Who wrote the rows has no part in how a change is applied to them.
    """
    return [
        pytest.param(
            name,
            *way,
            id="-".join((name.replace(" ", "-"), *way)),
            marks=() if way == ways[turn % default] else pytest.mark.slow,
        )
        for turn, name in enumerate(CHANGES)
        for way in ways
    ]


@pytest.fixture(scope="module")
def first_old(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table that each test gets a copy of."""
    table = memwal.create(tmp_path_factory.mktemp("old") / "table", SCHEMA, primary_key="id")
    table.upsert(rows(OLD))
    table.merge()
    return table.uri


@pytest.fixture
def old(first_old: str, tmp_path: Path) -> memwal.Table:
    """A table with merged rows."""
    return memwal.open(shutil.copytree(first_old, str(tmp_path / "table")))


def write(table: memwal.Table, who: str, *, flush: bool) -> None:
    """Upsert and delete, with the writer closed, or gone without a flush."""
    if who == "ours":
        writer = table.writer()
        writer.upsert(rows(NEW))
        writer.delete(pa.array([GONE]))
        if flush:
            writer.close()
        else:
            writer.abort()
        return
    shard = native.writer(table)
    native.put(shard, table, rows(NEW))
    shard.delete(pa.table({"id": [GONE]}))
    if flush:
        shard.close()


def expected(change: Change, values: dict[int, int]) -> Rows:
    return ordered([change.then(row(key, n)) for key, n in values.items()])


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("change", "who"), each_change_with(("native",), ("ours",), default=2), indirect=["change"]
)
def test_flushed_rows(old: memwal.Table, change: Change, who: str, merge: Merge) -> None:
    write(old, who, flush=True)
    change.make(native.dataset(old))
    wanted = expected(change, LEFT)
    assert everything(old) == wanted
    keys = pa.table({"id": [5, 4, 1, 2]})
    found = [found for found in wanted if found["id"] in (1, 2, 5)]
    assert ordered(old.lookup(keys).to_table()) == found
    assert ordered(native.lookup(old, keys)) == found
    assert ordered(old.scan(filter="id > 1").to_table()) == wanted[1:]
    result = merge(old)
    assert result.warnings == ()
    assert result.metrics["rows_upserted"] == len(NEW)
    assert ordered(native.dataset(old).to_table()) == wanted
    assert everything(old) == wanted


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("change", "who", "taker"),
    each_change_with(
        ("ours", "native"), ("native", "ours"), ("ours", "ours"), ("native", "native"), default=2
    ),
    indirect=["change"],
)
def test_rows_in_the_log(
    old: memwal.Table, change: Change, who: str, taker: str, merge: Merge
) -> None:
    write(old, who, flush=False)
    change.make(native.dataset(old))
    wanted = expected(change, LEFT)
    if taker == "ours":
        with old.writer() as writer:
            writer.claim()
            assert ordered(writer.scan().to_table()) == wanted
    else:
        with native.writer(old):
            pass
    assert everything(old) == wanted
    merge(old)
    assert ordered(native.dataset(old).to_table()) == wanted


@pytest.mark.few(4)
def test_a_writer_that_stays_open(old: memwal.Table, change: Change, merge: Merge) -> None:
    """It goes on writing the rows that it knows, and they are brought into today's form."""
    with old.writer() as writer:
        writer.upsert(rows(NEW))
        change.make(native.dataset(old))
        assert ordered(writer.scan().to_table()) == expected(change, {**OLD, **NEW})
        writer.flush()
        writer.upsert(rows({1: 1000}))
        writer.delete(pa.array([GONE]))
        assert ordered(writer.scan().to_table()) == expected(change, {**LEFT, 1: 1000})
    wanted = expected(change, {**LEFT, 1: 1000})
    assert everything(old) == wanted
    merge(old)
    assert ordered(native.dataset(old).to_table()) == wanted


@pytest.mark.parametrize("who", ["ours", "native"])
def test_rows_from_before_and_after(old: memwal.Table, who: str, merge: Merge) -> None:
    """Field ids have gaps then, and generations of three schemas are read together."""
    write(old, who, flush=True)
    old_rows = old.scan().to_table().drop_columns(["a"])
    dataset = native.dataset(old)
    dataset.drop_columns(["a"])
    dataset.add_columns(pa.field("c", pa.string()))
    added = old_rows.append_column("c", pa.array(["one"] * old_rows.num_rows))
    first = added.filter(pc.equal(added["id"], 1))
    old.upsert(first)
    rename(native.dataset(old), "c", "a")
    renamed = added.rename_columns([n if n != "c" else "a" for n in added.column_names])
    second = renamed.filter(pc.equal(renamed["id"], 2))
    if who == "ours":
        old.upsert(second)
    else:
        with native.writer(old) as shard:
            native.put(shard, old, second)
    found = everything(old)
    assert {row["id"]: row["a"] for row in found} == {1: "one", 2: "one", 3: None, 5: None}
    assert ordered([{**row, "a": None} for row in found]) == ordered(
        [{**(without(row(key, n), "a") or {}), "a": None} for key, n in LEFT.items()]
    )
    merge(old)
    assert ordered(native.dataset(old).to_table()) == found


def test_what_lance_refuses(old: memwal.Table) -> None:
    """Changes after which rows in the log could not be told apart are not possible at all."""
    dataset = native.dataset(old)
    for refused in (
        lambda: dataset.add_columns({"c": "a + 1"}),
        lambda: dataset.alter_columns({"path": "a", "data_type": pa.int64()}),
        lambda: dataset.alter_columns({"path": "a", "nullable": False}),
        lambda: rename(dataset, "id", "key"),
    ):
        with pytest.raises(OSError, match="MemWAL"):
            refused()


def test_entries_of_the_log_carry_field_ids(old: memwal.Table) -> None:
    """As Lance's do: without them, its replay after a rename reads nulls."""
    native.dataset(old).drop_columns(["a"])
    writer = old.writer()
    writer.upsert(rows(NEW).drop_columns(["a"]))
    writer.abort()
    ours = last_schema(old)
    native.put(native.writer(old), old, rows(NEW).drop_columns(["a"]))
    assert last_schema(old) == ours


def last_schema(table: memwal.Table) -> list[Any]:
    entries = [entry for entry in log(table).values() if not entry.is_sentinel]
    return ids_of(entries[-1].schema)


def ids_of(fields: Any) -> list[Any]:
    """Names and ids of fields, at every level."""
    return [
        (
            field.name,
            (field.metadata or {}).get(b"lance:field_id"),
            ids_of([field.type.field(number) for number in range(field.type.num_fields)]),
        )
        for field in fields
    ]
