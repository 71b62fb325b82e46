"""One column of every type that Arrow knows, with the values that are most likely to go wrong."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from lance.arrow import BFloat16Type, bfloat16_array

NAN, INFINITE = float("nan"), float("inf")


@dataclass(frozen=True)
class Column:
    """A column called ``v``.

    Attributes
    ----------
    name : str
        For the test's name.
    field : pyarrow.Field
    values : pyarrow.Array
        Its values; the last one is null.
    """

    name: str
    field: pa.Field
    values: pa.Array

    def schema(self, *, nullable: bool = True) -> pa.Schema:
        """The column beside a key."""
        field = self.field.with_nullable(nullable)
        return pa.schema([pa.field("id", pa.int64(), nullable=False), field])

    def rows(self, *, nullable: bool = True) -> pa.Table:
        """A row for each value, or twice for each that is not null, with keys from 0."""
        values = self.values
        if not nullable:
            some = values.slice(0, len(values) - 1)
            values = pa.concat_arrays([some, some])
        ids = pa.array(range(len(values)), pa.int64())
        return pa.table([ids, values], schema=self.schema(nullable=nullable))

    def __str__(self) -> str:
        return self.name

    @property
    def may_be_required(self) -> bool:
        """Whether the type has values that are not null."""
        return not pa.types.is_null(self.field.type)


def shown(rows: pa.Table) -> dict[int, dict[str, str]]:
    """Key to values, told apart as finely as text can: -0 from 0, and NaN equal to itself."""
    return shown_rows(rows.to_pylist())


def shown_rows(rows: list[dict[str, Any]]) -> dict[int, dict[str, str]]:
    """The same, of rows that are no table."""
    found = {
        row["id"]: {name: repr(value) for name, value in row.items() if name != "id"}
        for row in rows
    }
    assert len(found) == len(rows)
    return dict(sorted(found.items()))


def _column(name: str, kind: pa.DataType, *values: Any) -> Column:
    storage = pa.array([*values, None], getattr(kind, "storage_type", kind))
    if isinstance(kind, pa.BaseExtensionType):
        return Column(name, pa.field("v", kind), pa.ExtensionArray.from_storage(kind, storage))
    return Column(name, pa.field("v", kind), storage)


def _integers() -> list[Column]:
    found = []
    for bits in (8, 16, 32, 64):
        signed, unsigned = getattr(pa, f"int{bits}")(), getattr(pa, f"uint{bits}")()
        half = 1 << (bits - 1)
        found.append(_column(f"int{bits}", signed, -half, half - 1, 0))
        found.append(_column(f"uint{bits}", unsigned, 2 * half - 1, 0))
    return found


def _floats() -> list[Column]:
    values = (1.5, -0.0, 0.0, NAN, INFINITE, -INFINITE)
    return [
        _column("float16", pa.float16(), *(np.float16(value) for value in values)),
        _column("float32", pa.float32(), *values, 1e-45),
        _column("float64", pa.float64(), *values, 5e-324),
        Column("bfloat16", pa.field("v", BFloat16Type()), bfloat16_array([1.5, -0.0, None])),
    ]


def _times() -> list[Column]:
    found = [
        _column("date32", pa.date32(), date(1, 1, 1), date(9999, 12, 31)),
        _column("date64", pa.date64(), date(1969, 12, 31), date(2024, 2, 29)),
    ]
    for unit, wide in (("s", False), ("ms", False), ("us", True), ("ns", True)):
        kind = pa.time64(unit) if wide else pa.time32(unit)
        found.append(_column(f"time-{unit}", kind, time(0), time(23, 59, 59)))
    for unit in ("s", "ms", "us", "ns"):
        past = datetime(1960, 2, 29, 12, 30)
        found += [
            _column(f"timestamp-{unit}", pa.timestamp(unit), past),
            *(
                _column(
                    f"timestamp-{unit}-{zone}", pa.timestamp(unit, zone), past.replace(tzinfo=UTC)
                )
                for zone in ("UTC", "Europe/Berlin", "+05:30")
            ),
            _column(f"duration-{unit}", pa.duration(unit), timedelta(days=-3), timedelta(0)),
        ]
    return found


def _nested() -> list[Column]:
    vector = pa.list_(pa.float32(), 2)
    pair = pa.struct([("a", pa.int32()), ("b", pa.string())])
    deep = pa.struct([("a", pa.struct([("b", pa.list_(pa.struct([("c", pa.int8())])))]))])
    return [
        _column("list", pa.list_(pa.int32()), [1, None], []),
        _column("large-list", pa.large_list(pa.string()), ["a", None], []),
        _column("list-of-lists", pa.list_(pa.list_(pa.int32())), [[1], None, []], []),
        _column("list-of-vectors", pa.list_(vector), [[1.0, 2.0]], []),
        _column("list-of-structs", pa.list_(pair), [{"a": 1, "b": "x"}, None], []),
        _column(
            "list-of-dictionaries", pa.list_(pa.dictionary(pa.int8(), pa.string())), ["a", None]
        ),
        _column("vector", vector, [1.0, -0.0], [NAN, INFINITE]),
        _column("vector-with-nulls", vector, [1.0, None]),
        _column("vector-of-bytes", pa.list_(pa.int8(), 3), [1, 2, 3]),
        _column("vector-of-bools", pa.list_(pa.bool_(), 9), [True] * 9, [False] * 9),
        _column("vector-of-vectors", pa.list_(vector, 2), [[1.0, 2.0], [3.0, 4.0]]),
        _column("struct", pair, {"a": 1, "b": None}, {"a": None, "b": "x"}),
        _column("deep-struct", deep, {"a": {"b": [{"c": 1}, None]}}, {"a": None}),
        _column("struct-of-vector", pa.struct([("v", vector)]), {"v": [1.0, 2.0]}, {"v": None}),
        _column(
            "struct-of-dictionary",
            pa.struct([("d", pa.dictionary(pa.int8(), pa.string()))]),
            {"d": "a"},
            {"d": None},
        ),
        _column("map", pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", None)], []),
    ]


STORED: list[Column] = [
    _column("null", pa.null(), None),
    _column("bool", pa.bool_(), True, False),
    *_integers(),
    *_floats(),
    *_times(),
    _column("decimal128", pa.decimal128(38, 4), Decimal("1.25"), Decimal("-" + "9" * 34 + ".9999")),
    _column("decimal256", pa.decimal256(60, 4), Decimal("1.25"), Decimal("9" * 40)),
    _column("text", pa.string(), "", "a\0b", "é😀"),
    _column("large-text", pa.large_string(), "", "a\0b", "é😀"),
    _column("text-view", pa.string_view(), "", "short", "x" * 40),
    _column("binary", pa.binary(), b"", b"a\0b", b"\xff" * 40),
    _column("large-binary", pa.large_binary(), b"", b"a\0b"),
    _column("binary-view", pa.binary_view(), b"", b"short", b"x" * 40),
    _column("fixed-binary", pa.binary(3), b"abc", b"\0\0\0"),
    _column("large-values", pa.large_binary(), b"x" * (2 << 20), b"y"),
    *_nested(),
    _column("dictionary", pa.dictionary(pa.int8(), pa.string()), "a", "b", "a"),
    _column("dictionary-32", pa.dictionary(pa.int32(), pa.string()), "a", "b", "a"),
    _column("dictionary-large", pa.dictionary(pa.uint16(), pa.large_string()), "a", "b"),
    _column("dictionary-of-numbers", pa.dictionary(pa.int8(), pa.int64()), 5, 6),
    _column("dictionary-ordered", pa.dictionary(pa.int8(), pa.string(), ordered=True), "a"),
    _column("uuid", pa.uuid(), uuid.UUID(int=1).bytes, uuid.UUID(int=2**128 - 1).bytes),
    _column("json", pa.json_(), '{"a":1}', "[]"),
    _column("bool8", pa.bool8(), 1, 0),
    _column("tensor", pa.fixed_shape_tensor(pa.float32(), [2]), [1.0, 2.0]),
]
"""Types that Lance stores, and reads again as they were."""


def side_by_side(columns: Iterable[Column], *, nullable: bool = True) -> pa.Table:
    """A table of all the columns, each under its name, but the one of large values.

    Of those one column is enough, and has its own tests. Without nulls, those are left out that
    have nothing else.
    """
    chosen = [
        column
        for column in columns
        if column.name != "large-values" and (nullable or column.may_be_required)
    ]
    values = {
        column.name: column.values if nullable else column.values.slice(0, len(column.values) - 1)
        for column in chosen
    }
    count = max(len(some) for some in values.values())
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            *(c.field.with_name(c.name).with_nullable(nullable) for c in chosen),
        ]
    )
    repeated = {
        name: pa.concat_arrays([some] * count).slice(0, count) for name, some in values.items()
    }
    return pa.table({"id": pa.array(range(count)), **repeated}, schema=schema)


@dataclass(frozen=True)
class Refused:
    """A column that Lance does not store, or does not read again, in a file version."""

    name: str
    field: pa.Field
    version: str | None = None

    def __str__(self) -> str:
        return self.name


def _refused(name: str, kind: pa.DataType, version: str | None = None, **metadata: str) -> Refused:
    return Refused(name, pa.field("v", kind, metadata=metadata or None), version)


_BLOB = {"lance-encoding:blob": "true"}
_POINTS = pa.list_(pa.struct([("x", pa.int32())]), 2)

REFUSED: list[Refused] = [
    _refused("interval", pa.month_day_nano_interval()),
    _refused("decimal32", pa.decimal32(5, 2)),
    _refused("decimal64", pa.decimal64(5, 2)),
    _refused("list-view", pa.list_view(pa.int32())),
    _refused("large-list-view", pa.large_list_view(pa.int32())),
    _refused("run-end-encoded", pa.run_end_encoded(pa.int32(), pa.string())),
    _refused("dense-union", pa.dense_union([pa.field("a", pa.int32())])),
    # Lance takes the table, and then fails: when it writes rows, or when it reads them again.
    _refused("empty-struct", pa.struct([])),
    _refused("struct-of-empty-struct", pa.struct([("a", pa.int32()), ("s", pa.struct([]))])),
    _refused("vector-of-text", pa.list_(pa.string(), 2)),
    _refused("vector-of-structs", _POINTS),
    _refused("vector-of-structs-2.0", _POINTS, "2.0"),
    _refused("vector-of-structs-2.1", _POINTS, "2.1"),
    _refused("map-2.0", pa.map_(pa.string(), pa.int32()), "2.0"),
    _refused("map-2.1", pa.map_(pa.string(), pa.int32()), "2.1"),
    _refused("blob-of-binary", pa.binary(), "2.1", **_BLOB),
    # Lance writes these, but its own MemWAL reader cannot read what it flushed.
    _refused("nested-blob", pa.struct([pa.field("b", pa.large_binary(), metadata=_BLOB)]), "2.1"),
]
"""Types that must be refused when the table is made, before a row is acknowledged."""
