from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from memwal.errors import ArgumentTypeError, InvalidInputError
from memwal.format.values import NO_VALUE, import_arrow, to_python_rows


def test_rows_are_what_arrow_makes_of_them() -> None:
    rows = pa.table({"a": [1, None], "b": [["x"], []]})
    assert to_python_rows(rows) == rows.to_pylist()
    assert to_python_rows(rows.slice(0, 0)) == []


def test_a_moment_that_python_does_not_know_is_shown() -> None:
    days = pa.array([0, 10**7, None], pa.int32())
    rows = pa.table(
        {
            "day": days.cast(pa.date32()),
            "at": pa.array([2**62, 0, -(2**62)]).cast(pa.timestamp("us")),
            "all": pa.array([[2**62], None, []], pa.list_(pa.int64())).cast(
                pa.list_(pa.timestamp("s", "UTC"))
            ),
        }
    )
    found = to_python_rows(rows)
    assert [row["day"] for row in found] == [date(1970, 1, 1), NO_VALUE, None]
    assert [row["at"] == NO_VALUE for row in found] == [True, False, True]
    assert [row["all"] for row in found] == [NO_VALUE, None, []]


def test_a_number_that_python_cannot_read_is_shown() -> None:
    """A damaged schema says how often a number is to be multiplied by ten."""
    number = pa.py_buffer((123).to_bytes(16, "little"))
    rows = pa.table(
        {"n": pa.Array.from_buffers(pa.decimal128(5, -2_000_000_000), 1, [None, number])}
    )
    assert to_python_rows(rows) == [{"n": NO_VALUE}]


class OneColumn:
    """A column of another library: it has Arrow's C interface and nothing else."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return pa.array([1, 2]).__arrow_c_array__()


STRUCTS = pa.array([{"id": 1}, {"id": 2}])


@pytest.mark.parametrize(
    "column",
    [pd.Series([1, 2]), pl.Series("id", [1, 2]), pa.chunked_array([[1], [2]]), OneColumn()],
    ids=lambda column: type(column).__module__,
)
def test_a_column_of_any_library_is_imported(column: object) -> None:
    imported = import_arrow(column)
    assert isinstance(imported, (pa.Array, pa.ChunkedArray))
    assert imported.to_pylist() == [1, 2]


@pytest.mark.parametrize(
    "rows",
    [
        pd.DataFrame({"id": [1, 2]}),
        pl.DataFrame({"id": [1, 2]}),
        pa.table({"id": [1, 2]}).to_reader(),
        STRUCTS,
        pa.chunked_array([STRUCTS]),
        pl.Series([{"id": 1}, {"id": 2}]),
    ],
    ids=lambda rows: f"{type(rows).__module__}.{type(rows).__name__}",
)
def test_rows_of_any_library_are_imported(rows: object) -> None:
    assert import_arrow(rows).to_pylist() == [{"id": 1}, {"id": 2}]


def test_what_is_no_data_or_fails_is_refused() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        raise ZeroDivisionError

    failing = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
    with pytest.raises(InvalidInputError):
        import_arrow(failing)
    with pytest.raises(InvalidInputError):
        import_arrow(pd.Series([1, "x", object()]))
    for value in (None, 1, [1], {"id": [1]}, pa.scalar(1), object()):
        with pytest.raises(ArgumentTypeError):
            import_arrow(value)
