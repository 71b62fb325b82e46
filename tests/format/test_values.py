from datetime import date

import pyarrow as pa

from memwal.format.values import NO_VALUE, to_python_rows


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
