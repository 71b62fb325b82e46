from datetime import UTC, datetime, timedelta

from memwal.catalog import BacklogSample
from memwal.catalog.history import MergedRowCount
from memwal.fleet.overview import Rates, current_rates, history_points

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def sample(minutes: float, rows: int) -> BacklogSample:
    at = NOW - timedelta(minutes=minutes)
    return BacklogSample(table="a", at=at, generations=1, rows=rows, bytes=0, wal_entries=0)


def merged(minutes: float, rows: int) -> MergedRowCount:
    return MergedRowCount("a", NOW - timedelta(minutes=minutes), rows)


def test_what_comes_in_is_the_growth_and_what_was_merged_meanwhile() -> None:
    merges = [merged(14, 9000), merged(5, 600)]
    found = current_rates(sample(10, 100), sample(0, 700), merges)
    # The earlier merge is not between the samples.
    assert found == Rates(rows_in=(600 + 600) / 600, rows_merged=9600 / 900)


def test_it_is_never_below_nothing() -> None:
    # Rows of one key were merged as one.
    assert current_rates(sample(10, 1000), sample(0, 0), [merged(5, 10)]).rows_in == 0.0


def test_one_sample_tells_no_rate() -> None:
    one = sample(1, 5)
    assert current_rates(one, one, []) == Rates(rows_in=None, rows_merged=0.0)
    assert current_rates(None, one, [merged(1, 9)]) == Rates(rows_in=None, rows_merged=0.01)
    assert current_rates(None, None, []).rows_in is None


def test_the_rates_of_a_history() -> None:
    samples = [sample(10, 0), sample(8, 240), sample(8, 240), sample(4, 0)]
    first, second, same, last = history_points(samples, [merged(8, 120), merged(5, 240)])
    assert first.rates is None
    assert second.rates == Rates(rows_in=3.0, rows_merged=1.0)
    assert same.rates is None
    assert last.rates == Rates(rows_in=0.0, rows_merged=1.0)
    assert history_points([], []) == []
    plain = second.to_dict()
    assert plain["rows_in_per_second"] == 3.0
    assert plain["at"] == "2026-11-01T11:52:00+00:00"
