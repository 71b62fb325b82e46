"""Processes of a play, and what happens to them: kills, pauses, and jumps of the time of day."""

from __future__ import annotations

import heapq
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from histories import child
from histories.clock import Clock
from histories.process import Told

import memwal

TESTS = Path(__file__).resolve().parents[1]
REPOSITORY = Path(memwal.__file__).resolve().parents[1]

VALUES_OF_A_LIFE = 10_000_000


class Child:
    """A process with a role. What is killed comes back, as another life of the same.

    Parameters
    ----------
    told : Told
        What its lives are told, but for their names and values.
    lives : iterator of int
        Numbers of lives, of which no two of a play have the same.
    clocks : bool
        Whether its time of day may jump.
    """

    def __init__(self, role: str, told: Told, *, lives: itertools.count[int], clocks: bool) -> None:
        self.role = role
        self._told = told
        self._lives = lives
        self._folder = Path(told.folder)
        self._clock = Clock(self._folder / f"{told.name}.clock") if clocks else None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """Of the table."""
        return self._told.uri

    @property
    def has_own_clock(self) -> bool:
        """Whether its time of day may jump."""
        return self._clock is not None

    def start(self) -> None:
        """Begin a life, unless it has one."""
        if self._process is not None:
            return
        life = next(self._lives)
        told = replace(
            self._told,
            name=f"{self._told.name}.{life}",
            seed=self._told.seed + life,
            first_value=life * VALUES_OF_A_LIFE,
        )
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(TESTS)]),
            "LANCE_LOG": "error,lance::index=off",
        }
        if self._clock is not None:
            environment |= self._clock.environment()
        with (self._folder / f"{told.name}.err").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, child.__file__, self.role, told.to_json()],
                env=environment,
                stderr=errors,
                stdin=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        """End its life, at once and whatever it is at."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Have it stand still."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have it go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def clock_jumps(self, ahead: float) -> None:
        """Put its time of day so many seconds ahead of the machine's, or back."""
        if self._clock is not None:
            self._clock.jump(ahead)

    def wait_until_there(self) -> None:
        """Wait until it has begun."""
        while not any(self._folder.glob(f"{self._told.name}.*.jsonl")):
            self.check()
            time.sleep(0.02)

    def acknowledged(self) -> int:
        """How many of its writes were, in all its lives."""
        files = self._folder.glob(f"{self._told.name}.*.jsonl")
        return sum(path.read_text().count('"kind": "written"') for path in files)

    def check(self) -> None:
        """Raise AssertionError if it ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            told = "\n".join(path.read_text() for path in sorted(self._folder.glob("*.err")))
            raise AssertionError(f"{self._told.name} ended by itself: {told[-2000:]}")


class Nemesis:
    """Does things to children at moments that a seed decides.

    Parameters
    ----------
    grace : float
        Of the collectors, in seconds.
    pause : float
        Seconds between two things that are done, on average.

    Attributes
    ----------
    done : collections.Counter
        How often each thing was done.
    """

    def __init__(self, dice: Random, *, grace: float, pause: float) -> None:
        self.done: Counter[str] = Counter()
        self._dice = dice
        self._grace = grace
        self._pause = pause
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def run(self, children: list[Child], seconds: float) -> None:
        """Start children, and go on for so long when all are there."""
        for one in children:
            one.start()
        for one in children:
            one.wait_until_there()
        ended = time.monotonic() + seconds
        self._act_later(children)
        while time.monotonic() < ended:
            for one in children:
                one.check()
            while self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()
            time.sleep(0.02)

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._later, (moment, next(self._numbers), act))

    def _act_later(self, children: list[Child]) -> None:
        moment = time.monotonic() + self._dice.expovariate(1 / self._pause)
        self._at(moment, lambda: self._act(children))

    def _act(self, children: list[Child]) -> None:
        one = self._dice.choice(children)
        acts = [self._kill, self._stop, self._stop]
        if one.has_own_clock:
            acts.append(self._jump)
        self._dice.choice(acts)(one)
        self._act_later(children)

    def _kill(self, one: Child) -> None:
        one.kill()
        self.done["kills"] += 1
        self._at(time.monotonic() + self._dice.choice([0.0, 0.5]), one.start)

    def _stop(self, one: Child) -> None:
        # Lance's writer does not look at the manifest again: it must not oversleep the grace.
        lengths = [0.1] if one.role == "lance" else [0.1, 0.5, 1.5 * self._grace, 3 * self._grace]
        one.stop()
        length = self._dice.choice(lengths)
        self.done["pauses past the grace" if length > self._grace else "short pauses"] += 1
        self._at(time.monotonic() + length, one.go_on)

    def _jump(self, one: Child) -> None:
        days = 86_400.0
        offsets = [0.0, -5.0, -3_600.0, -self._dice.randint(1, 400) * days]
        # A collector's clock agrees with the store's to well within the grace, or is behind.
        ahead = [self._grace / 4] if one.role == "collector" else [5.0, 3_600.0, 400 * days]
        one.clock_jumps(self._dice.choice([*offsets, *ahead]))
        self.done["clock jumps"] += 1
