"""Rows of every type that Arrow has, for tables of other types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hostile.harness import Area, Broken, safely
from hostile.values import one_of_these, texts
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from memwal.errors import MemWalError
from memwal.region.router import Router
from memwal.region.spec import RegionSpec
from memwal.writer.region_writer import rows
from memwal.writer.region_writer.rows import RowSchema

TABLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("when", pa.timestamp("us", "UTC")),
        pa.field("v", pa.list_(pa.float32(), 2)),
        pa.field("s", pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.binary())])),
        pa.field("l", pa.large_list(pa.field("item", pa.int64(), nullable=False))),
        pa.field("d", pa.decimal128(10, 2)),
        pa.field("j", pa.json_()),
        pa.field("u", pa.uuid()),
    ]
)
ROW_SCHEMA = RowSchema(TABLE, ["id", "name"])
ROUTER = Router(
    RegionSpec.combine(RegionSpec.bucket("id", 4), RegionSpec.truncate("name", 2)), TABLE
)


def _bad_text(count: int) -> pa.Array:
    data = b"\xff\xfe" * count
    offsets = pa.array(range(0, 2 * count + 1, 2), pa.int32())
    return pa.Array.from_buffers(
        pa.string(), count, [None, offsets.buffers()[1], pa.py_buffer(data)]
    )


def _dictionary(values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * len(values), pa.int8()), values)


def _runs(values: pa.Array) -> pa.Array:
    ends = pa.array(range(1, len(values) + 1), pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, values)


def _nested(values: pa.Array) -> pa.Array:
    for _ in range(40):
        values = pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)
    return values


def _required(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(
        [pa.nulls(len(values), pa.int32()), pa.nulls(len(values), pa.binary())],
        fields=[pa.field("a", pa.int32()), pa.field("b", pa.binary())],
    )


_WRAPS: tuple[Callable[[pa.Array], pa.Array], ...] = (
    lambda values: values,
    lambda values: values,
    lambda values: values.slice(1),
    _dictionary,
    lambda values: _dictionary(pa.nulls(len(values), values.type)),
    _runs,
    _nested,
    _required,
    lambda values: pa.UnionArray.from_sparse(pa.array([0] * len(values), pa.int8()), [values]),
    lambda values: pa.nulls(len(values), values.type),
    lambda values: pa.ExtensionArray.from_storage(pa.opaque(values.type, "x", "y"), values),
)
_VALUES: tuple[Callable[[int], pa.Array], ...] = (
    lambda n: pa.array(range(n)),
    lambda n: pa.array([2**64 - 1] * n, pa.uint64()),
    lambda n: pa.array([None] * n),
    lambda n: pa.array([True] * n),
    lambda n: pa.array([float("nan")] * n),
    lambda n: pa.array([1.5] * n, pa.float16()),
    lambda n: pa.array(["a"] * n),
    lambda n: pa.array(["x" * 100_000] * n, pa.large_string()),
    lambda n: pa.array(["{}"] * n, pa.string_view()),
    lambda n: pa.array(["[" * 5_000] * n),
    lambda n: pa.array([b"0" * 16] * n, pa.binary(16)),
    lambda n: pa.array([b""] * n, pa.binary_view()),
    _bad_text,
    lambda n: pa.array([[1.0, 2.0]] * n, pa.list_(pa.float32(), 2)),
    lambda n: pa.array([[1.0]] * n, pa.list_(pa.float64())),
    lambda n: pa.array([[None, 1]] * n, pa.large_list(pa.int64())),
    lambda n: pa.array([[1]] * n, pa.list_view(pa.int64())),
    lambda n: pa.array(
        [{"a": None, "b": b"x"}] * n, pa.struct([("a", pa.int32()), ("b", pa.binary())])
    ),
    lambda n: pa.array([{}] * n, pa.struct([])),
    lambda n: pa.array([[("k", 1)]] * n, pa.map_(pa.string(), pa.int64())),
    lambda n: pa.array([-(2**63)] * n, pa.timestamp("ns")),
    lambda n: pa.array([2**62] * n, pa.timestamp("s", "UTC")),
    lambda n: pa.array([0] * n, pa.duration("s")),
    lambda n: pa.array([0] * n, pa.date64()),
    lambda n: pa.array([(1, 2, 3)] * n, pa.month_day_nano_interval()),
    lambda n: pa.array([1] * n, pa.decimal256(76, -5)),
    lambda n: pa.array([1] * n, pa.decimal32(5, 2)),
)


def _columns() -> SearchStrategy[pa.Table]:
    column = st.tuples(one_of_these(*_VALUES), one_of_these(*_WRAPS))
    whole = st.fixed_dictionaries({name: st.none() | column for name in TABLE.names})
    more = st.dictionaries(texts("_tombstone", "_rowid", "id"), column, max_size=1)
    return st.builds(_table, st.integers(0, 3), whole, more, st.booleans())


def _table(
    rows: int, columns: dict[str, Any], more: dict[str, Any], several: bool
) -> pa.Table | None:
    """A table in which each column is of the table's type, or of any other."""
    made: list[tuple[str, pa.Array]] = []
    right = pa.table(
        {
            "id": pa.array(range(rows)),
            "name": ["n"] * rows,
            **{f.name: pa.nulls(rows, f.type) for f in TABLE if f.nullable},
        },
    )
    for name, column in (*columns.items(), *more.items()):
        if column is None:
            made.append((name, right.column(name).combine_chunks()))
            continue
        values, wrap = column
        try:
            made.append((name, wrap(values(rows + 1)).slice(0, rows)))
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            # Arrow itself has no such array.
            continue
    made = [(name, array) for name, array in made if len(array) == rows]
    try:
        found = pa.Table.from_arrays([a for _, a in made], names=[n for n, _ in made])
    except (pa.ArrowException, UnicodeEncodeError):
        return None
    return pa.concat_tables([found.slice(0, 1), found.slice(1)]) if several else found


def _write(_: Any, rows: pa.Table | None) -> None:
    if rows is None:
        return
    for taken in (
        ROW_SCHEMA.convert_upserts,
        ROW_SCHEMA.convert_partial,
        ROW_SCHEMA.convert_deletes,
    ):
        batches = safely(lambda taken=taken: taken(rows))
        if isinstance(batches, MemWalError):
            continue
        for batch in batches:
            batch.validate(full=True)
            if batch.column("id").null_count or batch.column("name").null_count:
                raise Broken("a key with a null was taken")
            safely(lambda batch=batch: ROUTER.route(batch))


AREAS = (
    Area("rows", _columns(), _write, (rows, "_tombstones")),
    Area(
        "keys",
        _columns(),
        lambda _, rows: None if rows is None else safely(lambda: ROW_SCHEMA.convert_deletes(rows)),
        (RowSchema, "_check_key"),
    ),
)
