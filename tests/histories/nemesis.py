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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from histories import child, clock
from histories.clock import Clock
from histories.events import Recorder
from histories.process import Told
from histories.table_folder import TableFolder
from support.faults import lost_writes
from support.faults.preloaded import preload

import memwal

TESTS = Path(__file__).resolve().parents[1]
REPOSITORY = Path(memwal.__file__).resolve().parents[1]

VALUES_OF_A_LIFE = 10_000_000

LOST_WRITES = "lost-writes"
"""Name of the file that gets a byte for each write inside Lance that failed."""

LOST_WRITES_RATE = 20_000
"""How many of a million writes inside Lance fail, in a life that has such failures."""

OF_LANCE = ("lance", "lance_jobs")
"""Roles that are Lance's own code, in which nothing looks at files before they are named."""


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
    lost_writes : bool
        Whether writes inside Lance fail in every second of its lives.

    Attributes
    ----------
    folder : Path
        Where it writes down what happens.
    """

    def __init__(
        self,
        role: str,
        told: Told,
        *,
        lives: itertools.count[int],
        clocks: bool,
        lost_writes: bool = False,
    ) -> None:
        self.role = role
        self._told = told
        self._name = told.name
        self._lives = lives
        self._stops = 0
        self._lost_writes = lost_writes and role not in OF_LANCE
        self.folder = Path(told.folder)
        self._clock = Clock(self.folder / f"{told.name}.clock") if clocks else None
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
        self._name = f"{self._told.name}.{life}"
        told = replace(
            self._told,
            name=self._name,
            seed=self._told.seed + life,
            first_value=life * VALUES_OF_A_LIFE,
        )
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(TESTS)]),
            "LANCE_LOG": "error,lance::index=off",
        }
        preloaded = []
        if self._clock is not None:
            preloaded.append(clock.SOURCE)
            environment |= self._clock.environment()
        if self._lost_writes and life % 2:
            preloaded.append(lost_writes.SOURCE)
            log = self.folder / LOST_WRITES
            environment |= lost_writes.failing_writes(
                told.uri, log, rate=LOST_WRITES_RATE, seed=told.seed
            )
        environment |= preload(preloaded)
        with (self.folder / f"{told.name}.err").open("wb") as errors:
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
            self._stops = 0

    def stop(self) -> None:
        """Have it stand still, and wait until it does."""
        if self._process is None:
            return
        self._stops += 1
        self._process.send_signal(signal.SIGSTOP)
        while self._process.poll() is None and not self._stands_still():
            time.sleep(0.001)

    def _stands_still(self) -> bool:
        assert self._process is not None
        threads = Path(f"/proc/{self._process.pid}/task").glob("*/stat")
        return all(path.read_text().rpartition(")")[2].split()[0] in "TZX" for path in threads)

    def go_on(self) -> None:
        """Have it go on, unless it was stopped once more than that."""
        if self._process is None or self._stops == 0:
            return
        self._stops -= 1
        if self._stops == 0:
            self._process.send_signal(signal.SIGCONT)

    def clock_jumps(self, ahead: float) -> None:
        """Put its time of day so many seconds ahead of the machine's, or back."""
        if self._clock is not None:
            self._clock.jump(ahead)

    def is_there(self) -> bool:
        """Whether it has begun, or has no life at present."""
        return self._process is None or (self.folder / f"{self._name}.jsonl").exists()

    def wait_until_there(self) -> None:
        """Wait until it has begun."""
        while not self.is_there():
            self.check()
            time.sleep(0.02)

    def acknowledged(self) -> int:
        """How many of its writes were, in all its lives."""
        files = self.folder.glob(f"{self._told.name}.*.jsonl")
        return sum(path.read_text().count('"kind": "written"') for path in files)

    def check(self) -> None:
        """Raise AssertionError if it ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            told = "\n".join(path.read_text() for path in sorted(self.folder.glob("*.err")))
            raise AssertionError(f"{self._told.name} ended by itself: {told[-2000:]}")


class Nemesis:
    """Does things to children at moments that a seed decides.

    Parameters
    ----------
    grace : float
        Of the collectors, in seconds.
    pause : float
        Seconds between two things that are done, on average.
    moves : bool
        Whether the table is moved away and back, restored, and its folders are put behind links.

    Attributes
    ----------
    done : collections.Counter
        How often each thing was done.
    """

    def __init__(self, dice: Random, *, grace: float, pause: float, moves: bool = False) -> None:
        self.done: Counter[str] = Counter()
        self._moves = moves
        self._dice = dice
        self._grace = grace
        self._pause = pause
        self._recorder: Recorder
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def run(self, children: list[Child], seconds: float) -> None:
        """Start children, and go on for so long when all are there."""
        for one in children:
            one.start()
        for one in children:
            one.wait_until_there()
        ended = time.monotonic() + seconds
        folder = children[0].folder
        table = TableFolder(Path(children[0].uri), folder) if self._moves else None
        self._recorder = Recorder(folder / "nemesis.jsonl")
        self._act_later(children, table)
        while time.monotonic() < ended:
            for one in children:
                one.check()
            while self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()
            time.sleep(0.02)

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._later, (moment, next(self._numbers), act))

    def _act_later(self, children: list[Child], table: TableFolder | None) -> None:
        moment = time.monotonic() + self._dice.expovariate(1 / self._pause)
        self._at(moment, lambda: self._act(children, table))

    def _act(self, children: list[Child], table: TableFolder | None) -> None:
        if table is not None and self._dice.random() < 0.5:
            act = self._dice.choice([self._move, self._restore, self._link])
            self._recorder.note(act.__name__[1:])
            act(children, table)
            self._recorder.note(f"{act.__name__[1:]} is over")
        else:
            one = self._dice.choice(children)
            acts = [self._kill, self._stop, self._stop]
            if one.has_own_clock:
                acts.append(self._jump)
            what = self._dice.choice(acts)
            self._recorder.note(what.__name__[1:], role=one.role)
            what(one)
        self._act_later(children, table)

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

    def _move(self, children: list[Child], table: TableFolder) -> None:
        """Move the table away for a moment, and back.

        Jobs stand still meanwhile: they write by paths, as all of Lance does.
        """
        if not all(one.is_there() for one in children):
            return
        with _standing([one for one in children if one.role in ("jobs", *OF_LANCE)]), table.away():
            time.sleep(self._dice.choice([0.0, 0.05, 0.5]))
        self.done["moves"] += 1
        self.done["folders made while the table was away"] = table.made_anew

    def _restore(self, children: list[Child], table: TableFolder) -> None:
        """Restore a backup that is as new as can be, while jobs and writers of Lance are stopped.

        Our own writers only stand still, and must notice.
        """
        if not all(one.is_there() for one in children):
            return
        ended = [one for one in children if one.role in ("jobs", "collector", *OF_LANCE)]
        for one in ended:
            one.kill()
        with _standing(children):
            table.restore()
        for one in ended:
            one.start()
        self.done["restored tables"] += 1

    def _link(self, children: list[Child], table: TableFolder) -> None:
        """Put a folder behind a link, and maybe back later."""
        with _standing(children):
            table.link(self._dice)
        self.done["links"] += 1
        if self._dice.random() < 0.7:
            self._at(time.monotonic() + 3, lambda: self._unlink(children, table))

    def _unlink(self, children: list[Child], table: TableFolder) -> None:
        with _standing(children):
            table.unlink(self._dice)


@contextmanager
def _standing(children: list[Child]) -> Iterator[None]:
    """Have processes stand still while the block runs."""
    for one in children:
        one.stop()
    try:
        yield
    finally:
        for one in children:
            one.go_on()
