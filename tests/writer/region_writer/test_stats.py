"""What a writer counts, and how it is shown."""

import json
from uuid import UUID

import pyarrow as pa
import pytest
from support.metrics.region_stats import region_stats

from memwal.errors import BackPressureError, StoreUnavailableError
from memwal.storage.location import TableLocation
from memwal.util.log import safe_error_text
from memwal.writer.region_writer.stats import RegionCounters, Totals, WriterCounters

FIRST, SECOND = UUID(int=1), UUID(int=2)


def busy(counters: RegionCounters) -> None:
    """Count everything once."""
    counters.buffered_writes += 2
    counters.buffered_bytes += 200
    counters.add_entry(2, 20, 2000, 0.5)
    counters.add_flush(10, 1000, 1.5)
    counters.record_error(StoreUnavailableError("gone"))
    counters.add_wait(0.25)


BUSY = Totals(
    writes=2,
    rows=20,
    bytes=2000,
    entries=1,
    entry_bytes=2000,
    append_seconds=0.5,
    generations=1,
    flushed_rows=10,
    flushed_bytes=1000,
    flush_seconds=1.5,
    backpressure_waits=1,
    backpressure_seconds=0.25,
)


@pytest.fixture
def counters() -> WriterCounters:
    return WriterCounters(TableLocation("/lake/flights"))


class TestStats:
    def test_of_a_writer_cover_what_it_released(self, counters: WriterCounters) -> None:
        busy(counters.region(FIRST))
        busy(counters.region(SECOND))
        stats = counters.stats(
            [
                region_stats(
                    counters.region(SECOND), memtable_bytes=5, sealed_bytes=7, sealed_memtables=2
                )
            ],
            closed=False,
        )
        assert stats.totals == BUSY + BUSY
        assert [region.region_id for region in stats.regions] == [SECOND]
        assert stats.memtable_bytes == 12
        assert stats.sealed_memtables == 2
        assert (stats.buffered_writes, stats.buffered_bytes) == (2, 200)

    def test_are_ordered_and_tell_the_oldest_row(self, counters: WriterCounters) -> None:
        stats = counters.stats(
            [
                region_stats(counters.region(SECOND), unflushed_age_seconds=3.0),
                region_stats(counters.region(FIRST), unflushed_age_seconds=8.0),
            ],
            closed=True,
        )
        assert [region.region_id for region in stats.regions] == [FIRST, SECOND]
        assert stats.unflushed_age_seconds == 8.0
        assert stats.closed
        assert counters.stats([], closed=False).unflushed_age_seconds == 0.0

    def test_go_into_json(self, counters: WriterCounters) -> None:
        busy(counters.region(FIRST))
        stats = counters.stats([region_stats(counters.region(FIRST), fenced=True)], closed=False)
        read = json.loads(json.dumps(stats.to_dict()))
        assert read["uri"] == "/lake/flights"
        assert read["totals"]["rows"] == 20
        assert read["buffered_writes"] == 2
        (region,) = read["regions"]
        assert region["region_id"] == str(FIRST)
        assert region["totals"]["append_seconds"] == 0.5
        assert region["fenced"] is True
        assert region["last_error"] == "StoreUnavailableError: gone"


class TestShownError:
    def test_blanks_secrets_of_the_storage_options_out(self) -> None:
        location = TableLocation("s3://lake/flights", {"aws_secret_access_key": "hunter2hunter2"})
        region = WriterCounters(location).region(FIRST)
        region.record_error(BackPressureError("signed with hunter2hunter2, and refused"))
        assert region.last_error == "BackPressureError: signed with ***, and refused"

    def test_repeats_no_message_that_may_quote_a_row(self) -> None:
        with pytest.raises(pa.ArrowInvalid) as caught:
            pa.array(["the marker"]).cast(pa.int64())
        assert "the marker" in str(caught.value)
        assert safe_error_text(caught.value) == "ArrowInvalid"

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (BackPressureError("first\nsecond"), "BackPressureError: first"),
            (OSError(28, "No space left on device", "/secret"), "OSError: No space left on device"),
            (OSError("from Lance, with a value"), "OSError"),
            (KeyError("value"), "KeyError"),
        ],
    )
    def test_is_one_line(self, error: Exception, text: str) -> None:
        assert safe_error_text(error) == text

    def test_is_not_endless(self) -> None:
        assert len(safe_error_text(BackPressureError("x" * 10_000))) < 500
