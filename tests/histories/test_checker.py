"""Histories that are right, and histories that are wrong in each way, are told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories.checker import check
from histories.events import UNKNOWN, Bound, History, Level, Read, Value, Write

ALL = frozenset({1})


def w(value: Value, begin: float, end: float = UNKNOWN, *, sure: bool = True) -> Write:
    return Write("writer", 1, value, begin, end, sure and end != UNKNOWN)


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


def history(*events: Read | Write | Bound) -> History:
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


@pytest.mark.parametrize("name", BAD)
def test_the_answer_names_no_more_than_is_wrong(name: str) -> None:
    """Whatever happens before, meanwhile and afterwards, the same few events are named."""
    what, events = BAD[name]
    (alone,) = check(history(*events))

    (verdict,) = check(_in_company(events))

    assert verdict.what == what
    assert len(verdict.events) <= len(alone.events)
    assert set(verdict.events) <= set(events)
    for left_out in verdict.events:
        rest = [event for event in verdict.events if event is not left_out]
        if isinstance(left_out, Read) or left_out.value not in _seen(rest):
            assert check(history(*rest, *_beside(rest, events))) == []


def _seen(events: list[Read | Write]) -> set[Value]:
    return {event.value for event in events if isinstance(event, Read)}


def _beside(
    rest: list[Read | Write], events: list[Read | Write | Bound]
) -> list[Read | Write | Bound]:
    """Bounds, and deletes as something that may have happened."""
    return [
        event if isinstance(event, Bound) else replace(event, sure=False)
        for event in events
        if isinstance(event, Bound)
        or (isinstance(event, Write) and event.value is None and event not in rest)
    ]


def _in_company(events: list[Read | Write | Bound]) -> History:
    """The same events among others that are right."""
    found = history(*events)
    for number in range(100, 130):
        found.writes.append(w(number, -200 + number, -199.5 + number))
        found.reads.append(own(number, -199.4 + number, -199.1 + number))
    found.writes.append(w(None, -60, -59))
    found.bounds += [flush(-58, -57), merge(-56, -55)]
    # Another key, with the same values.
    found.writes += [replace(write, key=2, sure=False, end=UNKNOWN) for write in found.writes[:5]]
    return found


def test_the_words_tell_who_did_what_and_when() -> None:
    second = 1_000_000_000
    events = [
        w(5, 0, second),
        own(5, second // 2, 2 * second),
        w(6, 3 * second, 4 * second),
        own(5, 5 * second, 6 * second),
        w(None, 7 * second),
    ]

    (verdict,) = check(history(*events))

    assert str(verdict).splitlines() == [
        "key 1: a read is older than it may be. These cannot all have happened:",
        "     0.000s ..    1.000s  writer writes 5",
        "     3.000s ..    4.000s  writer writes 6",
        "     5.000s ..    6.000s  owner sees 5 in its own process",
    ]


def test_the_words_tell_what_lies_between() -> None:
    (verdict,) = check(history(*BAD["lost in a merge"][1]))

    assert [line.split("  ")[-1] for line in str(verdict).splitlines()[1:]] == [
        "writer writes 5",
        "writer flushes what was there before",
        "job merges what was there before",
        "lance sees no row in the base table",
    ]
