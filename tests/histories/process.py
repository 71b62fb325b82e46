"""What every process of a play knows: the table, its keys, and where to write down what happens."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
from histories.events import Key, Level, Recorder, Value
from histories.toggle import log_suspended, parts_missing, undecided
from support.data.tables import rows, state

import memwal
from memwal.errors import (
    CorruptDataError,
    InternalError,
    InvalidInputError,
    MemWalError,
    TableSetupError,
)
from memwal.lsm.region_places import router_in_force
from memwal.region.manifest_store import read_manifests
from memwal.region.router import RegionAssignment, Router

OWN = (Level.STRONG, Level.STRONG)
"""What a read sees of a region that is certainly its process's own."""

LOST = (Level.FLUSHED, Level.STRONG)
"""Of one that was."""

FAR = (Level.FLUSHED, Level.FLUSHED)
"""Of one that another process has."""

BASE = (Level.MERGED, Level.MERGED)
"""Of the base table alone."""


FIRST_OWN_KEY = 1_000_000_000_000
"""Keys from here on are written by one process alone."""

NEVER_CLAIMED = 1 << 62
"""In place of the epoch of a write of which no claim tells that it is over."""


@dataclass(frozen=True)
class Told:
    """What a process is told about the play.

    Attributes
    ----------
    uri, folder : str
        Of the table, and where to write down what happens.
    name : str
        Of the process and of its life: what was killed comes back under another name.
    seed : int
    first_value : int
        The first of the values that it alone writes.
    keys : int
        Their number.
    grace : float
        Of the collectors, in seconds.
    clocks : bool
        Whether the time of day jumps, by processes: nothing that goes by it is promised.
    rest : float
        How much longer than usual everybody rests between two things.
    regions : int
    foreign_names : bool
        Whether another client has named the regions.
    retention : float
        Of the collectors, in seconds.
    without : str
        The safeguard that is taken out; see :mod:`support.faults.safeguards`.
    """

    uri: str
    folder: str
    name: str
    seed: int
    first_value: int
    keys: int
    grace: float
    clocks: bool = False
    rest: float = 1.0
    regions: int = 1
    foreign_names: bool = False
    retention: float = 0.0
    without: str = ""

    def named(self, name: str, *, value: int = 0) -> Told:
        """The same for a process."""
        return replace(self, name=name, first_value=value)

    def to_json(self) -> str:
        """As it is told on the command line."""
        return json.dumps(asdict(self))


class Process:
    """One process of a play, or a part of it that acts by itself."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.dice = random.Random(told.seed)
        self.ended = threading.Event()
        self._missing = parts_missing(Path(told.folder))
        self._suspended = log_suspended(Path(told.folder))
        self._undecided = undecided(Path(told.folder))
        self.table = _opened(told.uri)
        self._values = itertools.count(told.first_value)
        self._router = self._first_router()
        self.region_of: dict[Key, UUID] = {}
        self.regions = self._route(range(told.keys))
        self._told_keys = Path(told.folder) / "keys"
        # Whoever waits for this process looks for the file: from now on, errors are written down.
        self.recorder = Recorder(Path(told.folder) / f"{told.name}.jsonl")

    def _route(self, keys: Iterable[Key]) -> list[RegionAssignment]:
        """Learn the regions of keys."""
        routed = self._router.route(rows(dict.fromkeys(keys, 0)))
        self.region_of = self.region_of | {
            key: assignment.region_id
            for assignment, part in routed
            for key in part.column("id").to_pylist()
        }
        return [assignment for assignment, _ in routed]

    def tell_of_keys(self, keys: Iterable[Key]) -> None:
        """Let all processes know that there are rows of these keys as well."""
        with self._told_keys.open("ab", buffering=0) as file:
            file.write("".join(f"{key}\n" for key in keys).encode())

    def learn_keys(self) -> None:
        """Learn of which keys others have told."""
        if self._told_keys.exists():
            told = {int(line) for line in self._told_keys.read_bytes().split()}
            if new := told - self.region_of.keys():
                self._route(sorted(new))

    @property
    def keys(self) -> list[Key]:
        """All keys of the table."""
        return list(self.region_of)

    def keys_of(self, regions: Container[UUID]) -> list[Key]:
        """Keys of some regions."""
        return [key for key, region in self.region_of.items() if region in regions]

    def new_rows(self, keys: list[Key], dice: random.Random) -> dict[Key, Value]:
        """What to write next: some rows with a value that nobody else writes, or deletes."""
        keys = [key for key in keys if key < FIRST_OWN_KEY]
        chosen = dice.sample(keys, min(dice.choice([1, 1, 2, 4]), len(keys)))
        if dice.random() < 0.25:
            return dict.fromkeys(chosen)
        return dict.fromkeys(chosen, self.new_value())

    def new_value(self) -> int:
        """A value that is written once."""
        return next(self._values)

    def still_held(self, epochs: Mapping[UUID, int]) -> dict[UUID, int]:
        """Those of the claimed regions that nobody else has claimed up to now."""
        manifests = read_manifests(self.table.location.store, list(epochs))
        return {
            region: epoch
            for region, epoch in epochs.items()
            if region in manifests and manifests[region].writer_epoch == epoch
        }

    def by_key(self, epochs: Mapping[UUID, int]) -> dict[Key, int]:
        """The epoch of each key's region."""
        return {key: epochs[region] for key, region in self.region_of.items() if region in epochs}

    def record_read(
        self,
        begin: int,
        end: int,
        seen: Mapping[Key, Value],
        *,
        level: tuple[Level, Level] = FAR,
        levels: Mapping[Key, tuple[Level, Level]] | None = None,
        stale: float = 0.0,
        by_lance: bool = False,
    ) -> None:
        """Write down what was seen; ``levels`` are those of keys for which it is another one.

        While the log is suspended, nothing is promised, and nothing of Lance's readers while parts
        are missing.
        """
        first = begin - stale * 1e9
        untold = [self._suspended, *([self._undecided, self._missing] if by_lance else [])]
        if any(lasting.was_on(first, end) for lasting in untold):
            return
        told = {key: (levels or {}).get(key, level) for key in seen}
        self.recorder.read(begin, end, seen, levels=told, stale=stale)

    @contextmanager
    def must_not_fail(self, what: str) -> Iterator[None]:
        """Do something that must end well."""
        try:
            yield
        except Exception as error:
            self.recorder.wrong(f"{what}: {type(error).__name__}: {error}")

    @contextmanager
    def may_fail(self, what: str, *others: type[BaseException]) -> Iterator[None]:
        """Do something that may fail, as everything may here, but not in every way."""
        begin = now()
        try:
            yield
        except (MemWalError, *others) as error:
            self.record_failure(what, error, begin=begin)
        except BaseException as error:
            self.recorder.wrong(f"{what}: {type(error).__name__}: {error}")
            raise

    def record_failure(self, what: str, error: BaseException, *, begin: int) -> None:
        """Write down that a call failed.

        While a part of the table is away, files are missing that should be there.
        """
        never: tuple[type[BaseException], ...] = (InternalError,)
        if not self._missing.was_on(begin, now()):
            never += (CorruptDataError, InvalidInputError)
        if isinstance(error, never):
            self.recorder.wrong(f"{what}: {type(error).__name__}: {error}")
        else:
            self.recorder.failed(what, error)

    def _first_router(self) -> Router:
        """Return how rows are divided into regions, once MemWAL is there."""
        while True:
            begin = now()
            try:
                return router_in_force(self.table.base())
            except TableSetupError:
                if not self._suspended.was_on(begin, now()):
                    raise
            time.sleep(0.1)

    def forever(self, act: Callable[[], None], pause: float) -> None:
        """Act again and again, with some rest in between, until somebody ends it."""
        while not self.ended.wait(self.dice.uniform(0, pause * self.told.rest)):
            act()


def _opened(uri: str) -> memwal.Table:
    """Open the table, as soon as it is there."""
    for _ in range(100):
        try:
            return memwal.open(uri)
        except MemWalError:
            time.sleep(0.1)
    return memwal.open(uri)


def now() -> int:
    """This moment, on the clock of all histories."""
    return time.monotonic_ns()


def seen_of(found: pa.Table, keys: list[Key]) -> dict[Key, Value]:
    """What a read found of keys."""
    return {**dict.fromkeys(keys), **state(found)}
