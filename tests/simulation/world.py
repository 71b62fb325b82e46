"""A world in which one seed decides everything: time, faults, deaths, and whose turn it is.

Each process is a greenlet. It runs until it asks its store for something or sleeps; then the
world goes on with whatever comes next by the clock, which only moves from one event to the next.
The code of the processes is the real one and knows nothing of that: it calls a store, and
``time.sleep``.
"""

import heapq
import itertools
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from unittest import mock

from greenlet import getcurrent, greenlet
from support.stores.faulty_store import Killed

Draw = Callable[..., Any]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(eq=False)
class Process:
    """Something that lives until it ends, is killed, or its world is over.

    Attributes
    ----------
    name : str
    cut_off_until : float
        The store does not answer it until then.
    slow : float
        By how much its requests take longer than others'.
    sleepy : float
        How many times as often as others it stands still before it creates or deletes something.
    """

    name: str
    dead: bool = False
    cut_off_until: float = 0.0
    slow: float = 1.0
    sleepy: float = 1.0
    threads: list[greenlet] = field(default_factory=list)


@dataclass(frozen=True)
class Odds:
    """How likely things are, each time that they can happen.

    Attributes
    ----------
    before, after, late, twice : float
        A request fails without effect, fails after its effect, fails and has its effect later, or
        is delivered a second time later.
    pause : float
        A process stands still between two requests, for up to ``pause_seconds``.
    doze : float
        A process that made up its mind to create or delete something stands still for long
        before it does.
    kill, cut_off : float
        A process dies, or loses its store for up to a minute.
    late_seconds, pause_seconds : float
        At most.
    """

    before: float = 0.01
    after: float = 0.01
    late: float = 0.005
    twice: float = 0.005
    pause: float = 0.004
    doze: float = 0.002
    kill: float = 0.002
    cut_off: float = 0.0005
    late_seconds: float = 30.0
    pause_seconds: float = 5_000.0


CALM = Odds(before=0, after=0, late=0, twice=0, pause=0, doze=0, kill=0, cut_off=0)


class World:
    """Clock, dice, and what is to happen.

    Attributes
    ----------
    now : float
        Seconds since the world began.
    odds : Odds
    steps : int
        Requests so far.
    faults : collections.Counter
        What went wrong so far, by kind.
    told : list of str
        The last of what happened, to be shown with a failure.
    """

    def __init__(self, seed: int, odds: Odds) -> None:
        self.dice = random.Random(seed)
        self.odds = odds
        self.now = 0.0
        self.steps = 0
        self.faults: Counter[str] = Counter()
        self.told: list[str] = []
        self.current: Process | None = None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._hub: greenlet | None = None
        self._thread = 0

    def clock(self) -> float:
        """Monotonic seconds."""
        return self.now

    def time(self) -> datetime:
        """What the store's clock says."""
        return BEGIN + timedelta(seconds=self.now)

    def tell(self, words: str) -> None:
        """Note what happened."""
        who = self.current.name if self.current is not None else "world"
        self.told.append(f"{self.now:10.3f} {who}: {words}")
        if len(self.told) > 4_000:
            del self.told[:2_000]

    # Processes

    def start(self, process: Process, life: Callable[[], None], *, after: float = 0.0) -> None:
        """Let a process live, or another thread of one that lives already."""

        def run() -> None:
            with suppress(Killed):
                life()

        thread = greenlet(run)
        process.threads.append(thread)
        self._at(self.now + after, lambda: self._resume(process, thread))

    def kill(self, process: Process) -> None:
        """End a process; its threads find out when it would be their turn."""
        process.dead = True
        self.faults["killed"] += 1

    def sleep(self, seconds: float) -> None:
        """Let others go on. For the code of processes."""
        process, thread = self.current, getcurrent()
        assert process is not None
        self._at(self.now + seconds, lambda: self._resume(process, thread))
        assert self._hub is not None
        self._hub.switch()
        if process.dead:
            raise Killed

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something happen that is nobody's doing."""
        self._at(self.now + seconds, what)

    def run(self, until: Callable[[], bool]) -> None:
        """Go on until a condition holds, or nothing is left to happen."""
        self._hub = getcurrent()
        self._thread = threading.get_ident()
        with self._rules():
            while self._events and not until():
                moment, _, what = heapq.heappop(self._events)
                self.now = max(self.now, moment)
                what()

    def _at(self, moment: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), what))

    def _resume(self, process: Process, thread: greenlet) -> None:
        self.current = process
        try:
            if thread.dead:
                return
            if process.dead and not thread.gr_frame:
                # Killed before it began.
                process.threads.remove(thread)
                return
            thread.switch()
        finally:
            self.current = None

    @contextmanager
    def _rules(self) -> Iterator[None]:
        """What the code of processes finds in the place of clocks, chance and threads."""
        identifiers = random.Random(self.dice.random())
        dice = random.Random(self.dice.random())
        with (
            mock.patch.object(time, "sleep", self._slept),
            mock.patch.object(
                uuid, "uuid4", self._drawn(uuid.uuid4, partial(identifier, identifiers))
            ),
            mock.patch.object(random, "uniform", self._drawn(random.uniform, dice.uniform)),
            mock.patch.object(random, "random", self._drawn(random.random, dice.random)),
            mock.patch("memwal.lsm.wal.prefetch.ThreadPool", _Inline),
        ):
            yield

    def _slept(self, seconds: float) -> None:
        if self._is_inside():
            self.sleep(seconds)

    def _drawn(self, common: Draw, own: Draw) -> Draw:
        """Draw from dice of this world, but in other threads: those of an earlier test may live."""

        def draw(*limits: float) -> Any:
            return own(*limits) if self._is_inside() else common(*limits)

        return draw

    def _is_inside(self) -> bool:
        return self.current is not None and threading.get_ident() == self._thread

    # Requests

    def request(self, process: Process, name: str, effect: Callable[[], Any], lost: type) -> Any:
        """Ask the store for something, which takes time and may go wrong.

        Parameters
        ----------
        effect : callable
            What the store does; what it raises is its answer.
        lost : type
            Error for a request of which the process does not hear.
        """
        if process.dead:
            raise Killed
        self.steps += 1
        dice, odds = self.dice, self.odds
        self._strike(process)
        self.sleep(dice.uniform(0.001, 0.02) * process.slow)
        if self.now < process.cut_off_until:
            self.faults["cut off"] += 1
            self.sleep(dice.uniform(0.1, 2.0))
            raise lost(f"{name}: no route to the store")
        fate = dice.random()
        for kind in ("before", "after", "late", "twice"):
            fate -= getattr(odds, kind)
            if fate < 0:
                return self._gone_wrong(kind, name, effect, lost)
        try:
            return effect()
        finally:
            # The answer is on its way, too: a process can die between effect and answer.
            self.sleep(dice.uniform(0.0005, 0.01) * process.slow)

    def _gone_wrong(self, kind: str, name: str, effect: Callable[[], Any], lost: type) -> Any:
        self.faults[kind] += 1
        self.tell(f"{name} goes wrong: {kind}")
        if kind == "twice":
            self.later(self.dice.uniform(0.001, self.odds.late_seconds), lambda: _quiet(effect))
            return effect()
        if kind == "after":
            _quiet(effect)
        elif kind == "late":
            self.later(self.dice.uniform(0.001, self.odds.late_seconds), lambda: _quiet(effect))
        self.sleep(self.dice.uniform(0.01, 2.0))
        raise lost(f"{name}: the store said 503")

    def _strike(self, process: Process) -> None:
        """What befalls a process between two requests."""
        dice, odds = self.dice, self.odds
        if dice.random() < odds.kill:
            self.tell("is killed")
            self.kill(process)
            raise Killed
        if dice.random() < odds.pause:
            # Most of them short, some past every grace period.
            self._pause(dice.choice([0.001, 0.01, 1.0]) * dice.random())
        if dice.random() < odds.cut_off:
            self.tell("loses the store")
            process.cut_off_until = self.now + dice.uniform(1, 60)

    def doze(self, process: Process) -> None:
        """Perhaps stand still for long. For processes, before what may come too late."""
        if self.dice.random() < self.odds.doze * process.sleepy:
            self._pause(self.dice.random())

    def _pause(self, share: float) -> None:
        seconds = self.odds.pause_seconds * share
        self.faults["paused"] += 1
        self.tell(f"stands still for {seconds:.1f} s")
        self.sleep(seconds)


def identifier(dice: random.Random) -> uuid.UUID:
    return uuid.UUID(int=dice.getrandbits(128))


def _quiet(effect: Callable[[], Any]) -> None:
    """A request of whose answer nobody hears."""
    try:
        effect()
    except Killed:
        raise
    except Exception:
        pass


class _Inline:
    """Threads that are none: what is handed over is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, what: Callable[..., Any], *given: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(what(*given))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, **_: Any) -> None:
        pass
