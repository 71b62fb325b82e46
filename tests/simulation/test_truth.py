"""A wrong read is refused by everything that knows which rows a read may show."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest
from histories import checker
from histories.events import History, Level, Read
from simulation.lake import Lake
from simulation.world import CALM, World
from support.oracles.auditor import Auditor
from support.oracles.truth import Truth, Write, may_show

Rows = dict[int, int | None]

WRITES: list[Rows] = [{1: 5, 2: 6, 3: 7}, {2: None, 3: 8}]
RIGHT = {1: 5, 3: 8}
WRONG = {
    "an acknowledged row is lost": {3: 8},
    "a deleted row is shown": {1: 5, 2: 6, 3: 8},
    "an older version is shown": {1: 5, 3: 7},
    "a row that was never written is shown": {1: 5, 3: 8, 4: 9},
}


def written() -> Truth[int]:
    """The writes, acknowledged together by one writer."""
    truth: Truth[int] = Truth(in_order=True)
    for change in WRITES:
        truth.begin(change)
    truth.acknowledge()
    return truth


def doubtful(shown: Rows) -> None:
    """The process before a claim wrote without an answer, and goes on after the claim."""
    truth: Truth[int] = Truth()
    truth.begin({2: 6}, epoch=1)
    truth.fence(None, 2)
    truth.begin({3: 7}, epoch=1)
    truth.acknowledge(truth.begin({1: 5} | WRITES[1], epoch=2))
    truth.check(shown, "a read")


def audited(shown: Rows) -> None:
    """Of what came since the snapshot nothing must be there."""
    auditor = Auditor()
    auditor.wrote(WRITES[0])
    auditor.wrote({3: 8}, [2])
    auditor.snapshot_begins()
    auditor.wrote({5: 1})
    auditor.truth.check(shown, "a read", lambda write: write.end <= auditor.snapshot)


def simulated(shown: Rows, flushed: dict[UUID, int] | None = None) -> None:
    """Of two writes at the same time, the position in the log tells which is the newer one."""
    lake = Lake(World(0, CALM), regions=1, keys=5, retention=timedelta(0))
    begun = [lake.begin({key: value or 0 for key, value in rows.items()}) for rows in WRITES]
    for position, writes in enumerate(begun, 1):
        lake.truth.acknowledge(writes, 1.0, position=position)
    lake.check(shown, "a read", since=2.0, flushed=flushed)


def recorded(shown: Rows) -> None:
    """Each key is read once, when all writes have ended."""
    reads = [
        Read("reader", key, shown.get(key), 9, 9, Level.STRONG, Level.STRONG)
        for key in {1: 0, 2: 0, 3: 0, **shown}
    ]
    assert not checker.check(History(written().writes, reads))


CHECKS: dict[str, Callable[[Rows], None]] = {
    "buffered": lambda shown: written().check(shown, "a read"),
    "crash": lambda shown: written().settle(shown),
    "in doubt": doubtful,
    "audited": audited,
    "simulated": simulated,
    "simulated, flushed": partial(simulated, flushed={UUID(int=0): 2}),
    "history": recorded,
}


@pytest.mark.parametrize("check", CHECKS)
def test_wrong_reads_are_refused(check: str) -> None:
    CHECKS[check](RIGHT)
    for wrong in WRONG.values():
        with pytest.raises(AssertionError):
            CHECKS[check](wrong)


def test_what_is_in_doubt_may_be_there_or_not() -> None:
    truth = written()
    begun = truth.begin({1: None, 3: 9, 4: 9}, epoch=2)
    # Not of an earlier claim.
    truth.fence(None, 2)
    for shown in (RIGHT, {3: 8}, {1: 5, 3: 9}, {1: 5, 3: 8, 4: 9}):
        truth.check(shown, "a read")
    truth.acknowledge(truth.begin({3: 10}))
    truth.check({1: 5, 3: 9}, "a read that another write came before")
    truth.refuse(begun)
    truth.check({1: 5, 3: 10}, "a read")
    for wrong in ({3: 10}, {1: 5, 2: None, 3: 10}):
        with pytest.raises(AssertionError):
            truth.check(wrong, "a read")
    assert may_show([Write(1, 5, begin=2)], [], until=1) == [None]


def test_after_a_crash_a_write_in_doubt_is_there_as_a_whole_or_not_at_all() -> None:
    truth = written()
    truth.begin({1: 10, 3: 10})
    truth.begin({4: 11})
    for possible in (RIGHT, {1: 10, 3: 10}, {1: 10, 3: 10, 4: 11}):
        assert possible in truth.possible()
    for impossible in ({}, WRITES[0], {1: 10, 3: 8}, {**RIGHT, 4: 11}):
        assert impossible not in truth.possible()
    truth.settle(RIGHT)
    with pytest.raises(AssertionError):
        truth.check({1: 10, 3: 10}, "a read")
