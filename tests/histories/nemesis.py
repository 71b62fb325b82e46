"""Processes of a play, and what happens to them, to their table and to its disk."""

from __future__ import annotations

import heapq
import itertools
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random

from histories import zygote
from histories.clock import Clock
from histories.events import Recorder
from histories.process import Told
from histories.table_folder import TableFolder
from support.faults import lost_writes
from support.faults.full_disk import FullDisk

VALUES_OF_A_LIFE = 10_000_000

LOST_WRITES = "lost-writes"
"""Name of the file that gets a byte for each write inside Lance that failed."""

LOST_WRITES_RATE = 20_000
"""How many of a million writes inside Lance fail, in a life that has such failures."""

PARTS = {
    "table": "*.lance",
    "log of all regions": "*.lance/_mem_wal",
    "region": "*.lance/_mem_wal/*",
}
"""Patterns of the folders that are moved, from where the table is."""

WRITERS_OF_LANCE = ("lance", "lance_context", "foreign")
OF_LANCE = (*WRITERS_OF_LANCE, "lance_jobs")
"""Roles that are Lance's own code, in which nothing looks at files before they are named."""


class EndedByItselfError(AssertionError):
    """A process of a play is gone that was not killed."""


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
    disk : FullDisk
        That of the table.
    """

    def __init__(
        self,
        role: str,
        told: Told,
        *,
        lives: itertools.count[int],
        disk: FullDisk,
        clocks: bool,
        lost_writes: bool = False,
    ) -> None:
        self.role = role
        self._told = told
        self._name = told.name
        self._lives = lives
        self._stops = 0
        self.disk = disk
        self._lost_writes = lost_writes and role not in OF_LANCE
        self.folder = Path(told.folder)
        self._clock = Clock(self.folder / f"{told.name}.clock") if clocks else None
        self._pid: int | None = None

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
        if self._pid is not None:
            return
        life = next(self._lives)
        self._name = f"{self._told.name}.{life}"
        told = replace(
            self._told,
            name=self._name,
            seed=self._told.seed + life,
            first_value=life * VALUES_OF_A_LIFE,
        )
        environment = self.disk.environment()
        if self._clock is not None:
            environment |= self._clock.environment()
        if self._lost_writes and life % 2:
            log = self.folder / LOST_WRITES
            environment |= lost_writes.failing_writes(
                told.uri, log, rate=LOST_WRITES_RATE, seed=told.seed
            )
        errors = self.folder / f"{told.name}.err"
        self._pid = zygote.shared().fork(self.role, told.to_json(), environment, errors)

    def kill(self) -> None:
        """End its life, at once and whatever it is at."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            zygote.shared().reap(self._pid)
            self._pid = None
            self._stops = 0

    def stop(self) -> None:
        """Have it stand still, and wait until it does."""
        if self._pid is None:
            return
        self._stops += 1
        os.kill(self._pid, signal.SIGSTOP)
        while not all(state in "TZX" for state in self._states()):
            time.sleep(0.001)

    def go_on(self) -> None:
        """Have it go on, unless it was stopped once more than that."""
        if self._pid is None or self._stops == 0:
            return
        self._stops -= 1
        if self._stops == 0:
            os.kill(self._pid, signal.SIGCONT)

    def _states(self) -> list[str]:
        """Of each of its threads, as the kernel names them."""
        states = []
        for path in Path(f"/proc/{self._pid}/task").glob("*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # The thread has ended.
                states.append(path.read_text().rpartition(")")[2].split()[0])
        return states

    def lacks_descriptors(self, spare: int) -> Callable[[], None]:
        """Let it open only so many more files than are open; returns what ends that."""
        if self._pid is None:
            return lambda: None
        life, pid = self._name, self._pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        opened = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened + spare, limits[1]))

        def end() -> None:
            if self._pid is not None and self._name == life:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)

        return end

    def clock_jumps(self, ahead: float) -> None:
        """Put its time of day so many seconds ahead of the machine's, or back."""
        if self._clock is not None:
            self._clock.jump(ahead)

    def is_there(self) -> bool:
        """Whether it has begun, or has no life at present."""
        return self._pid is None or (self.folder / f"{self._name}.jsonl").exists()

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
        """Raise EndedByItselfError if it did."""
        if self._pid is not None and all(state in "ZX" for state in self._states()):
            told = (self.folder / f"{self._name}.err").read_text()
            raise EndedByItselfError(f"{self._name} ended by itself: {told[-2000:]}")


class Nemesis:
    """Does things to children, their table and its disk, at moments that a seed decides.

    Parameters
    ----------
    grace : float
        Of the collectors, in seconds.
    pause : float
        Seconds between two things that are done, on average.
    moves : bool
        Whether parts of the table are away for a while, the table is restored, folders are put
        behind links, the disk is full and processes run out of descriptors.

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
        folder, disk = children[0].folder, children[0].disk
        table = TableFolder(Path(children[0].uri), folder) if self._moves else None
        self._recorder = Recorder(folder / "nemesis.jsonl")
        self._act_later(children, table, disk)
        try:
            while time.monotonic() < ended:
                for one in children:
                    one.check()
                while self._later and self._later[0][0] <= time.monotonic():
                    heapq.heappop(self._later)[2]()
                time.sleep(0.02)
        finally:
            disk.empty()
            if table is not None:
                table.mount()

    def _in(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), act))

    def _act_later(self, children: list[Child], table: TableFolder | None, disk: FullDisk) -> None:
        self._in(self._dice.expovariate(1 / self._pause), lambda: self._act(children, table, disk))

    def _act(self, children: list[Child], table: TableFolder | None, disk: FullDisk) -> None:
        dice = self._dice.random()
        if table is not None and not table.is_away and dice < 0.5:
            act = self._dice.choice([self._unmount, self._unmount, self._restore, self._link])
            self._recorder.note(act.__name__[1:])
            act(children, table)
            self._recorder.note(f"{act.__name__[1:]} is over")
        elif table is not None and dice < 0.6:
            self._fill(disk)
        else:
            one = self._dice.choice(children)
            acts = [self._kill, self._stop, self._stop]
            if one.has_own_clock:
                acts.append(self._jump)
            if table is not None and one.role not in OF_LANCE and one.is_there():
                acts.append(self._starve)
            what = self._dice.choice(acts)
            self._recorder.note(what.__name__[1:], role=one.role)
            what(one)
        self._act_later(children, table, disk)

    def _kill(self, one: Child) -> None:
        one.kill()
        self.done["kills"] += 1
        self._in(self._dice.choice([0.0, 0.5]), one.start)

    def _stop(self, one: Child) -> None:
        # Lance's writer does not look at the manifest again: it must not oversleep the grace.
        lengths = (
            [0.1]
            if one.role in WRITERS_OF_LANCE
            else [0.1, 0.5, 1.5 * self._grace, 3 * self._grace]
        )
        one.stop()
        length = self._dice.choice(lengths)
        self.done["stops past the grace" if length > self._grace else "short stops"] += 1
        self._in(length, one.go_on)

    def _jump(self, one: Child) -> None:
        days = 86_400.0
        offsets = [0.0, -5.0, -3_600.0, -self._dice.randint(1, 400) * days]
        # A collector's clock agrees with the store's to well within the grace, or is behind.
        ahead = [self._grace / 4] if one.role == "collector" else [5.0, 3_600.0, 400 * days]
        one.clock_jumps(self._dice.choice([*offsets, *ahead]))
        self.done["jumps of a clock"] += 1

    def _starve(self, one: Child) -> None:
        """Have a process run out of descriptors."""
        end = one.lacks_descriptors(self._dice.choice([0, 2, 10]))
        self.done["processes without descriptors"] += 1
        self._in(self._dice.choice([0.1, 0.5, 2.0]), end)

    def _fill(self, disk: FullDisk) -> None:
        """Leave no space on the disk of the table."""
        self._recorder.note("fill")
        disk.fill()
        self.done["full disks"] += 1
        self._in(self._dice.choice([0.05, 0.3, 1.0]), disk.empty)

    def _unmount(self, children: list[Child], table: TableFolder) -> None:
        """Take the table or a part of it away for a while.

        While all of it is away, jobs stand still: they write by paths, as all of Lance does.
        """
        what = self._dice.choice([part for part in PARTS if table.has(PARTS[part])])
        standing = [one for one in children if one.role in ("jobs", *OF_LANCE) and what == "table"]
        for one in standing:
            one.stop()
        table.unmount(PARTS[what], self._dice)
        self.done[f"moves of a {what}"] += 1

        def mount() -> None:
            table.mount()
            self._recorder.note("mount")
            for one in standing:
                one.go_on()

        self._in(self._dice.choice([0.0, 0.05, 0.5, 2.0]), mount)

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
            self._in(3, lambda: self._unlink(children, table))

    def _unlink(self, children: list[Child], table: TableFolder) -> None:
        if table.is_away:
            self._in(0.1, lambda: self._unlink(children, table))
        else:
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
