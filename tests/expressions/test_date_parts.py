"""Parts of dates against Python's calendar, and against DataFusion's ``date_part``."""

import datetime as dt
from typing import Any, get_args

import pyarrow as pa
import pytest
from datafusion import SessionContext
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.expressions.date_parts import DatePart, date_part

PARTS: tuple[DatePart, ...] = get_args(DatePart)
# A time zone of whole minutes, on both sides of UTC.
ZONES = ["UTC", "+00:00", "+05:30", "-08:00", "+14:00", "-0330", "+01"]


def of_datafusion(part: str, column: pa.Array) -> list[int | None]:
    frame = SessionContext().create_dataframe([[pa.record_batch({"col0": column})]])
    sql = frame.parse_sql_expr(f"date_part('{part}', col0)")
    found = frame.select(sql.alias("value")).to_arrow_table()
    return found.column("value").to_pylist()


@given(st.lists(st.none() | st.datetimes(), max_size=20), st.sampled_from(["s", "ms", "us"]))
def test_timestamps(values: list[dt.datetime | None], unit: str) -> None:
    column = pa.array(values, pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)
    for part in PARTS:
        want = [None if value is None else getattr(value, part) for value in column.to_pylist()]
        found = date_part(part, column)
        assert found.type == pa.int32()
        assert found.to_pylist() == want
        assert date_part(part, column.slice(1)).to_pylist() == want[1:]


@given(st.lists(st.none() | st.dates(), max_size=20))
def test_dates(values: list[dt.date | None]) -> None:
    for kind in (pa.date32(), pa.date64()):
        column = pa.array(values, kind)
        for part in ("year", "month", "day"):
            want = [None if value is None else getattr(value, part) for value in values]
            assert date_part(part, column).to_pylist() == want
        hours = [None if value is None else 0 for value in values]
        assert date_part("hour", column).to_pylist() == hours


@given(
    st.datetimes(min_value=dt.datetime(2, 1, 1), max_value=dt.datetime(9998, 1, 1)),
    st.integers(-14 * 60, 14 * 60),
)
def test_timestamps_with_an_offset_are_taken_in_it(value: dt.datetime, minutes: int) -> None:
    zone = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    column = pa.array([value.replace(tzinfo=dt.UTC)], pa.timestamp("us", zone))
    local = value + dt.timedelta(minutes=minutes)
    for part in PARTS:
        assert date_part(part, column).to_pylist() == [getattr(local, part)]


@pytest.mark.parametrize("zone", ZONES)
def test_zones_as_datafusion_takes_them(zone: str) -> None:
    moments = [0, -1, 1_588_809_599_999_999, 951_782_400_000_000, None]
    column = pa.array(moments, pa.timestamp("us", zone))
    for part in PARTS:
        assert date_part(part, column).to_pylist() == of_datafusion(part, column)


EXTREMES: dict[pa.DataType, list[Any]] = {
    pa.date32(): [-(2**31), 2**31 - 1, 0, -1, -96_465_292, 95_026_236, 95_026_237],
    pa.date64(): [-(2**63) + 1, 2**63 - 1, 0, -1],
    pa.timestamp("s"): [-(2**63) + 1, 2**63 - 1, 0, -1, 8_210_266_876_799, 8_210_266_876_800],
    pa.timestamp("ms"): [-(2**63) + 1, 2**63 - 1, 0, -1],
    pa.timestamp("us"): [-(2**63) + 1, 2**63 - 1, 0, -1],
    pa.timestamp("ns"): [-(2**63) + 1, 2**63 - 1, 0, -1],
}


@pytest.mark.parametrize("kind", EXTREMES, ids=str)
def test_extremes_as_datafusion_takes_them(kind: pa.DataType) -> None:
    width = pa.int32() if kind == pa.date32() else pa.int64()
    column = pa.array(EXTREMES[kind], width).view(kind)
    for part in PARTS:
        assert date_part(part, column).to_pylist() == of_datafusion(part, column), part


def test_text_as_datafusion_takes_it() -> None:
    texts = ["2026-01-31", "2026-12-01 23:59:59", "1999-02-28T01:02:03.456789", None]
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(texts, kind)
        for part in PARTS:
            assert date_part(part, column).to_pylist() == of_datafusion(part, column)


@pytest.mark.parametrize("text", ["", "today", "2026-13-01", "2026-01-01T00:00:00+02:00"])
def test_text_that_is_no_date(text: str) -> None:
    column = pa.array([text])
    with pytest.raises(InvalidInputError):
        date_part("year", column)


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "+5"), pa.int64(), pa.time32("s")],
    ids=str,
)
def test_types_without_parts(kind: pa.DataType) -> None:
    column = pa.nulls(1, kind)
    with pytest.raises(InvalidInputError):
        date_part("year", column)
