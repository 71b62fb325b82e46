"""Options of a writer."""

from datetime import timedelta

import pytest

import memwal
from memwal.errors import InvalidInputError


@pytest.mark.parametrize(
    "name",
    [
        "max_memtable_rows",
        "max_memtable_bytes",
        "max_sealed_memtables",
        "max_entry_bytes",
        "flush_attempts",
    ],
)
def test_counts_are_at_least_one(name: str) -> None:
    memwal.WriterOptions(**{name: 1})
    for wrong in (0, -1):
        with pytest.raises(InvalidInputError, match=name):
            memwal.WriterOptions(**{name: wrong})


@pytest.mark.parametrize("name", ["backpressure_timeout", "epoch_check_interval"])
def test_times_are_not_negative(name: str) -> None:
    memwal.WriterOptions(**{name: 0})
    with pytest.raises(InvalidInputError, match=name):
        memwal.WriterOptions(**{name: -0.1})


def test_durations_are_seconds_or_timedeltas() -> None:
    options = memwal.WriterOptions(max_memtable_age=timedelta(minutes=1), buffer_interval=0.5)
    assert options.max_memtable_age == timedelta(minutes=1)
    with pytest.raises(InvalidInputError):
        memwal.WriterOptions(max_memtable_age=timedelta(0))
    with pytest.raises(InvalidInputError):
        memwal.WriterOptions(buffer_interval=timedelta(seconds=-1))
