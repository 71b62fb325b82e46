"""Samples, medians and lines of a benchmark's table."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Screen


@dataclass(frozen=True, slots=True)
class Figure:
    """Median and quartiles of some samples, and how many there were."""

    median: float
    low: float
    high: float
    samples: int = 1

    @classmethod
    def of(cls, samples: Sequence[float]) -> Figure:
        low, median, high = np.percentile(samples, [25, 50, 75])
        return cls(float(median), float(low), float(high), len(samples))

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{_digits(self.median)}"
        return f"{_digits(self.median)} ({_digits(self.low)} to {_digits(self.high)})"


class Rival(StrEnum):
    """What ours is measured beside."""

    LANCE = "Lance"
    DISK = "the disk"
    OURS = "memwal"
    LIMIT = "a limit"


@dataclass(frozen=True, slots=True)
class Target:
    """What the ratio of ours to the other must be."""

    bound: float
    at_least: bool = False

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.at_least else ratio <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the table: ours beside another figure of the same unit.

    Attributes
    ----------
    name : str
        Of the benchmark that measured it.
    what, unit, against : str
        What was measured, in what, and what the other figure is.
    rival : Rival
        Whose the other figure is.
    target : Target or None
        None where the figure only informs.
    note : str
        Settings and counts without which the figures say little.
    load : float
        Processes that ran or waited for a processor in the minute before the end, its own included.
    """

    name: str
    what: str
    ours: Figure
    other: Figure
    unit: str
    against: str
    rival: Rival = Rival.LANCE
    target: Target | None = None
    note: str = ""
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    @property
    def ratio(self) -> float:
        return self.ours.median / self.other.median

    @property
    def is_met(self) -> bool | None:
        return None if self.target is None else self.target.is_met(self.ratio)

    @property
    def advantage(self) -> float:
        """How many times better ours is than the other; below 1 it is worse."""
        rate = self.unit.endswith("/s") if self.target is None else self.target.at_least
        return self.ratio if rate else 1 / self.ratio

    def as_dict(self) -> dict[str, Any]:
        target = None if self.target is None else str(self.target)
        return {
            **asdict(self),
            "ratio": self.ratio,
            "advantage": self.advantage,
            "target": target,
            "met": self.is_met,
        }


_limits: list[int] = []


def limit_rounds(most: int | None) -> None:
    """Let no benchmark of this process have more rounds: to see that it runs, not how fast."""
    if most is not None:
        _limits.append(most)


def rounds_of(usual: int) -> int:
    """Rounds of a benchmark: as usual, unless fewer were asked for."""
    return min([usual, *_limits])


def exponent(large: Figure, small: Figure, times: float) -> float:
    """The power of the size with which a figure grows: 0 for not at all, 1 for as much."""
    return math.log(large.median / small.median, times)


def constant(value: float) -> Figure:
    """A figure that is a limit or was measured once."""
    return Figure(value, value, value)


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def interleaved(
    calls: Mapping[str, Callable[[int], object]], *, rounds: int, block: int = 1
) -> dict[str, list[float]]:
    """Seconds of each call, all measured side by side.

    Every round runs a block of each, forwards and backwards in turn, so that what else happens on
    the machine hits all alike. Dirty pages are written back before each block: the fsyncs of one
    would pay for what another left behind.

    Parameters
    ----------
    calls : mapping of str to callable
        Each is given the number of its sample: 0, 1, ...
    rounds : int
        Rounds that count; one more goes first and warms up.
    block : int
        Samples of a call in a round.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    rounds = rounds_of(rounds)
    for round_ in range(rounds + 1):
        for name in names if round_ % 2 else reversed(names):
            os.sync()
            for number in range(round_ * block, (round_ + 1) * block):
                elapsed = seconds(lambda c=calls[name], n=number: c(n))
                if round_:
                    samples[name].append(elapsed)
    return samples


def milliseconds(samples: Sequence[float]) -> Figure:
    """Figure of samples in seconds."""
    return Figure.of([1e3 * sample for sample in samples])


def processor_seconds(call: Callable[[], object]) -> float:
    """Processor time of a call, of all threads of this process."""
    started = time.process_time()
    call()
    return time.process_time() - started


def rates(count: int, samples: Sequence[float]) -> Figure:
    """Figure of how many there were in a second."""
    return Figure.of([count / sample for sample in samples])


def machine(folder: Path) -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "file_system": _file_system(folder),
        "system": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("pylance", "pyarrow", "obstore")},
    }


def report(lines: Sequence[Line], *, rows: int, where: Mapping[str, Any], as_json: bool) -> None:
    """Print the lines of a program as a table, or as JSON."""
    if as_json:
        described = [line.as_dict() for line in lines]
        print(json.dumps({"machine": where, "rows": rows, "lines": described}, indent=2))
    else:
        show(lines, title=f"{rows:,} rows, {where}")


def show(lines: Sequence[Line], *, title: str) -> None:
    """Print the table."""
    names = ("what", "ours", "other", "ratio", "target", "met", "samples", "load", "note")
    screen = Screen(*names, title=title)
    met = {True: "yes", False: "NO", None: ""}
    for line in lines:
        screen.add_row(
            line.what,
            f"{line.ours} {line.unit}",
            f"{line.other} {line.unit}, {line.against}",
            f"{line.ratio:.2f}",
            "" if line.target is None else str(line.target),
            met[line.is_met],
            f"{line.ours.samples}",
            f"{line.load:.1f}",
            line.note,
        )
    Console().print(screen)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:,.3g}"


def _file_system(folder: Path) -> str:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    path = str(folder.resolve())
    inside = [(m, kind) for m, kind in mounts if path == m or path.startswith(m.rstrip("/") + "/")]
    return max(inside, key=lambda mount: len(mount[0]))[1]
