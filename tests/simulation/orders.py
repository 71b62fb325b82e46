"""Every order of the requests of a few processes that differs from a plain one in a few places.

The processes run memwal's own code, as in the random worlds. In the plain order they run one after
the other, each to its end. A search tries every request before which another process goes on
instead, the process dies, or its answer gets lost; then every two such requests, and so on. A
process that is interrupted stands still for a moment, or for longer than anything is kept.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet
from simulation.consumers import modelled
from simulation.explore import BrokenPromise, end
from simulation.jobs import RETENTION, Client
from simulation.lake import Lake
from simulation.world import CALM, Process, World
from simulation.writers import Writer
from support.stores.faulty_store import Killed

from memwal.errors import MemWalError

DIES, LOST_ANSWER = "dies", "loses an answer"
_CHANGES = ("create", "put", "replace", "delete", "commit", "record")


class Event(NamedTuple):
    """What happens before a request: its number from the beginning, and who goes on, or what."""

    place: int
    what: str


class Orders(World):
    """A world in which nothing happens by chance.

    Parameters
    ----------
    events : sequence of Event
        What happens where, instead of the plain order.
    pause : float
        For how many seconds a process stands still when another one goes on.
    within : str
        Pattern of the requests before which something may happen.

    Attributes
    ----------
    possible : list of tuple of str
        For each request, what could have happened before it.
    between : callable
        Called when a process has ended or was interrupted.
    """

    def __init__(self, events: Sequence[Event], pause: float, within: str) -> None:
        super().__init__(0, CALM)
        self._within = within
        self._planned = {event.place: event.what for event in events}
        self._pause_seconds = pause
        self._queue: list[tuple[Process, greenlet]] = []
        self.possible: list[tuple[str, ...]] = []
        self.between: Callable[[], None] = lambda: None
        self.is_plain = True

    def start(self, process: Process, life: Callable[[], None], *, after: float = 0.0) -> None:
        """Let a process live when all before it have ended."""

        def run() -> None:
            with suppress(Killed):
                life()

        self._queue.append((process, greenlet(run)))

    def run(self, until: Callable[[], bool]) -> None:
        """Go on until all processes have ended."""
        self._hub = getcurrent()
        with self._rules():
            while self._queue:
                self.current, thread = self._queue[0]
                thread.switch()
                self.between()
                self._queue = [one for one in self._queue if not one[1].dead]
        self.current = None

    def sleep(self, seconds: float) -> None:
        """Time goes by, and nobody else goes on."""
        self.now += seconds

    def request(self, process: Process, name: str, effect: Callable[[], Any], lost: type) -> Any:
        """Ask the store for something, before which something may happen."""
        self.steps += 1
        what = self._happens(name)
        if what == DIES:
            self.tell("dies")
            raise Killed
        if what == LOST_ANSWER:
            self.tell(f"gets no answer: {name}")
            effect()
            raise lost(f"{name}: the store said 503")
        if what is not None:
            self.tell(f"stands still before: {name}")
            # It goes on when the others have ended, or when one of them is interrupted for it.
            self._queue.append(self._queue.pop(0))
            self._queue.sort(key=lambda one: one[0].name != what)
            self.now += self._pause_seconds
            assert self._hub is not None
            self._hub.switch()
        self.now += 0.001
        return effect()

    def _happens(self, name: str) -> str | None:
        if self.is_plain or re.match(self._within, name) is None:
            return None
        changes = name.startswith(_CHANGES)
        others = tuple(process.name for process, _ in self._queue[1:])
        self.possible.append((*others, DIES, LOST_ANSWER) if changes else others)
        return self._planned.get(len(self.possible) - 1)


class Owner(Writer):
    """A writer that does one thing after the other."""

    def _open(self) -> None:
        self._claim()

    def claims(self) -> None:
        """Claim the region."""
        self._claim()

    def writes(self, times: int = 1) -> None:
        """Write rows, and raise what ended it."""
        for _ in range(times):
            self._write()

    def flushes(self) -> None:
        """Flush what is written."""
        self._seal()
        while self._sealed:
            self._flush_next()

    def reads(self) -> None:
        """Read the region, which must show all that was acknowledged."""
        self._read()


class Stage:
    """A region, its table, and who acts on them."""

    def __init__(self, world: Orders, lake: Lake) -> None:
        self.world, self.lake = world, lake

    def owner(self, process: Process, *, reopens: bool = False) -> Owner:
        """A writer of the region."""
        return Owner(self.lake, process, self.lake.regions[0], reopens=reopens)

    def client(self, process: Process, *, divided: float = 0) -> Client:
        """A process that looks after the table, or reads it."""
        client = Client(self.lake, process)
        client.divided, client.fresh = divided, 0
        return client


Act = Callable[[Stage, Process], None]


@dataclass(frozen=True)
class Scene:
    """What processes do next to each other.

    Attributes
    ----------
    acts : dict
        By the name of the process.
    before : callable
        What was done before; nobody interrupts it.
    pauses : tuple of float
        For how long a process may stand still, in seconds.
    within : str
        Pattern of the requests before which something may happen.
    keys : int
        With few of them writes meet; with many a lost one is not covered by the next.
    """

    acts: dict[str, Act]
    before: Act = lambda stage, process: None
    pauses: tuple[float, ...] = (0.0, 1e6)
    within: str = ""
    keys: int = 3


@dataclass(frozen=True)
class Searched:
    """What a search saw: how many orders, and how many requests there were in the plain one."""

    orders: int
    requests: int


def search(scene: Scene, *, most: int) -> Searched:
    """Try every order with up to ``most`` events; those with fewer come first.

    Raises
    ------
    BrokenPromise
        Something was seen that must not be.
    """
    orders = requests = 0
    for pause in scene.pauses:
        waiting: deque[tuple[Event, ...]] = deque([()])
        while waiting:
            events = waiting.popleft()
            possible = _play(scene, events, pause)
            orders += 1
            requests = requests or len(possible)
            if len(events) < most:
                waiting += (
                    (*events, event)
                    for event in _further(possible, events[-1].place if events else -1)
                )
    return Searched(orders, requests)


def _further(possible: Sequence[tuple[str, ...]], last: int) -> Iterator[Event]:
    for place in range(last + 1, len(possible)):
        for what in possible[place]:
            yield Event(place, what)


def _play(scene: Scene, events: Sequence[Event], pause: float) -> list[tuple[str, ...]]:
    world = Orders(events, pause, scene.within)
    lake = Lake(world, regions=1, keys=scene.keys, retention=RETENTION)
    world.between = lake.look
    stage = Stage(world, lake)
    broken: list[AssertionError] = []

    def live(act: Act, process: Process) -> None:
        try:
            act(stage, process)
        except MemWalError as error:
            world.tell(f"gives up: {type(error).__name__}: {str(error)[:100]}")
        except AssertionError as error:
            broken.append(error)

    def enter(name: str, act: Act) -> None:
        process = Process(name)
        world.start(process, lambda: live(act, process))

    try:
        with modelled(world):
            enter("before", scene.before)
            world.run(lambda: False)
            world.is_plain = False
            for name, act in scene.acts.items():
                enter(name, act)
            world.run(lambda: False)
            world.is_plain = True
            if broken:
                raise broken[0]
            end(world, lake)
    except AssertionError as error:
        told = "\n".join(world.told[-80:])
        raise BrokenPromise(f"{events}, pauses of {pause:g} s: {error}\n{told}") from error
    return world.possible
