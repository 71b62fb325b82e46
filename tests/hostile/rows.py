"""Rows of every type that Arrow has, for tables of other types."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from hostile.harness import Area, Broken, safely
from hostile.values import NASTY, NUMBERS, one_of_these, texts
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from memwal.errors import MemWalError
from memwal.inputs import rows as inputs
from memwal.lsm import row_schema
from memwal.lsm.row_schema import RowSchema
from memwal.region.router import Router
from memwal.region.spec import RegionSpec

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


ONE_KEY = RowSchema(TABLE, ["id"])


class _Model:
    """A model that fails to describe itself, and gives whatever it was given."""

    def __init__(self, dumped: object) -> None:
        self._dumped = dumped

    def model_dump(self) -> object:
        if isinstance(self._dumped, Exception):
            raise self._dumped
        return self._dumped

    def __repr__(self) -> str:
        raise ZeroDivisionError


_ODD: tuple[object, ...] = (
    *(None, True, 1.5, float("nan"), 2**64, 10**50, b"\xff", [], [[]], {}, {"a": 1}, [1.0, 2.0]),
    *(Decimal("NaN"), Decimal("1e400"), date.min, datetime.max, timedelta.max, time.max, ...),
    *(datetime.max.replace(tzinfo=UTC), UUID(int=0), object(), range(2), (1, 2), {1}, iter([1])),
    *(_Model({}), _Model({"id": 1, "name": "n"}), _Model(1), _Model(KeyError("oops")), _Model),
    *(np.float64(1), np.datetime64("NaT"), np.array(1), np.zeros((2, 2, 2)), np.array([None])),
    *(pd.NaT, pd.NA, pd.Timestamp.max, pd.Series([1, "x"]), pd.DataFrame({"id": [1], 1: [2]})),
    *(pd.DataFrame({"id": [1]}, index=["a"]), pd.Index([1]), pa.scalar(1), pa.nulls(1)),
    *(pl.Series([1]), pl.DataFrame({"id": [1]}), pl.Series([object()]), pa.table({"id": [1]})),
)
_ODD_COLUMNS = (
    *(range(2), np.arange(2), np.ones((2, 2)), np.ones((2, 0)), np.array(["a", 1], object)),
    *(pd.Series([1.0, None]), pd.Series(["a", "b"], dtype="category"), pl.Series([[1], None])),
    *(pa.chunked_array([[1], [2]]), pa.nulls(2), pa.table({"a": [1, 2]}), "ab", b"ab"),
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


def _objects() -> SearchStrategy[object]:
    """Rows and keys as objects of Python, numpy and pandas, nearly right or not at all."""
    value = st.sampled_from(_ODD) | one_of_these(*NUMBERS, *NASTY)
    names = st.sampled_from(TABLE.names) | st.sampled_from(("_tombstone", "", None, 1, b"id"))
    row = st.dictionaries(names, value, max_size=4)
    whole = st.fixed_dictionaries({"id": st.integers(0, 3) | value, "name": st.just("n") | value})
    column = st.lists(value, max_size=3) | st.sampled_from(_ODD_COLUMNS)
    columns = st.dictionaries(names, column, max_size=4)
    return st.one_of(
        value, row, whole, columns, st.lists(row | whole, max_size=3), st.lists(value, max_size=3)
    )


def _write_objects(_: Any, data: object) -> None:
    _write(None, data)  # type: ignore[arg-type]
    safely(lambda: ONE_KEY.convert_deletes(data))


AREAS = (
    Area("objects for rows", _objects(), _write_objects, (inputs, "_to_table"), examples=40),
    Area("rows", _columns(), _write, (row_schema, "_tombstones")),
    Area(
        "keys",
        _columns(),
        lambda _, rows: None if rows is None else safely(lambda: ROW_SCHEMA.convert_deletes(rows)),
        (RowSchema, "_check_key"),
    ),
)
