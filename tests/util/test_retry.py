"""Retrying after lost races."""

import pytest
from support.stores.faulty_store import skip_waits

from memwal.errors import ConflictError, StoreAccessError, StoreUnavailableError
from memwal.util import retry
from memwal.util.retry import (
    MAX_LOST_WRITES,
    LostRaceError,
    LostWriteError,
    conflict_delay,
    retry_errors,
    retry_lost_races,
    retry_unavailable,
)


class Race:
    """A step that loses some times before it wins."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.losses:
            raise LostRaceError from OSError("another commit")
        return self.calls


def test_a_lost_race_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_waits(monkeypatch)
    step = Race(2)
    assert retry_lost_races(step, attempts=3, seconds=60, exhausted=ConflictError("x")) == 3


def test_the_last_loss_raises_the_error_of_the_caller_with_the_cause() -> None:
    step = Race(5)
    exhausted = ConflictError("try again later")
    with pytest.raises(ConflictError) as raised:
        retry_lost_races(step, attempts=3, exhausted=exhausted)
    assert raised.value is exhausted
    assert isinstance(raised.value.__cause__, OSError)
    assert step.calls == 3


@pytest.mark.parametrize("losses", [MAX_LOST_WRITES - 1, MAX_LOST_WRITES])
def test_a_lost_write_is_repeated_a_few_times(losses: int) -> None:
    calls = 0

    def step() -> int:
        nonlocal calls
        calls += 1
        if calls <= losses:
            raise LostWriteError("a file has no bytes")
        return calls

    def run() -> int:
        return retry_lost_races(step, attempts=50, exhausted=ConflictError("x"))

    if losses < MAX_LOST_WRITES:
        assert run() == MAX_LOST_WRITES
    else:
        with pytest.raises(LostWriteError):
            run()
    assert calls == MAX_LOST_WRITES


def test_other_errors_are_raised_at_once() -> None:
    calls = []

    def step() -> None:
        calls.append(1)
        raise ConflictError("of something else")

    with pytest.raises(ConflictError, match="of something else"):
        retry_lost_races(step, attempts=3, exhausted=ConflictError("exhausted"))
    assert len(calls) == 1


def test_waits_are_random_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", waits.append)
    retry_lost_races(Race(40), attempts=41, seconds=0.5, exhausted=ConflictError("x"))
    assert len(waits) == 40
    assert all(0 <= wait <= 0.5 * min(number, 20) for number, wait in enumerate(waits, start=1))
    assert len(set(waits)) > 1
    assert max(conflict_delay(1000, 1) for _ in range(1000)) <= 20


def test_a_store_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_waits(monkeypatch)
    failures = [StoreUnavailableError("no answer")] * 4

    def step() -> str:
        if failures:
            raise failures.pop()
        return "answer"

    assert retry_unavailable(step) == "answer"
    failures += [StoreUnavailableError("no answer")] * 2
    with pytest.raises(StoreUnavailableError):
        retry_unavailable(step, attempts=2)
    failures[:] = [StoreAccessError("refused")]
    with pytest.raises(StoreAccessError):
        retry_unavailable(step)


@pytest.mark.parametrize(("seconds", "calls"), [(0, 1), (60, 3)])
def test_attempts_are_limited_in_number_and_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, calls: int
) -> None:
    skip_waits(monkeypatch)
    step = Race(5)
    with pytest.raises(LostRaceError):
        retry_errors(step, (ConflictError,), 3, first_wait=1, longest_wait=2, seconds=seconds)
    assert step.calls == calls
