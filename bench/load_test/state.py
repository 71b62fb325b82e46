"""What the processes of the load share: arrays in files, which outlive each process."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from load_test.rows import FIRST_STATE

KINDS: Final = ("upsert", "delete", "waited", "settled", "flush", "lookup", "range", "scan",
                "vector", "text", "stale")  # fmt: skip
"""What events tell of. ``waited`` is back-pressure; ``stale`` is the age of the newest row that a
reader finds of those that are written all the time."""
WRITES: Final = ("upsert", "delete")
READS: Final = ("lookup", "range", "scan", "vector", "text")

Ends = Literal["writing", "reading"]
_ENDS: Final = ("rate", "writing", "reading")

_EVENT = np.dtype([("at", "f8"), ("seconds", "f4"), ("rows", "u4"), ("kind", "u1")])


class Truth:
    """State of every key: tried for, acknowledged, and in a generation for certain.

    Each key belongs to one producer, which alone changes it: ``attempt`` before a write, ``acked``
    behind it, ``floor`` when a flush is over that began later.
    """

    def __init__(self, folder: Path, keys: int, *, create: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        mode: Any = "w+" if create else "r+"
        self.attempt, self.acked, self.floor = (
            np.memmap(folder / f"{name}.u4", np.uint32, mode, shape=(keys,))
            for name in ("attempt", "acked", "floor")
        )
        if create:
            for states in (self.attempt, self.acked, self.floor):
                states[:] = FIRST_STATE


class Control:
    """What the processes are told: rows a second of each producer, and to end."""

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        mode: Any = "w+" if create else "r+"
        self._values = np.memmap(folder / "control.f8", np.float64, mode, shape=(3,))

    @property
    def rate(self) -> float:
        return float(self._values[0])

    @rate.setter
    def rate(self, rows: float) -> None:
        self._values[0] = rows

    def is_over(self, what: Ends) -> bool:
        return bool(self._values[_ENDS.index(what)])

    def end(self, what: Ends) -> None:
        self._values[_ENDS.index(what)] = 1.0


class EventLog:
    """Events and mistakes of a process, written without a buffer: a kill loses none."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._events = (folder / f"{name}.events").open("ab", buffering=0)
        self._mistakes = (folder / f"{name}.mistakes").open("ab", buffering=0)

    def event(self, kind: str, seconds: float, rows: int = 0) -> None:
        one = np.array([(time.time(), seconds, rows, KINDS.index(kind))], _EVENT)
        self._events.write(one.tobytes())

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._events.close()
        self._mistakes.close()

    def mistake(self, what: str, text: str) -> None:
        """Record something that must not happen."""
        told = {"at": time.time(), "who": self._name, "what": what, "text": text}
        self._mistakes.write(json.dumps(told).encode() + b"\n")


class Events:
    """The events of all processes in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> NDArray[Any]:
        """Those since the last call."""
        parts = [np.empty(0, _EVENT)]
        for path in sorted(self._folder.glob("*.events")):
            at = self._read.get(path, 0)
            part = np.fromfile(path, _EVENT, offset=at)
            self._read[path] = at + len(part) * _EVENT.itemsize
            parts.append(part)
        return np.concatenate(parts)


def of_kind(events: NDArray[Any], *kinds: str) -> NDArray[Any]:
    """The events of some kinds, by time."""
    found = events[np.isin(events["kind"], [KINDS.index(kind) for kind in kinds])]
    return found[np.argsort(found["at"], kind="stable")]


def mistakes(folder: Path) -> list[dict[str, Any]]:
    """Return the mistakes that all processes of a folder recorded."""
    lines = (line for path in folder.glob("*.mistakes") for line in path.read_text().splitlines())
    return sorted(map(json.loads, lines), key=lambda told: told["at"])


def batch_turns(control: Control, batch: int) -> Iterator[None]:
    """Yield when the next batch is to be written, until the end."""
    due = time.monotonic()
    while not control.is_over("writing"):
        rate = control.rate
        if math.isfinite(rate):
            # What could not be kept up with for longer than a second is not made up for.
            due = max(due + batch / rate, time.monotonic() - 1)
            while (left := due - time.monotonic()) > 0 and not control.is_over("writing"):
                time.sleep(min(left, 0.2))
        yield
