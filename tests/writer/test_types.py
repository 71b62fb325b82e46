"""Columns and keys of every type, through the writer and every read; and what is refused, when."""

import itertools
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data.columns import REFUSED, STORED, Column, Refused, shown, side_by_side
from support.data.sampled import drawn, every
from support.data.tables import SCHEMA, MakeTable, log, rows, state

import memwal
from memwal.errors import InvalidInputError

pytestmark = pytest.mark.usefixtures("quick_faults")

SOME = {column.name: column for column in STORED}
# The others stand side by side by default; these have a table of their own as well.
ALONE = ("null", "text-view", "list-of-structs", "dictionary")


@pytest.mark.few(1)
@pytest.mark.parametrize("nullable", [True, False], ids=["nulls", "required"])
def test_columns_of_every_type_side_by_side(make_table: MakeTable, nullable: bool) -> None:
    check_rows(make_table, side_by_side(STORED, nullable=nullable))


@pytest.mark.parametrize(
    "column",
    drawn(10, STORED, seed="a column", default=lambda c: c.name in (*ALONE, "large-values")),
)
def test_a_column(make_table: MakeTable, column: Column) -> None:
    check_rows(make_table, column.rows())


def check_rows(make_table: MakeTable, data: pa.Table) -> None:
    """Upserted, read, replayed, flushed, overwritten, deleted and merged."""
    wanted = shown(data)
    table = make_table(data.schema)
    stored = table.schema

    writer = table.writer()
    writer.upsert(data)
    assert shown(writer.scan().to_table()) == wanted
    assert shown(writer.lookup(data.column("id")).to_table()) == wanted
    writer.abort()

    with table.writer() as writer:
        writer.claim()
        assert shown(writer.scan().to_table()) == wanted
        writer.flush()
        assert shown(table.scan().to_table()) == wanted
        assert shown(table.lookup(data.column("id")).to_table()) == wanted
        assert table.scan().to_table().schema.types == stored.types
        # The first row again, with the last value; and the second one goes.
        again = data.slice(data.num_rows - 1).set_column(0, data.schema.field(0), pa.array([0]))
        writer.upsert(again)
        writer.delete(pa.array([1]))
        wanted = {**wanted, 0: wanted[data.num_rows - 1]}
        wanted.pop(1)
        assert shown(writer.scan().to_table()) == wanted
    assert shown(table.scan().to_table()) == wanted
    assert table.merge().warnings == ()
    assert shown(table.scan().to_table()) == wanted
    assert shown(table.base().dataset.to_table()) == wanted
    assert shown(table.lookup(data.column("id")).to_table()) == wanted


@pytest.mark.parametrize(
    "column", drawn(10, STORED, seed="partial", default=lambda c: c.name in ALONE)
)
def test_a_partial_upsert_beside_a_column(make_table: MakeTable, column: Column) -> None:
    check_partial_upserts(make_table, column.rows())


def test_a_partial_upsert_beside_columns_of_every_type(make_table: MakeTable) -> None:
    check_partial_upserts(make_table, side_by_side(STORED))


def check_partial_upserts(make_table: MakeTable, data: pa.Table) -> None:
    """The columns keep their values, wherever the row is: in memory, flushed, or merged."""
    wanted = shown(data)
    table = make_table(data.schema.append(pa.field("n", pa.int64())))
    with table.writer() as writer:
        writer.upsert(data.append_column("n", pa.array([0] * data.num_rows, pa.int64())))
        for n, settle in enumerate((lambda: None, writer.flush, table.merge), start=1):
            settle()
            part = data.select(["id"]).append_column("n", pa.array([n] * data.num_rows))
            writer.upsert(part, partial=True)
            found = writer.scan().to_table()
            assert set(found.column("n").to_pylist()) == {n}
            assert shown(found.drop_columns("n")) == wanted
    assert shown(table.scan().to_table().drop_columns("n")) == wanted


@pytest.mark.parametrize("refused", REFUSED, ids=str)
def test_what_lance_cannot_keep_is_refused_with_the_table(
    make_table: MakeTable, refused: Refused
) -> None:
    """Else rows would be acknowledged that can never be flushed, merged or read."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), refused.field])

    with pytest.raises(InvalidInputError, match=r"\bv\b"):
        make_table(schema, data_storage_version=refused.version)


@pytest.mark.parametrize("refused", REFUSED[7:], ids=str)
def test_what_lance_cannot_keep_is_refused_where_the_table_exists(
    tmp_path: Any, refused: Refused
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), refused.field])
    uri = str(tmp_path / "table")
    lance.write_dataset(schema.empty_table(), uri, data_storage_version=refused.version)

    with pytest.raises(InvalidInputError, match=r"\bv\b"):
        memwal.enable(uri, primary_key=["id"], region_spec="unsharded")


def test_a_null_struct_where_the_files_cannot_hold_one(make_table: MakeTable) -> None:
    """Version 2.0 has structs, but none that are null: refused before it is acknowledged."""
    column = SOME["struct"]
    table = make_table(column.schema(), data_storage_version="2.0")
    with table.writer() as writer:
        writer.upsert(column.rows().slice(0, 1))
        with pytest.raises(InvalidInputError, match=r"\bv\b"):
            writer.upsert(column.rows())
    assert len(log(table)) == 1
    table.merge()
    assert shown(table.scan().to_table()) == shown(column.rows().slice(0, 1))


# Each form that a caller may hand in; the casts of single types are in tests/inputs/test_casts.py.
INPUTS: dict[str, tuple[pa.DataType, pa.Array | pa.ChunkedArray]] = {
    "text from a view": (pa.string(), pa.array(["", "x" * 40, None], pa.string_view())),
    "text from nulls": (pa.string(), pa.nulls(3)),
    "binary from a view": (pa.binary(), pa.array([b"", b"x" * 40, None], pa.binary_view())),
    "dictionary from a wider one": (
        pa.dictionary(pa.int32(), pa.string()),
        pa.array(["a", None, "b"]).cast(pa.dictionary(pa.int64(), pa.string())),
    ),
    "dictionary in chunks": (
        pa.dictionary(pa.int32(), pa.string()),
        pa.chunked_array(
            [
                pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["a"])),
                pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array(["b", "c"])),
            ]
        ),
    ),
    "vectors from lists": (
        pa.list_(pa.float32(), 2),
        pa.array([[1.0, 0.1], None, [3.0, 4.0]]),
    ),
    "list with other names inside": (
        pa.list_(pa.int32()),
        pa.array([[1], None, []], pa.list_(pa.field("element", pa.int32()))),
    ),
    "a slice of structs": (
        pa.struct([("a", pa.int64())]),
        pa.array([{"a": 0}, {"a": 1}, None, {"a": 2}], pa.struct([("a", pa.int64())])).slice(1, 3),
    ),
    "a slice of bools": (pa.bool_(), pa.array([True, False, None, True, False]).slice(1, 3)),
    "chunks": (pa.string(), pa.chunked_array([["a"], [], [None, "c"]], pa.string())),
}


@pytest.mark.parametrize("name", INPUTS, ids=lambda name: name.replace(" ", "-"))
def test_other_forms_of_the_same_values(make_table: MakeTable, name: str) -> None:
    """Taken as the table's type, or refused with the column's name before anything is written."""
    kind, values = INPUTS[name]
    table = make_table(pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", kind)]))
    data = pa.table({"id": pa.array([0, 1, 2]), "v": values})
    wanted = shown(data.set_column(1, "v", values.cast(kind)))
    with table.writer() as writer:
        writer.upsert(data)
        assert shown(writer.scan().to_table()) == wanted
    assert shown(table.scan().to_table()) == wanted
    assert table.scan().to_table().schema.field("v").type == kind


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        pytest.param(pa.int32(), pa.array([1, 2**31], pa.int64()), id="narrower"),
        pytest.param(
            pa.string(),
            pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"])),
            id="runs",
        ),
        pytest.param(pa.timestamp("us"), pa.array([0], pa.timestamp("us", "UTC")), id="a-zone"),
        pytest.param(
            pa.struct([pa.field("a", pa.int32(), nullable=False)]),
            pa.array([{"a": None}], pa.struct([("a", pa.int32())])),
            id="null-in-a-required-child",
        ),
        pytest.param(
            pa.list_(pa.field("item", pa.int32(), nullable=False)),
            pa.array([[None]], pa.list_(pa.int32())),
            id="null-in-a-list-without",
        ),
        pytest.param(
            pa.string(),
            pa.StringArray.from_buffers(
                1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"), None
            ),
            id="text-that-is-no-utf-8",
        ),
        pytest.param(pa.json_(), pa.array(["{"], pa.string()).cast(pa.json_()), id="no-json"),
        pytest.param(
            pa.json_(),
            pa.array(['{"a": 1, "\\u0061": 2}'], pa.string()).cast(pa.json_()),
            id="json-with-a-name-twice",
        ),
        pytest.param(
            pa.large_string(),
            pa.array([b"\xff"], pa.large_binary()).view(pa.large_string()),
            id="large-text-that-is-no-utf-8",
        ),
    ],
)
def test_other_values_are_refused(
    make_table: MakeTable, kind: pa.DataType, values: pa.Array
) -> None:
    table = make_table(pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", kind)]))
    data = pa.table({"id": pa.array(range(len(values))), "v": values})
    with table.writer() as writer:
        writer.claim()
        with pytest.raises(InvalidInputError, match=r"\bv\b"):
            writer.upsert(data)
        assert not log(table)
        writer.upsert(pa.table({"id": pa.array([7]), "v": pa.nulls(1)}))
    assert table.scan().to_table().column("id").to_pylist() == [7]


class TestUnusualData:
    def test_empty_batches(self, make_table: MakeTable) -> None:
        table = make_table()
        nothing = [pa.array([], field.type) for field in SCHEMA]
        empty = [pa.record_batch(nothing, schema=SCHEMA)]
        with table.writer() as writer:
            writer.upsert(rows({}))
            writer.upsert(pa.Table.from_batches([*empty, *rows({1: 1}).to_batches(), *empty]))
            writer.delete(pa.array([], pa.int64()))
            writer.upsert(rows({}).select(["id", "n"]), partial=True)
        assert state(table) == {1: 1}
        assert len(log(table)) == 1

    @pytest.mark.parametrize(
        "data",
        [
            pa.table({}),
            pa.Table.from_struct_array(pa.array([{}, {}], pa.struct([]))),
            pa.record_batch([], schema=pa.schema([])),
        ],
        ids=["no-rows", "rows", "batch"],
    )
    def test_no_columns(self, make_table: MakeTable, data: Any) -> None:
        table = make_table()
        with table.writer() as writer:
            writer.claim()
            for write in (writer.upsert, writer.delete, lambda d: writer.upsert(d, partial=True)):
                with pytest.raises(InvalidInputError, match="id"):
                    write(data)
        assert not log(table)

    def test_a_row_of_ten_megabytes(self, make_table: MakeTable) -> None:
        table = make_table()
        text = "é" * (5 << 20)
        with table.writer() as writer:
            writer.upsert(pa.table({"id": [1], "n": [1], "text": [text]}))
            writer.upsert(rows({2: 2}))
            assert writer.lookup(pa.array([1])).to_table().column("text").to_pylist() == [text]
        table.merge()
        assert table.lookup(pa.array([1])).to_table().column("text").to_pylist() == [text]

    def test_hundreds_of_columns(self, make_table: MakeTable) -> None:
        names = [f"c{number}" for number in range(300)]
        schema = pa.schema(
            [pa.field("id", pa.int64(), nullable=False), *((name, pa.int32()) for name in names)]
        )
        table = make_table(schema)
        data = pa.table(
            {"id": [1, 2], **{name: [n, None] for n, name in enumerate(names)}}, schema=schema
        )
        with table.writer() as writer:
            writer.upsert(data)
            writer.upsert(pa.table({"id": [2], "c299": pa.array([7], pa.int32())}), partial=True)
        found = table.scan().to_table().sort_by("id")
        assert found.slice(0, 1).to_pylist() == data.slice(0, 1).to_pylist()
        assert found.slice(1).to_pylist() == [{**data.slice(1).to_pylist()[0], "c299": 7}]
        table.merge()
        assert table.scan().to_table().sort_by("id").to_pylist() == found.to_pylist()

    def test_names_of_columns(self, make_table: MakeTable) -> None:
        names = ["a b", '"', "é", "Select", "A", "'", "-", "%s", "a" * 300]
        schema = pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                *((name, pa.int64()) for name in names),
                ("a", pa.int64()),
            ]
        )
        table = make_table(schema)
        values = {name: [number, 100 + number] for number, name in enumerate(names)}
        data = pa.table({"id": [1, 2], **values, "a": [-1, -2]}, schema=schema)
        with table.writer() as writer:
            writer.upsert(data)
            assert writer.scan().to_table().to_pylist() == data.to_pylist()
            writer.upsert(data.select(["id", "a"]).slice(1), partial=True)
        for name in names:
            assert table.scan(columns=[name]).to_table().to_pydict() == {name: values[name]}
        table.merge()
        assert table.scan().to_table().sort_by("id").to_pylist() == data.to_pylist()
        for name in names:
            assert (
                table.lookup(pa.array([2])).to_table().column(name).to_pylist() == values[name][1:]
            )

    @pytest.mark.parametrize("name", ["`", "a`b", "", "a.b"])
    def test_names_that_lance_cannot_read(self, make_table: MakeTable, name: str) -> None:
        """It makes such a table, and then no query finds the column."""
        with pytest.raises(InvalidInputError):
            make_table(pa.schema([pa.field("id", pa.int64(), nullable=False), (name, pa.int64())]))


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    **{
        f"int{bits}": (getattr(pa, f"int{bits}")(), [-(1 << bits - 1), (1 << bits - 1) - 1, 0, -1])
        for bits in (8, 16, 32, 64)
    },
    **{
        f"uint{bits}": (getattr(pa, f"uint{bits}")(), [(1 << bits) - 1, 0, 1 << bits - 1, 1])
        for bits in (8, 16, 32, 64)
    },
    "bool": (pa.bool_(), [True, False, True, False]),
    "text": (pa.string(), ["", "\0", "a\0b", "é😀" * 200]),
    "large-text": (pa.large_string(), ["", "\0\0", "\0", "'`\"\\%_"]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\xff", b"\xff" * 600]),
    "large-binary": (pa.large_binary(), [b"", b"\0\0", b"\0", b"a"]),
}
PAIRS = list(itertools.product(KEYS, KEYS))


def check_keys(make_table: MakeTable, keys: dict[str, pa.Array]) -> None:
    """Each key is one row, however it is written again, replayed, flushed, deleted and merged."""
    names = list(keys)
    schema = pa.schema(
        [*(pa.field(name, keys[name].type, nullable=False) for name in names), ("n", pa.int64())]
    )
    table = make_table(schema, primary_key=names)
    count = len(next(iter(keys.values())))

    def data(n: int) -> pa.Table:
        return pa.table({**keys, "n": pa.array([n + i for i in range(count)])}, schema=schema)

    def check(reads: Any, wanted: pa.Table) -> None:
        found = reads.scan().to_table()
        order = [("n", "ascending")]
        assert found.sort_by(order).to_pylist() == wanted.sort_by(order).to_pylist()
        assert reads.lookup(data(0).select(names)).to_pylist() == wanted.to_pylist()

    writer = table.writer()
    writer.upsert(data(0))
    writer.upsert(data(100))
    check(writer, data(100))
    writer.abort()
    with table.writer() as writer:
        writer.claim()
        writer.flush()
        writer.upsert(data(200).slice(1))
        wanted = pa.concat_tables([data(100).slice(0, 1), data(200).slice(1)])
        check(writer, wanted)
        writer.flush()
        check(table, wanted)
        table.merge()
        check(table, wanted)
        writer.delete(data(0).select(names).slice(0, 1))
        check(writer, wanted.slice(1))
    table.merge()
    check(table, wanted.slice(1))
    assert table.base().dataset.count_rows() == count - 1


@pytest.mark.few(4)
@pytest.mark.parametrize("name", every(2, KEYS))
def test_a_key(make_table: MakeTable, name: str) -> None:
    kind, values = KEYS[name]
    check_keys(make_table, {"k": pa.array(list(dict.fromkeys(values)), kind)})


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("é😀" * 11_000, id="text"),
        pytest.param(b"\xff" * 66_000, id="binary", marks=pytest.mark.slow),
    ],
)
def test_a_key_longer_than_two_bytes_count(make_table: MakeTable, key: str | bytes) -> None:
    check_keys(make_table, {"k": pa.array([key[:0], key])})


def both(first: str, second: str) -> dict[str, pa.Array]:
    """Every value of one type with every one of the other."""
    (a, ones), (b, others) = KEYS[first], KEYS[second]
    pairs = list(itertools.product(dict.fromkeys(ones), dict.fromkeys(others)))
    return {
        "a": pa.array([one for one, _ in pairs], a),
        "b": pa.array([other for _, other in pairs], b),
    }


@pytest.mark.parametrize(("first", "second"), drawn(10, PAIRS, seed="composite keys"))
def test_every_composite_key(make_table: MakeTable, first: str, second: str) -> None:
    check_keys(make_table, both(first, second))


def test_a_key_of_every_type(make_table: MakeTable) -> None:
    columns = {
        f"k{number}": pa.array(values, kind) for number, (kind, values) in enumerate(KEYS.values())
    }
    check_keys(make_table, columns)


def test_text_keys_that_look_alike(make_table: MakeTable) -> None:
    """Composed and decomposed letters, and zeros that move between columns, are different keys."""
    values = [("é", ""), ("e\u0301", ""), ("a\0", "b"), ("a", "\0b"), ("a\0b", ""), ("", "a\0b")]
    check_keys(
        make_table,
        {"a": pa.array([a for a, _ in values]), "b": pa.array([b for _, b in values])},
    )


@pytest.mark.parametrize(
    "kind",
    [
        pa.float64(),
        pa.date32(),
        pa.timestamp("us"),
        pa.decimal128(10, 2),
        pa.list_(pa.int64()),
        pa.dictionary(pa.int32(), pa.string()),
        pa.binary(4),
        pa.string_view(),
    ],
    ids=str,
)
def test_other_types_are_no_keys(make_table: MakeTable, kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("k", kind, nullable=False), ("n", pa.int64())])

    with pytest.raises(InvalidInputError, match=r"\bk\b"):
        make_table(schema, primary_key=["k"])


def test_keys_in_other_forms(make_table: MakeTable) -> None:
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), ("n", pa.int64())])
    table = make_table(schema, primary_key=["k"])
    with table.writer() as writer:
        for n, kind in enumerate((pa.string(), pa.large_string(), pa.string_view())):
            writer.upsert(pa.table({"k": pa.array(["a", "b"], kind), "n": [n, n]}))
        writer.upsert(pa.table({"k": pa.array(["a", "b"]).dictionary_encode(), "n": [9, 9]}))
        assert sorted(writer.scan().to_table().column("n").to_pylist()) == [9, 9]
        assert writer.lookup(pa.array(["b"], pa.large_string())).count_rows() == 1
        writer.delete(pa.array(["a"]).dictionary_encode())
        writer.delete(pa.array(["b"], pa.string_view()))
        assert writer.scan().to_table().num_rows == 0
    assert table.scan().count_rows() == 0
