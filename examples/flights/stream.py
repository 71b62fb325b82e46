"""The history of the flights as one stream of writes, in order of time.

A flight is announced some hours before it departs; then it departs and arrives. A cancelled flight
is deleted from the table at the time of its scheduled departure. Every write holds the whole row as
known at that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from flightdata import KEY, MICROSECONDS, SCHEMA, TIMESTAMP, Flights, Minutes

Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

SCHEDULED, DEPARTED, ENDED, CANCELLED = range(4)
"""Stages of a flight's life. A flight that departed is never cancelled."""

ANNOUNCED_BEFORE = 24 * 60
"""Minutes between the announcement of a flight and its scheduled departure."""

KNOWN_FROM = {
    "tail_number": DEPARTED,
    "departure": DEPARTED,
    "departure_delay_minutes": DEPARTED,
    "arrival": ENDED,
    "arrival_delay_minutes": ENDED,
    "air_time_minutes": ENDED,
}
"""Columns that are null before a stage."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Events in one time slice of the year.

    The upserts are in order of time and may hold two events of one flight: the last one counts.
    Cancellations are applied after the upserts. That is correct for slices of any length, because
    no event follows a cancellation.
    """

    number: int
    upserts: pa.RecordBatch
    deletes: pa.RecordBatch

    @property
    def writes(self) -> int:
        """Return upserts plus deletes."""
        return int(self.upserts.num_rows + self.deletes.num_rows)


@dataclass(frozen=True, slots=True)
class EventStream:
    """Every event of a set of flights, as indices into the flights.

    Attributes
    ----------
    flights : Flights
        All flights, including those without events here.
    flight, stage, time : int64 arrays
        One entry per event, in order of time (minutes since 1970 in UTC).
    start, slice_minutes : int
        Batch ``n`` holds the events from ``start + n * slice_minutes`` on.
    batches : int
        Number of batches of the whole stream; the same for every part of it.
    """

    flights: Flights
    flight: Integers
    stage: Integers
    time: Minutes
    start: int
    slice_minutes: int
    batches: int

    def __len__(self) -> int:
        return len(self.time)

    @classmethod
    def of(cls, flights: Flights, *, slice_minutes: int) -> EventStream:
        """Return all events of the flights."""
        index = np.arange(len(flights))
        left, landed = flights.departed >= 0, flights.ended >= 0
        flight = np.concatenate([index, index[left], index[landed], index[~left]])
        stage = np.repeat(
            [SCHEDULED, DEPARTED, ENDED, CANCELLED],
            [len(index), left.sum(), landed.sum(), (~left).sum()],
        )
        time = np.concatenate(
            [
                flights.scheduled - ANNOUNCED_BEFORE,
                flights.departed[left],
                flights.ended[landed],
                flights.scheduled[~left],
            ]
        )
        order = np.argsort(time, kind="stable")
        start = int(time.min()) // slice_minutes * slice_minutes
        return cls(
            flights=flights,
            flight=flight[order],
            stage=stage[order],
            time=time[order],
            start=start,
            slice_minutes=slice_minutes,
            batches=(int(time.max()) - start) // slice_minutes + 1,
        )

    def only(self, flights: Flags) -> EventStream:
        """Return the events of some flights, in batches with the same numbers.

        Parameters
        ----------
        flights : bool array
            One entry per flight.
        """
        chosen = flights[self.flight]
        return EventStream(
            flights=self.flights,
            flight=self.flight[chosen],
            stage=self.stage[chosen],
            time=self.time[chosen],
            start=self.start,
            slice_minutes=self.slice_minutes,
            batches=self.batches,
        )

    @property
    def batch_of(self) -> Integers:
        """Return the batch number of each event."""
        return (self.time - self.start) // self.slice_minutes

    def read(self, first: int = 0) -> Iterator[Batch]:
        """Yield batches with at least one event, from batch `first` on."""
        bounds = np.searchsorted(self.batch_of, np.arange(first, self.batches + 1))
        for number, (begin, end) in enumerate(
            zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True), start=first
        ):
            if begin < end:
                yield self._batch(number, slice(begin, end))

    def _batch(self, number: int, events: slice) -> Batch:
        stage = self.stage[events]
        gone = stage == CANCELLED
        upserts = rows_at(
            self.flights, self.flight[events][~gone], stage[~gone], self.time[events][~gone]
        )
        keys = self.flights.facts[KEY].take(pa.array(self.flight[events][gone]))
        return Batch(
            number=number,
            upserts=upserts,
            deletes=pa.record_batch([_one_chunk(keys)], schema=pa.schema([SCHEMA.field(KEY)])),
        )


def rows_at(flights: Flights, flight: Integers, stage: Integers, time: Minutes) -> pa.RecordBatch:
    """Return rows of the table in their state after one event each.

    Parameters
    ----------
    flight, stage, time : int64 arrays
        One entry per row: index of the flight, stage (not `CANCELLED`), and time of the event in
        minutes since 1970.
    """
    facts = flights.facts.take(pa.array(flight))
    columns: dict[str, Any] = {name: facts[name] for name in facts.column_names}
    for name, since in KNOWN_FROM.items():
        columns[name] = pc.if_else(pa.array(stage >= since), columns[name], None)
    ended = pc.if_else(pc.is_null(columns["arrival_delay_minutes"]), "diverted", "arrived")
    before = pc.if_else(pa.array(stage == SCHEDULED), "scheduled", "departed")
    columns["status"] = pc.if_else(pa.array(stage == ENDED), ended, before)
    columns["updated_at"] = pa.array(time * MICROSECONDS).cast(TIMESTAMP)
    return pa.record_batch(
        [_one_chunk(columns[name]).cast(SCHEMA.field(name).type) for name in SCHEMA.names],
        schema=SCHEMA,
    )


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
