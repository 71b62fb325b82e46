"""What happened to the keys of a table, as processes wrote it down, on one clock for all of them.

Moments are nanoseconds of ``CLOCK_MONOTONIC``, which the processes of a machine share and which
does not jump, whatever happens to the time of day.

A process writes a line for each thing that it did, and for a write one from before, since it may
happen though nobody is told. Lines are written whole or not at all: a kill leaves no half of one.
"""

import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from support.oracles.truth import Truth, Write

Key = int
Value = int | None
"""Of a key; None: there is no row."""

NEVER = -math.inf
UNKNOWN = math.inf
"""When something ended of whose end nobody knows."""


class Level(IntEnum):
    """How far a read sees: all that is acknowledged, all that is flushed, all that is merged."""

    STRONG = 0
    FLUSHED = 1
    MERGED = 2


@dataclass(frozen=True, slots=True)
class Read:
    """A row was seen, or seen not to be there.

    Attributes
    ----------
    level : Level
        What it must see: everything that was on this level when it began.
    farthest : Level
        What it may have seen. The own process sees what it has not flushed, also when another one
        has the region by now.
    stale : float
        It must see only what was on its level so long before it began, and all that is merged.
    """

    who: str
    key: Key
    value: Value
    begin: float
    end: float
    level: Level
    farthest: Level
    stale: float = 0.0


@dataclass(frozen=True, slots=True)
class Bound:
    """Everything of the level above that ended before ``begin`` is on this level from ``end`` on.

    Attributes
    ----------
    keys : frozenset of int or None
        Of which keys; None for all.
    """

    who: str
    level: Level
    begin: float
    end: float
    keys: frozenset[Key] | None = None


@dataclass(slots=True)
class History:
    """What happened to a table. Each value is written to a key once at most."""

    writes: list[Write[int]] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)


class Recorder:
    """Writes down what one process does. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()
        self._calls = 0

    def begin_write(self, rows: Mapping[Key, Value], epochs: Mapping[Key, int]) -> int:
        """Rows are about to be written, under these claims of their regions."""
        with self._lock:
            self._calls += 1
            call = self._calls
        self._put("write", call=call, rows=list(rows.items()), epochs=list(epochs.items()))
        return call

    def end_write(self, call: int, *, done: Iterable[Key], refused: Iterable[Key] = ()) -> None:
        """These of its rows are acknowledged, and these certainly not written."""
        self._put("written", call=call, done=list(done), refused=list(refused))

    def read(
        self,
        begin: int,
        end: int,
        seen: Mapping[Key, Value],
        *,
        levels: Mapping[Key, tuple[Level, Level]],
        stale: float = 0.0,
    ) -> None:
        """All these keys were looked at; ``levels`` has what each read must and may have seen."""
        rows = [(key, value, *levels[key]) for key, value in seen.items()]
        self._put("read", begin=begin, end=end, rows=rows, stale=stale)

    def claimed(self, epochs: Mapping[Key, int]) -> None:
        """Regions are ours: of what others have under way there, nothing comes any more."""
        self._put("claimed", epochs=list(epochs.items()))

    def bound(self, level: Level, begin: int, keys: Iterable[Key] | None) -> None:
        """A flush or a checkpoint that began then has ended."""
        self._put("bound", level=level, begin=begin, keys=None if keys is None else list(keys))

    def failed(self, what: str, error: BaseException) -> None:
        """Something failed, which may be right."""
        self._put("failed", what=what, error=type(error).__name__, words=str(error)[:500])

    def wrong(self, what: str) -> None:
        """Something happened that must never happen."""
        self._put("wrong", words=what)

    def job(self, what: str) -> None:
        """A job ended well."""
        self._put("job", what=what)

    def note(self, what: str, **content: Any) -> None:
        """Write down what may explain a read that is wrong; the check does not look at it."""
        self._put("note", what=what, **content)

    def _put(self, kind: str, **content: Any) -> None:
        line = json.dumps({"kind": kind, "at": time.monotonic_ns(), **content}) + "\n"
        os.write(self._file, line.encode())


@dataclass(slots=True)
class Records:
    """What all processes of a play wrote down.

    Attributes
    ----------
    failures : list of (str, str, str, str)
        Who, at what, the kind of error, and its words.
    wrong : list of str
    calls : int
        Writes of which each row was acknowledged.
    jobs : collections.Counter
        Jobs that ended well, by what they were.
    """

    history: History = field(default_factory=History)
    failures: list[tuple[str, str, str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    calls: int = 0
    jobs: Counter[str] = field(default_factory=Counter)


def read_records(folder: Path) -> Records:
    """Read what the processes wrote, a file each, whose name is theirs."""
    found = Records()
    history = found.history
    # A claim tells of its own keys.
    truth: Truth[int] = Truth(lambda key: key)
    calls: dict[tuple[str, int], dict[Key, list[Write[int]]]] = {}
    for who, line in sorted(_lines(folder), key=lambda one: one[1]["at"]):
        at = line["at"]
        match line["kind"]:
            case "write":
                epochs = dict(line["epochs"])
                calls[who, line["call"]] = {
                    key: truth.begin({key: value}, at, epoch=epochs[key], who=who)
                    for key, value in line["rows"]
                }
            case "written":
                call = calls[who, line["call"]]
                for key in line["done"]:
                    truth.acknowledge(call[key], at)
                for key in line["refused"]:
                    truth.refuse(call[key])
                found.calls += call.keys() == set(line["done"])
            case "read":
                history.reads += [
                    Read(
                        who,
                        key,
                        value,
                        line["begin"],
                        line["end"],
                        Level(level),
                        Level(farthest),
                        line["stale"] * 1e9,
                    )
                    for key, value, level, farthest in line["rows"]
                ]
            case "claimed":
                for key, epoch in line["epochs"]:
                    truth.fence(key, epoch, at)
            case "bound":
                keys = None if line["keys"] is None else frozenset(line["keys"])
                history.bounds.append(Bound(who, Level(line["level"]), line["begin"], at, keys))
            case "failed":
                found.failures.append((who, line["what"], line["error"], line["words"]))
            case "job":
                found.jobs[line["what"]] += 1
            case "wrong":
                found.wrong.append(f"{who}: {line['words']}")
    history.writes = truth.writes
    return found


def _lines(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(folder.glob("*.jsonl")):
        with path.open() as file:
            for line in file:
                yield path.stem, json.loads(line)
