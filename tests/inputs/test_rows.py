"""Rows and keys in every form that callers have."""

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from lancedb.pydantic import LanceModel, Vector
from pydantic import BaseModel
from support.processes import run_python

from memwal.errors import ArgumentTypeError, InvalidInputError
from memwal.inputs.rows import to_keys, to_rows

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.list_(pa.float32(), 2)),
        pa.field("t", pa.string()),
        pa.field("m", pa.map_(pa.string(), pa.int64())),
    ]
)
COLUMNS = {"id": [1, 2], "v": [[1.0, 2.0], [3.0, 4.0]], "t": ["a", None]}
ROWS = [
    {"id": 1, "v": [1.0, 2.0], "t": "a"},
    {"id": 2, "v": [3.0, 4.0], "t": None},
]


class Row(LanceModel):
    """A model of LanceDB."""

    id: int
    v: Vector(2)  # type: ignore[valid-type]
    t: str | None = None


class Stream:
    """Rows of another library: they have Arrow's C interface and nothing else."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.table(COLUMNS).__arrow_c_stream__()


class OneColumn:
    """A column of another library: it has Arrow's C interface and nothing else."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return pa.array([1, 2]).__arrow_c_array__()


def kind(value: object) -> str:
    """Id of a case: no address of an object is in it."""
    return f"{type(value).__module__}.{type(value).__name__}"


def rows(data: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = to_rows(data, SCHEMA, ["id"]).to_pylist()
    return found


def leaf(kind: pa.DataType) -> pa.DataType:
    """Return the type of the first values within lists and structs."""
    return leaf(kind.field(0).type) if kind.num_fields else kind


def column(values: object, target: pa.DataType | None = None) -> pa.ChunkedArray:
    """A column of rows beside a key of three values."""
    schema = pa.schema([("id", pa.int64()), ("x", target or pa.int64())])
    table = to_rows({"id": [1, 2, 3], "x": values}, schema, ["id"])
    return table.column("x")


class TestRows:
    @pytest.mark.parametrize(
        "data",
        [
            COLUMNS,
            {"id": np.array([1, 2]), "v": np.array([[1.0, 2.0], [3.0, 4.0]]), "t": ("a", None)},
            {"id": pl.Series([1, 2]), "v": COLUMNS["v"], "t": pd.Series(["a", None])},
            {"id": pa.array([1, 2]), "v": list(np.array(COLUMNS["v"])), "t": pd.Index(["a", None])},
            ROWS,
            tuple(ROWS),
            [Row(**row) for row in ROWS],
            [ROWS[0], Row(**ROWS[1])],
            pd.DataFrame(COLUMNS),
            pd.DataFrame(COLUMNS, index=[7, 9]),
            pd.DataFrame(COLUMNS).set_index("id"),
            pl.DataFrame(COLUMNS),
            pa.table(COLUMNS),
            pa.record_batch(COLUMNS),
            pa.table(COLUMNS).to_reader(),
            pa.array(ROWS),
            Stream(),
        ],
        ids=kind,
    )
    def test_all_forms_are_the_same_rows(self, data: object) -> None:
        assert rows(data) == ROWS

    @pytest.mark.parametrize("data", [ROWS[0], Row(**ROWS[0]), ROWS[:1]], ids=kind)
    def test_one_row(self, data: object) -> None:
        """A vector is no column of values where the key is a single value."""
        assert rows(data) == ROWS[:1]

    def test_one_row_with_an_array_and_a_scalar_of_numpy(self) -> None:
        row = {"id": np.int64(1), "v": np.array([1.0, 2.0]), "t": np.str_("a")}
        assert rows(row) == ROWS[:1]

    @pytest.mark.parametrize(
        ("data", "number", "kind"),
        [
            ([(1, "a"), (2, "b")], 0, "tuple"),
            ([ROWS[0], [2, "b"]], 1, "list"),
            ((1, 2), 0, "int"),
            (["a"], 0, "str"),
            ([None], 0, "NoneType"),
        ],
        ids=str,
    )
    def test_a_row_without_names_is_told(self, data: Any, number: int, kind: str) -> None:
        with pytest.raises(ArgumentTypeError) as raised:
            rows(data)
        message = str(raised.value)
        assert f"row {number} " in message
        assert kind in message
        assert repr(data[number]) in message
        assert all(repr(name) in message for name in SCHEMA.names)

    def test_no_rows(self) -> None:
        assert rows([]) == []
        assert to_rows([], SCHEMA, ["id"]).schema == SCHEMA
        assert rows({"id": [], "v": [], "t": []}) == []

    @pytest.mark.parametrize("data", [{}, [{}], [{}, {}], pd.DataFrame()], ids=kind)
    def test_rows_without_columns_have_none(self, data: object) -> None:
        """They are not taken for no rows: the columns that a row needs are missing."""
        assert to_rows(data, SCHEMA, ["id"]).schema.names == []

    def test_a_composite_key(self) -> None:
        found = to_rows({"a": 1, "b": "x"}, pa.schema([]), ["a", "b"])
        assert found.to_pylist() == [{"a": 1, "b": "x"}]

    def test_an_index_with_names_is_columns(self) -> None:
        frame = pd.DataFrame({"a": [1], "b": ["x"], "n": [5]}).set_index(["a", "b"])
        found = to_rows(frame, pa.schema([]), ["a", "b"])
        assert found.to_pylist() == [{"a": 1, "b": "x", "n": 5}]

    @pytest.mark.parametrize(
        "data", [None, 1, "x", b"x", [1], [None], object(), Row, {1}], ids=kind
    )
    def test_what_is_no_rows(self, data: object) -> None:
        with pytest.raises(ArgumentTypeError):
            rows(data)

    @pytest.mark.parametrize(
        "data",
        [
            {"id": [1, 2], "t": ["a"]},
            {"id": [1], "t": "a"},
            {"id": 1, 2: "a"},
            {"id": [1], None: ["a"]},
            [{"id": 1, "t": "a"}, {"id": 2}],
            [{"id": 1}, {"id": 2, "t": "a"}],
            pd.DataFrame({0: [1]}),
            {"id": [1], "v": [np.ones((2, 2))]},
            {"id": [1], "v": pd.DataFrame({"a": [1]})},
        ],
        ids=kind,
    )
    def test_rows_that_do_not_fit_together(self, data: object) -> None:
        with pytest.raises(InvalidInputError):
            rows(data)

    def test_the_row_that_lacks_a_column_is_named(self) -> None:
        with pytest.raises(InvalidInputError, match=r"row 2 .*'t'"):
            rows([{"id": 1, "t": "a"}, {"id": 2, "t": None}, {"id": 3}])

    def test_code_of_the_caller_may_raise_anything(self) -> None:
        def batches() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"id": [1]})
            raise ZeroDivisionError

        class Broken(BaseModel):
            def model_dump(self, **_: Any) -> dict[str, Any]:
                raise ZeroDivisionError

        reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
        for data in (reader, Broken(), [Broken()]):
            with pytest.raises(InvalidInputError):
                rows(data)
        with pytest.raises(ArgumentTypeError):
            rows(SimpleNamespace(model_dump=lambda: None))


class TestValues:
    """Values of Python keep all that they have until they are cast."""

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([1, 2.5, None], [1.0, 2.5, None]),
            ([2**63, 2**64 - 1, 1], [2**63, 2**64 - 1, 1]),
            ([Decimal("1.1"), None, Decimal(2)], [Decimal("1.1"), None, Decimal(2)]),
            (["a", float("nan"), pd.NA], ["a", None, None]),
            ([pd.NA, 1, 2], [None, 1, 2]),
            ([dt.date(2024, 1, 1)] * 3, [dt.date(2024, 1, 1)] * 3),
            ([np.float32(0.5), 1, None], [0.5, 1, None]),
            ([{"a": 1}, None, {"a": 2}], [{"a": 1}, None, {"a": 2}]),
            (np.array(["a", None, "b"], object), ["a", None, "b"]),
            (pd.Series([1.5, np.nan, 2]), [1.5, None, 2]),
            (pd.Series(["a", "b", "a"], dtype="category"), ["a", "b", "a"]),
            (pd.Series([1, None, 2], dtype="Int64"), [1, None, 2]),
            (pl.Series(["a", "b", "a"], dtype=pl.Categorical), ["a", "b", "a"]),
            (range(3), [0, 1, 2]),
        ],
        ids=kind,
    )
    def test_values(self, values: object, expected: list[Any]) -> None:
        assert column(values).to_pylist() == expected

    @pytest.mark.parametrize(
        "target", [pa.string(), pa.int64(), pa.list_(pa.float32(), 2)], ids=str
    )
    def test_a_column_of_pandas_without_values_fits_any_type(self, target: pa.DataType) -> None:
        for empty in (pd.Series([np.nan] * 3), pd.Series([None] * 3, dtype="Float64")):
            assert pa.types.is_null(column(empty, target).type)
        assert column(pd.Series([np.nan, 1.5, np.nan]), target).type == pa.float64()
        assert column(pd.Series([np.nan] * 3), pa.float32()).null_count == 3

    def test_times(self) -> None:
        noon = dt.datetime(2024, 1, 1, 12)
        paris = dt.timezone(dt.timedelta(hours=2))
        assert column([noon, None, noon]).type == pa.timestamp("us")
        assert column([noon.replace(tzinfo=dt.UTC)] * 3).type == pa.timestamp("us", "UTC")
        mixed = column([noon, noon.replace(tzinfo=paris), None])
        assert mixed.cast(pa.timestamp("us", "UTC")).to_pylist() == [
            noon.replace(tzinfo=dt.UTC),
            noon.replace(hour=10, tzinfo=dt.UTC),
            None,
        ]
        assert mixed.type.tz == "UTC"
        scalar = pa.scalar(0, pa.timestamp("us", "Europe/Berlin"))
        assert column([scalar] * 3).type == scalar.type
        assert column([np.datetime64(1, "ns")] * 3).cast(pa.int64()).to_pylist() == [1] * 3
        assert column([noon.date(), noon, pd.NaT]).to_pylist() == [
            noon.replace(hour=0),
            noon,
            None,
        ]
        days = [noon.date(), pd.NaT, None]
        for values in (days, np.array(days, object)):
            assert column(values).to_pylist() == [noon.date(), None, None]
        exact = pd.Timestamp("2024-01-01 00:00:00.000000001")
        assert column([exact, None, exact]).cast(pa.int64())[0].as_py() == exact.value
        assert column(pd.Series([exact] * 3)).cast(pa.int64())[0].as_py() == exact.value

    @pytest.mark.parametrize(
        "within",
        [
            lambda *values: [[*values]],
            lambda *values: [[value] for value in values],
            lambda *values: [{"a": value, "b": 1} for value in values],
            lambda *values: [{"a": [[{"b": value} for value in values], None]}, None],
            lambda *values: [[[value, None]] for value in values],
        ],
        ids=["list", "lists", "structs", "deep", "nested lists"],
    )
    def test_times_within_lists_and_structs(self, within: Callable[..., Any]) -> None:
        noon = dt.datetime(2024, 1, 1, 12)
        ten = noon.replace(hour=10, tzinfo=dt.UTC)
        paris = noon.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))
        exact = pd.Timestamp("2024-01-01 00:00:00.000000001")
        for given, expected, kind in (
            ([noon, pd.NaT], [noon, None], pa.timestamp("us")),
            ([noon, paris], [noon.replace(tzinfo=dt.UTC), ten], pa.timestamp("us", "UTC")),
            ([exact, noon], [exact, pd.Timestamp(noon)], pa.timestamp("ns")),
        ):
            found = to_rows({"x": within(*given)}, SCHEMA, []).column("x")
            assert leaf(found.type) == kind
            assert found.to_pylist() == list(within(*expected))
        with pytest.raises(InvalidInputError):
            to_rows({"x": within(noon.date(), noon)}, SCHEMA, [])
        for null in (None, pd.NaT):
            dates = to_rows({"x": within(noon.date(), null)}, SCHEMA, []).column("x")
            assert leaf(dates.type) == pa.date32()
            assert dates.to_pylist() == list(within(noon.date(), None))

    def test_nan_beside_dates_is_kept(self) -> None:
        values = [{"a": dt.date(2024, 1, 1), "b": float("nan")}] * 3
        assert np.isnan(column(values).to_pylist()[0]["b"])

    def test_maps(self) -> None:
        target = SCHEMA.field("m").type
        found = column([{"a": 1, "b": 2}, [("c", 3)], None], target)
        assert found.to_pylist() == [
            [{"key": "a", "value": 1}, {"key": "b", "value": 2}],
            [{"key": "c", "value": 3}],
            None,
        ]
        with pytest.raises(InvalidInputError, match="row 1"):
            column([{"a": 1}, [("c", 3, 4)], None], target)

    @pytest.mark.parametrize(
        ("values", "row"),
        [
            ([1, "x", 3], 1),
            (["a", 1, 2], 1),
            ([1, 2, object()], 2),
            ([1, True, 2], 1),
            ([[1], 2, 3], 1),
            ([1, 2, 10**40], 2),
            (["a", "\udcff", "b"], 1),
            ([Enum("E", "A").A, 1, 2], 0),
            (pd.Series([1, "x", object()]), 1),
            (np.array([1, "x", 2], object), 1),
        ],
        ids=kind,
    )
    def test_a_value_that_is_none_is_named(self, values: Any, row: int) -> None:
        with pytest.raises(InvalidInputError, match=f"column x, row {row} "):
            column(values)


class TestKeys:
    @pytest.mark.parametrize(
        "data",
        [
            [1, 2],
            (1, 2),
            range(1, 3),
            np.array([1, 2]),
            pd.Series([1, 2]),
            pd.Index([1, 2]),
            pl.Series("any", [1, 2]),
            pa.array([1, 2]),
            pa.chunked_array([[1], [2]]),
            [pa.scalar(1), pa.scalar(2)],
            [np.int64(1), 2],
            OneColumn(),
            {"id": [1, 2]},
            [{"id": 1}, {"id": 2}],
            pd.DataFrame({"id": [1, 2]}),
            pl.Series([{"id": 1}, {"id": 2}]),
        ],
        ids=kind,
    )
    def test_all_forms_are_the_same_keys(self, data: object) -> None:
        assert to_keys(data, SCHEMA, ["id"]).to_pylist() == [{"id": 1}, {"id": 2}]

    @pytest.mark.parametrize("data", [1, np.int64(1), pa.scalar(1), {"id": 1}], ids=kind)
    def test_one_key(self, data: object) -> None:
        assert to_keys(data, SCHEMA, ["id"]).to_pylist() == [{"id": 1}]

    @pytest.mark.parametrize("data", ["x", b"x", np.str_("x")], ids=kind)
    def test_one_text(self, data: object) -> None:
        (row,) = to_keys(data, SCHEMA, ["t"]).to_pylist()
        assert row == {"t": data}

    def test_rows_of_models_are_keys_too(self) -> None:
        assert to_keys(Row(**ROWS[0]), SCHEMA, ["id"]).to_pylist() == ROWS[:1]

    @pytest.mark.parametrize("key", [["id"], ["id", "t"]], ids=kind)
    def test_no_keys(self, key: list[str]) -> None:
        assert to_keys([], SCHEMA, key).num_rows == 0

    def test_values_of_several_columns_need_their_names(self) -> None:
        for data in (1, [1, 2], pa.array([1])):
            with pytest.raises(InvalidInputError, match="id, t"):
                to_keys(data, SCHEMA, ["id", "t"])
        data = {"id": [1, 2], "t": ["a", "b"]}
        assert to_keys(data, SCHEMA, ["id", "t"]).to_pydict() == data

    @pytest.mark.parametrize("data", [None, object(), Row, iter([1]), UUID(int=1)], ids=kind)
    def test_what_is_no_keys(self, data: object) -> None:
        with pytest.raises(ArgumentTypeError):
            to_keys(data, SCHEMA, ["id"])


def test_no_library_of_the_caller_is_imported() -> None:
    """Arrow imports pandas by itself, for lists too."""
    code = """
import sys
from memwal.inputs.rows import to_rows, to_keys
import pyarrow as pa
schema = pa.schema([("id", pa.int64())])
to_rows([{"id": 1}], schema, ["id"]), to_rows({"id": [1, None]}, schema, ["id"])
to_keys([1, 2], schema, ["id"])
print([name for name in ("polars", "lancedb", "pydantic") if name in sys.modules])
"""
    assert run_python(code).stdout == "[]\n"
