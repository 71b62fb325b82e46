"""The flights example: its stream of events, its checks, and the whole of it on a small scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from compare import compare
from flightdata import KEY, SCHEMA, Flights, load, truth
from plausible import PlausibleStates
from run import REGION_IDS, REGIONS, Progress, Settings, progress_file
from stream import ANNOUNCED_BEFORE, CANCELLED, EventStream, rows_at


@pytest.fixture(scope="module")
def year() -> Flights:
    return load()


@pytest.fixture(scope="module")
def january() -> EventStream:
    return EventStream.of(load(5_000), slice_minutes=6 * 60)


def visible_after(stream: EventStream, batches: np.ndarray | int) -> pa.Table:
    """The table after the first batches; `batches` may be one number per flight."""
    events = np.flatnonzero(
        stream.batch_of < np.broadcast_to(batches, len(stream.flights))[stream.flight]
    )
    newest = np.full(len(stream.flights), -1)
    newest[stream.flight[events]] = events
    newest = newest[newest >= 0]
    newest = newest[stream.stage[newest] != CANCELLED]
    rows = rows_at(stream.flights, stream.flight[newest], stream.stage[newest], stream.time[newest])
    return pa.Table.from_batches([rows])


class TestFlights:
    def test_key_is_unique_in_the_whole_year(self, year: Flights) -> None:
        assert len(year) == 336_776
        assert pc.count_distinct(year.facts[KEY]).as_py() == 336_776

    def test_times_in_utc_agree_with_the_time_in_the_air(self, year: Flights) -> None:
        """Each flight takes longer from gate to gate than in the air, in whatever zone it ends."""
        in_the_air = pc.fill_null(year.facts["air_time_minutes"], -1).to_numpy()
        arrived = in_the_air >= 0
        gate_to_gate = year.ended - year.departed
        assert arrived.sum() == 327_346
        assert (gate_to_gate[arrived] > in_the_air[arrived]).all()

    def test_first_flight_as_the_airport_clocks_showed_it(self) -> None:
        row = load(1).facts.to_pylist()[0]
        # 5:15 in Newark, 8:19 by the schedule in Houston; two minutes late, then eleven.
        assert row[KEY] == "UA1545/2013-01-01/EWR"
        assert row["scheduled_departure"].isoformat() == "2013-01-01T10:15:00+00:00"
        assert row["departure"].isoformat() == "2013-01-01T10:17:00+00:00"
        assert row["scheduled_arrival"].isoformat() == "2013-01-01T14:19:00+00:00"
        assert row["arrival"].isoformat() == "2013-01-01T14:30:00+00:00"


class TestStream:
    @pytest.mark.parametrize(
        ("limit", "events"),
        [(20_000, 59_804), pytest.param(None, 1_001_615, marks=pytest.mark.slow)],
    )
    def test_folding_the_stream_gives_the_truth(self, limit: int | None, events: int) -> None:
        flights = load(limit)
        batches = list(EventStream.of(flights, slice_minutes=6 * 60).read())
        written = pa.Table.from_batches([batch.upserts for batch in batches])
        deleted = pa.Table.from_batches([batch.deletes for batch in batches])
        assert written.num_rows + deleted.num_rows == events

        row_of = pc.index_in(written[KEY], flights.facts[KEY].combine_chunks()).to_numpy()
        last = np.full(len(flights), -1)
        last[row_of] = np.arange(written.num_rows)
        # No flight is written again once it was cancelled, so the order of deletes is settled.
        batch_of_row = np.repeat([b.number for b in batches], [len(b.upserts) for b in batches])
        batch_of_delete = np.repeat([b.number for b in batches], [len(b.deletes) for b in batches])
        gone = pc.index_in(deleted[KEY], flights.facts[KEY].combine_chunks()).to_numpy()
        assert (batch_of_row[last[gone]] <= batch_of_delete).all()
        last[gone] = -1

        folded = written.take(pa.array(np.sort(last[last >= 0])))
        result = compare(truth(flights), folded, key=KEY, reader="fold")
        assert result.equal, result.examples
        assert folded.sort_by(KEY).equals(truth(flights))

    def test_batches_hold_two_events_of_one_flight_in_order(self, january: EventStream) -> None:
        batches = list(january.read())
        assert any(pc.count_distinct(b.upserts[KEY]).as_py() < len(b.upserts) for b in batches)
        assert any(len(b.deletes) for b in batches)
        for batch in batches:
            times = batch.upserts["updated_at"].cast(pa.int64()).to_numpy()
            assert (np.diff(times) >= 0).all()

    def test_announcement_tells_nothing_that_only_the_flight_can(
        self, january: EventStream
    ) -> None:
        first = next(january.read()).upserts
        announced = first.filter(pc.equal(first["status"], "scheduled"))
        assert len(announced) > 0
        for name in ("tail_number", "departure", "arrival", "air_time_minutes"):
            assert announced[name].null_count == len(announced)
        ahead = pc.subtract(announced["scheduled_departure"], announced["updated_at"])
        assert set(ahead.cast(pa.int64()).to_pylist()) == {ANNOUNCED_BEFORE * 60_000_000}

    def test_parts_cover_the_stream_with_the_same_batch_numbers(self, january: EventStream) -> None:
        mine = np.arange(len(january.flights)) % 3 == 0
        parts = [january.only(mine), january.only(~mine)]
        assert sum(map(len, parts)) == len(january)
        whole = {batch.number: batch.writes for batch in january.read()}
        for part in parts:
            for batch in part.read():
                whole[batch.number] -= batch.writes
        assert set(whole.values()) == {0}

    def test_reading_on_from_a_batch_repeats_nothing(self, january: EventStream) -> None:
        everything = list(january.read())
        rest = list(january.read(10))
        assert [b.number for b in rest] == [b.number for b in everything if b.number >= 10]
        assert rest[0].upserts.equals(
            next(b for b in everything if b.number == rest[0].number).upserts
        )

    @pytest.mark.few(2)
    @pytest.mark.parametrize(("killed_at", "resumed_at"), [(20, 20), (20, 19), (28, 5), (1, 0)])
    def test_sending_batches_again_ends_in_the_truth(
        self, january: EventStream, killed_at: int, resumed_at: int
    ) -> None:
        sent = [batch for batch in january.read() if batch.number <= killed_at]
        sent += january.read(resumed_at)
        state: dict[str, dict[str, object]] = {}
        for batch in sent:
            state |= {row[KEY]: row for row in batch.upserts.to_pylist()}
            for key in batch.deletes[KEY].to_pylist():
                state.pop(key, None)
        folded = pa.Table.from_pylist(list(state.values()), schema=SCHEMA)
        assert folded.sort_by(KEY).equals(truth(january.flights))


class TestProgress:
    def test_survives_a_kill_while_it_is_replaced(self, tmp_path: Path) -> None:
        path = progress_file(tmp_path, 1)
        assert Progress.of(path) == Progress()
        Progress(acknowledged=7, upserts=70).save(path)
        path.with_name(f".{path.name}.tmp").write_text('{"acknowledged": 8, "up')
        assert Progress.of(path) == Progress(acknowledged=7, upserts=70)
        Progress(acknowledged=9).save(path)
        assert Progress.of(path) == Progress(acknowledged=9)

    @pytest.mark.parametrize("producers", [1, 2, 3, 8])
    def test_every_region_has_one_producer(self, producers: int) -> None:
        settings = Settings(table="t", producers=producers)
        owned = [region for one in range(producers) for region in settings.regions_of(one)]
        assert sorted(owned) == list(range(REGIONS))
        assert len(set(REGION_IDS)) == REGIONS


class TestCompare:
    @pytest.fixture
    def expected(self) -> pa.Table:
        return pa.table({"k": ["a", "b", "c"], "v": [1, None, 3]})

    def test_order_of_rows_does_not_matter(self, expected: pa.Table) -> None:
        assert compare(expected, expected.take([2, 0, 1]), key="k", reader="r").equal

    def test_every_kind_of_difference_is_told(self, expected: pa.Table) -> None:
        actual = pa.table({"k": ["a", "a", "b", "d"], "v": [1, 7, 0, 4]})
        result = compare(expected, actual, key="k", reader="r")
        assert not result.equal
        assert (result.duplicates, result.missing, result.unexpected) == (1, 1, 1)
        assert result.columns == {"v": 2}
        assert "missing: c" in result.examples
        assert "unexpected: d" in result.examples
        assert any(example.startswith("b: v ") for example in result.examples)


class TestPlausibleStates:
    @pytest.fixture
    def states(self, january: EventStream) -> PlausibleStates:
        return PlausibleStates(january, self.regions(january))

    def regions(self, stream: EventStream) -> np.ndarray:
        return np.arange(len(stream.flights)) % REGIONS

    def test_regions_may_be_ahead_of_each_other(
        self, january: EventStream, states: PlausibleStates
    ) -> None:
        ahead = np.arange(REGIONS) * 2
        for batches in range(0, january.batches + 1, 5):
            look = states.check(visible_after(january, (batches + ahead)[self.regions(january)]))
            assert look.problems == ()
        assert look.newest_batch == january.batches - 1

    def test_part_of_the_newest_batch_may_be_visible(
        self, january: EventStream, states: PlausibleStates
    ) -> None:
        half = np.arange(len(january.flights)) % 2
        assert states.check(visible_after(january, 20 + half)).problems == ()

    def test_lost_batch_in_one_region(self, january: EventStream, states: PlausibleStates) -> None:
        seen = visible_after(january, 30)
        old = np.where(np.arange(len(january.flights)) % 100 == 0, 20, 30)
        look = states.check(visible_after(january, old))
        assert seen.num_rows >= look.rows
        assert any("older than their region" in problem for problem in look.problems)

    def test_cancelled_flight_that_came_back(
        self, january: EventStream, states: PlausibleStates
    ) -> None:
        cancelled = np.flatnonzero(january.stage == CANCELLED)[:1]
        flight = january.flight[cancelled]
        announced = january.flights.scheduled[flight] - ANNOUNCED_BEFORE
        ghost = rows_at(january.flights, flight, np.zeros(1, np.int64), announced)
        everything = visible_after(january, january.batches)
        look = states.check(pa.concat_tables([everything, pa.Table.from_batches([ghost])]))
        assert look.problems == ("1 flights there after their cancellation",)
