"""What is wrong with a history, as little of it as shows it.

Each key is looked at by itself. A read comes after what was before it as far as it sees: a strong
one after everything that had ended; one of what is flushed after what had ended before a flush
that was over when it began, and after other such reads; one of the base table after what was
flushed before a checkpoint, and after other reads of the base table. What each read may show is
known by :mod:`support.oracles.truth`. So if a key never goes back and is never older than its
bound, its reads and writes have an order: :mod:`histories.register`.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from histories.events import NEVER, UNKNOWN, Bound, History, Key, Level, Read, Value
from histories.register import Step, can_be_ordered
from histories.smallest import Event, smallest
from support.oracles.truth import Write, may_show


@dataclass(frozen=True)
class Verdict:
    """What is wrong with one key.

    Attributes
    ----------
    key : int
    what : str
        In a few words.
    events : tuple
        As few reads and writes as cannot all have happened, in the order of their beginnings.
    words : str
        The same for people.
    """

    key: Key
    what: str
    events: tuple[Event, ...]
    words: str

    def __str__(self) -> str:
        return self.words


def check(history: History) -> list[Verdict]:
    """Check every key; an empty list says that nothing is wrong."""
    writes: dict[Key, list[Write[int]]] = defaultdict(list)
    reads: dict[Key, list[Read]] = defaultdict(list)
    for write in history.writes:
        writes[write.key].append(write)
    for read in history.reads:
        reads[read.key].append(read)
    verdicts = []
    for key in sorted(writes.keys() | reads.keys()):
        bounds = [b for b in history.bounds if b.keys is None or key in b.keys]
        verdict = _check_key(key, writes[key], reads[key], bounds)
        if verdict is not None:
            verdicts.append(verdict)
    return verdicts


def _check_key(
    key: Key, writes: Sequence[Write[int]], reads: Sequence[Read], bounds: Sequence[Bound]
) -> Verdict | None:
    written: dict[Value, Write[int]] = {w.value: w for w in writes if w.value is not None}
    assert len(written) == sum(write.value is not None for write in writes), "values are not unique"
    flushed = _Bounds(bound for bound in bounds if bound.level == Level.FLUSHED)
    merged = _Bounds(bound for bound in bounds if bound.level == Level.MERGED)

    def step(event: Event) -> Step:
        if isinstance(event, Write):
            after = (event.begin,) * 3
            return Step(False, event.value, event.begin, event.end, Level.STRONG, after, event.sure)
        after = _seen_by(event, flushed, merged)
        end = event.end
        if event.level == Level.MERGED and event.value is None:
            # A merge that dies after its delete pass may be followed by one of fewer generations,
            # which puts an older row back. Nothing has to come after such a read.
            end = math.inf
        return Step(True, event.value, event.begin, end, event.farthest, after)

    steps: dict[Event, Step] = {event: step(event) for event in (*writes, *reads)}

    def verdict(wrong: Iterable[Event]) -> Verdict:
        events = sorted(wrong, key=lambda event: event.begin)
        bounds = dict.fromkeys(_between(events, flushed, merged))
        return _verdict(key, _name(events, steps), events, [*bounds])

    for read in reads:
        seen = [w for w in writes if w.sure and w.end < steps[read].after[Level.STRONG]]
        if read.value not in may_show(writes, seen, until=read.end):
            newest = sorted(seen, key=lambda write: write.begin)[-1:]
            return verdict({read, *newest, *filter(None, [written.get(read.value)])})
    if can_be_ordered(steps.values()):
        return None

    def is_wrong(kept: Iterable[Event]) -> bool:
        chosen = set(kept)
        # What took away a row for certain took it away perhaps, where it is left out.
        return not can_be_ordered(
            steps[event] if event in chosen else replace(steps[event], sure=False)
            for event in steps
            if event in chosen or (isinstance(event, Write) and event.value is None)
        )

    return verdict(smallest(steps, is_wrong, written))


class _Bounds:
    """Flushes or checkpoints of a key."""

    def __init__(self, bounds: Iterable[Bound]) -> None:
        ordered = sorted(bounds, key=lambda bound: bound.end)
        self._ends = [bound.end for bound in ordered]
        self._latest = list(accumulate(ordered, lambda a, b: b if b.begin > a.begin else a))

    def last(self, moment: float) -> Bound | None:
        """The one that counts for what begins at a moment: of those that had ended, the latest."""
        ended = bisect_left(self._ends, moment)
        return self._latest[ended - 1] if ended else None

    def before(self, moment: float) -> float:
        """What had ended before this is on the level for all that begin at a moment."""
        last = self.last(moment)
        return NEVER if last is None else last.begin


def _seen_by(read: Read, flushed: _Bounds, merged: _Bounds) -> tuple[float, float, float]:
    """Up to when a read must have seen what was acknowledged, flushed, merged."""
    now, then = read.begin, read.begin - read.stale
    if read.level == Level.STRONG:
        return now, now, now
    in_base = merged.before(now)
    if read.level == Level.MERGED:
        return flushed.before(in_base), in_base, now
    # Lance's own reader sees the rows of a divided merge a moment before they count as merged.
    seen = max(then, in_base)
    return max(flushed.before(then), flushed.before(in_base)), seen, seen


def _between(events: Sequence[Event], flushed: _Bounds, merged: _Bounds) -> Iterator[Bound]:
    """Why others come before what was read from afar."""
    for read in events:
        if isinstance(read, Read) and read.level != Level.STRONG:
            checkpoint = merged.last(read.begin)
            moments = [read.begin - read.stale] if read.level == Level.FLUSHED else []
            moments += [] if checkpoint is None else [checkpoint.begin]
            for bound in (checkpoint, *map(flushed.last, moments)):
                if bound is not None and any(event.end < bound.begin for event in events):
                    yield bound


def _name(events: Sequence[Event], steps: dict[Event, Step]) -> str:
    """What people call it, told by the last read."""
    last = max((e for e in events if isinstance(e, Read)), key=lambda read: read.begin)
    others = [e for e in events if e is not last]
    if last.value is not None:
        begun = [e.begin for e in others if isinstance(e, Write) and e.value == last.value]
        if not begun:
            return "a value that was never written"
        if begun[0] > last.end:
            return "a value that was not written yet"

    def is_before(one: Event, other: Event) -> bool:
        return steps[one].end < steps[other].after[steps[one].level]

    shown = [e for e in others if isinstance(e, Read) and e.value != last.value]
    deletes = [e for e in others if isinstance(e, Write) and e.value is None]
    if last.value is not None and (
        any(is_before(delete, last) for delete in deletes)
        or any(read.value is None and is_before(read, last) for read in shown)
    ):
        return "a deleted row is back"
    if any(is_before(read, last) for read in shown):
        return "a read went back"
    if last.value is None:
        return "an acknowledged write is lost"
    return "a read is older than it may be"


_LEVELS = {
    Level.STRONG: "in its own process",
    Level.FLUSHED: "in what is flushed",
    Level.MERGED: "in the base table",
}


def _verdict(key: Key, what: str, events: Sequence[Event], bounds: Sequence[Bound]) -> Verdict:
    start = min(event.begin for event in events)
    lines = [f"key {key}: {what}. These cannot all have happened:"]
    lines += [
        f"  {_time(event.begin - start)} .. {_time(event.end - start)}  {_told(event)}"
        for event in sorted([*events, *bounds], key=lambda event: event.begin)
    ]
    return Verdict(key, what, tuple(events), "\n".join(lines))


def _told(event: Event | Bound) -> str:
    if isinstance(event, Bound):
        done = "flushes" if event.level == Level.FLUSHED else "merges"
        return f"{event.who} {done} what was there before"
    if isinstance(event, Write):
        done = "deletes the row" if event.value is None else f"writes {event.value}"
        return f"{event.who} {done}" + (
            "" if event.sure else ", nobody knows whether that happened"
        )
    seen = "no row" if event.value is None else str(event.value)
    stale = f", up to {event.stale / 1e9:g} s ago" if event.stale else ""
    return f"{event.who} sees {seen} {_LEVELS[event.level]}{stale}"


def _time(nanoseconds: float) -> str:
    return "        ?" if nanoseconds == UNKNOWN else f"{nanoseconds / 1e9:8.3f}s"
