"""Write rate of the producers: fixed, unlimited, or as much as the jobs keep up with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_FIRST_RATE = 2_000.0
_UP, _BACK, _DOWN = 1.4, 0.5, 0.85
# More than so many seconds of writing wait even at the best moment of a step.
MERGES_BEHIND_SECONDS = 30.0
INDEXES_BEHIND_SECONDS = 60.0
# Back-pressure for more than this share of a step, or less than this share of what was asked for.
_SHARE_OF_WAITING = 0.1
_SHARE_OF_RATE = 0.8
# After a step back, this many steps are given to the backlog to go.
_REST = 4
# Seconds after a kill that are not judged.
_AFTER_KILL = 15.0


@dataclass(slots=True)
class RateController:
    """Controls the rate of all producers together.

    ``auto`` raises it by two fifths with every step until something falls behind, halves it, and
    stays there; where something falls behind again, it takes away another seventh.

    Attributes
    ----------
    rate : float
        Rows a second; infinite for no limit.
    seconds : float
        Of a step.
    searching : bool
        Whether the rate is still going up.
    changes : list
        When it was changed, to what, and why.
    """

    rate: float
    seconds: float
    auto: bool
    searching: bool = field(init=False)
    changes: list[dict[str, Any]] = field(default_factory=list)
    _samples: list[dict[str, Any]] = field(default_factory=list)
    _rest: int = 0
    _kills: int = 0
    _quiet_until: float = 0.0

    def __post_init__(self) -> None:
        self.searching = self.auto

    @classmethod
    def of(cls, text: str, seconds: float) -> RateController:
        """Build it from the command line: ``auto``, ``max`` or a number."""
        if text == "auto":
            return cls(_FIRST_RATE, seconds, auto=True)
        return cls(math.inf if text == "max" else float(text), seconds, auto=False)

    def add(self, sample: dict[str, Any]) -> None:
        """Add a sample; the last one of a step decides on the next rate."""
        if sample["kills"] != self._kills:
            # What a kill costs says nothing about the rate.
            self._kills, self._samples = sample["kills"], []
            self._quiet_until = sample["at"] + _AFTER_KILL
        if sample["at"] < self._quiet_until:
            return
        self._samples.append(sample)
        first = self._samples[0]
        if sample["at"] - first["at"] < self.seconds:
            return
        step, self._samples = self._samples, []
        if not self.auto:
            return
        why = behind(step, self.rate)
        self._rest = max(self._rest - 1, 0)
        if why is None and self.searching:
            self._change(sample, _UP, "nothing is behind")
        elif why is not None and not self._rest:
            self._change(sample, _BACK if self.searching else _DOWN, why)
            self.searching = False
            self._rest = _REST

    def _change(self, sample: dict[str, Any], factor: float, why: str) -> None:
        self.rate *= factor
        self.changes.append({"at": sample["at"], "rate": self.rate, "why": why})


def behind(step: Sequence[dict[str, Any]], rate: float) -> str | None:
    """What does not keep up with a rate in these samples; None when all does."""
    seconds = max(step[-1]["at"] - step[0]["at"], 1e-9)
    written = sum(sample["rows"] for sample in step[1:]) / seconds
    merges = _least(step, lambda sample: sample["backlog_rows"]) / max(written, 1.0)
    indexes = _least(step, lambda sample: sample["index_rows"]) / max(written, 1.0)
    waited = sum(sample["waited"] for sample in step[1:]) / seconds
    if merges > MERGES_BEHIND_SECONDS:
        return f"merges: {merges:.0f} s of writing wait"
    if indexes > INDEXES_BEHIND_SECONDS:
        return f"indexes: {indexes:.0f} s of writing wait"
    if waited > _SHARE_OF_WAITING:
        return f"flushes: producers wait for them {waited:.0%} of the time"
    if math.isfinite(rate) and written < _SHARE_OF_RATE * rate:
        return f"producers: {written:,.0f} of {rate:,.0f} rows/s"
    return None


def _least(step: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> float:
    return min(value(sample) for sample in step)
