"""Histories that are right, and histories that are wrong in each way, are told apart."""

import pytest
from histories.checker import check
from histories.events import UNKNOWN, Bound, History, Level, Read, Value
from histories.smallest import Event
from support.oracles.truth import Write

ALL = frozenset({1})


def w(value: Value, begin: float, end: float = UNKNOWN, *, sure: bool = True) -> Write[int]:
    return Write(1, value, begin, end, sure and end != UNKNOWN, who="writer")


def own(value: Value, begin: float, end: float) -> Read:
    """A read in the process that has the region."""
    return Read("owner", 1, value, begin, end, Level.STRONG, Level.STRONG)


def far(value: Value, begin: float, end: float, *, stale: float = 0.0) -> Read:
    """A read in another process."""
    return Read("reader", 1, value, begin, end, Level.FLUSHED, Level.FLUSHED, stale)


def base(value: Value, begin: float, end: float) -> Read:
    """A read of the base table."""
    return Read("lance", 1, value, begin, end, Level.MERGED, Level.MERGED)


def lost_hold(value: Value, begin: float, end: float) -> Read:
    """A read in a process that had the region once."""
    return Read("fenced", 1, value, begin, end, Level.FLUSHED, Level.STRONG)


def flush(begin: float, end: float) -> Bound:
    return Bound("writer", Level.FLUSHED, begin, end, ALL)


def merge(begin: float, end: float) -> Bound:
    return Bound("job", Level.MERGED, begin, end)


def history(*events: Event | Bound) -> History:
    return History(
        [e for e in events if isinstance(e, Write)],
        [e for e in events if isinstance(e, Read)],
        [e for e in events if isinstance(e, Bound)],
    )


GOOD = {
    "one after the other": [w(5, 0, 1), own(5, 2, 3), w(None, 4, 5), own(None, 6, 7)],
    "nothing was ever written": [own(None, 0, 1), far(None, 2, 3)],
    "at the same time": [w(5, 0, 9), w(6, 1, 8), own(6, 2, 3), own(5, 4, 5)],
    "seen before it is acknowledged": [w(5, 0, 9), own(5, 1, 2), own(5, 3, 4)],
    "a write of unknown outcome that happened late": [w(5, 0), own(None, 1, 2), own(5, 50, 51)],
    "a write of unknown outcome that never happened": [w(5, 0), own(None, 99, 100)],
    "a delete of unknown outcome that happened": [
        *(w(5, 0, 1), w(None, 2), own(5, 3, 4), own(None, 5, 6)),
    ],
    "a delete of unknown outcome until a claim": [
        *(w(5, 0, 1), w(None, 2, 4, sure=False), own(None, 9, 10)),
    ],
    "two deletes, each seen": [
        *(w(5, 0, 1), w(None, 2, 3), own(None, 4, 5)),
        *(w(6, 6, 7), w(None, 8, 9), own(None, 10, 11)),
    ],
    "behind, without a flush": [w(5, 0, 1), w(6, 2, 3), far(None, 4, 5), far(5, 6, 7)],
    "behind a flush that goes on": [w(5, 0, 1), flush(2, 9), far(None, 3, 8)],
    "behind a flush that began before": [w(5, 1, 3), flush(2, 4), far(None, 5, 6)],
    "own reads first": [w(5, 0, 1), own(5, 2, 3), far(None, 4, 5)],
    "a process that lost its region": [w(5, 0, 1), w(6, 2, 3), lost_hold(5, 4, 5)],
    "not flushed, and seen by whoever had it": [w(5, 0, 1), lost_hold(5, 2, 3), far(None, 4, 5)],
    "the base table is behind": [w(5, 0, 1), flush(2, 3), far(5, 4, 5), base(None, 6, 7)],
    "merged what was flushed before": [w(5, 0, 1), merge(2, 3), flush(4, 5), base(None, 6, 7)],
    "as stale as was allowed": [w(5, 0, 1), flush(2, 3), far(None, 9, 10, stale=6)],
    "stale after fresh": [w(5, 0, 1), far(5, 2, 3), far(None, 4, 5, stale=6)],
}  # fmt: skip

BAD = {
    "an own read of what was replaced": (
        "a read is older than it may be",
        [w(5, 0, 1), w(6, 2, 3), own(5, 4, 5)],
    ),
    "an own read without the row": ("an acknowledged write is lost", [w(5, 0, 1), own(None, 2, 3)]),
    "lost after it was seen": (
        "an acknowledged write is lost",
        [w(5, 0, 1), own(5, 0.5, 3), own(None, 4, 5)],
    ),
    "lost, though an old delete is in doubt": (
        "an acknowledged write is lost",
        [w(None, 0, 2, sure=False), w(5, 3, 4), own(None, 9, 10)],
    ),
    "lost in a flush": (
        "an acknowledged write is lost",
        [w(5, 0, 1), flush(2, 3), far(None, 4, 5)],
    ),
    "lost in a merge": (
        "an acknowledged write is lost",
        [w(5, 0, 1), flush(2, 3), merge(4, 5), base(None, 6, 7)],
    ),
    "replaced before the bound": (
        "a read is older than it may be",
        [w(5, 0, 1), w(6, 2, 3), flush(4, 5), far(5, 6, 7)],
    ),
    "older than was allowed": (
        "an acknowledged write is lost",
        [w(5, 0, 1), flush(2, 3), far(None, 9, 10, stale=5)],
    ),
    "back after a delete": (
        "a deleted row is back",
        [w(5, 0, 1), w(None, 2, 3), own(5, 4, 5)],
    ),
    "back, seen from afar": (
        "a deleted row is back",
        [w(5, 0, 1), w(None, 2, 9), far(5, 3, 4), far(None, 5, 6), far(5, 7, 8)],
    ),
    "going back": (
        "a read went back",
        [w(5, 0, 9), w(6, 0, 9), far(5, 1, 2), far(6, 3, 4), far(5, 5, 6)],
    ),
    "the base table going back": (
        "a read went back",
        [w(5, 0, 1), w(6, 2, 3), base(6, 4, 5), base(5, 6, 7)],
    ),
    "own after far": ("a read went back", [w(5, 0, 9), far(5, 1, 2), own(None, 3, 4)]),
    "a write of unknown outcome after a claim ended it": (
        "a read is older than it may be",
        [w(5, 0, 2, sure=False), w(6, 3, 4), own(6, 5, 6), own(5, 7, 8)],
    ),
    "seen and then never again": (
        "a read went back",
        [w(5, 0), own(5, 1, 2), own(None, 3, 4)],
    ),
    "never written": ("a value that was never written", [w(5, 0, 1), far(7, 2, 3)]),
    "not yet written": ("a value that was not written yet", [far(5, 0, 1), w(5, 2, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_wrong(name: str) -> None:
    assert check(history(*GOOD[name])) == []


@pytest.mark.parametrize("name", BAD)
def test_something_is_wrong(name: str) -> None:
    what, events = BAD[name]

    (verdict,) = check(history(*events))

    assert verdict.what == what, verdict.words
