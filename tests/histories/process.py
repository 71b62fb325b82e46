"""What every process of a play knows: the table, its keys, and where to write down what happens."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
from histories.events import Key, Level, Recorder, Value
from histories.table_folder import moves
from support.data.tables import rows, state

import memwal
from memwal.errors import CorruptDataError, InternalError, InvalidInputError, MemWalError
from memwal.lsm.region_places import router_in_force
from memwal.region.manifest_store import read_manifests
from memwal.region.router import RegionAssignment

OWN = (Level.STRONG, Level.STRONG)
"""What a read sees of a region that is certainly its process's own."""

LOST = (Level.FLUSHED, Level.STRONG)
"""Of one that was."""

FAR = (Level.FLUSHED, Level.FLUSHED)
"""Of one that another process has."""

BASE = (Level.MERGED, Level.MERGED)
"""Of the base table alone."""


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
    without : str
        The safeguard that is taken out; see :mod:`histories.safeguards`.
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
        self.table = _opened(told.uri)
        self._values = itertools.count(told.first_value)
        router = router_in_force(self.table.base())
        routed = router.route(rows(dict.fromkeys(range(told.keys), 0)))
        self.regions: list[RegionAssignment] = [assignment for assignment, _ in routed]
        self.region_of: dict[Key, UUID] = {
            key: assignment.region_id
            for assignment, part in routed
            for key in part.column("id").to_pylist()
        }
        # Whoever waits for this process looks for the file: from now on, errors are written down.
        self.recorder = Recorder(Path(told.folder) / f"{told.name}.jsonl")

    @property
    def keys(self) -> list[Key]:
        """All keys of the table."""
        return list(self.region_of)

    def keys_of(self, regions: Mapping[UUID, int]) -> list[Key]:
        """Keys of some regions."""
        return [key for key, region in self.region_of.items() if region in regions]

    def new_rows(self, keys: list[Key], dice: random.Random) -> dict[Key, Value]:
        """What to write next: some rows with a value that nobody else writes, or deletes."""
        chosen = dice.sample(keys, min(dice.choice([1, 1, 2, 4]), len(keys)))
        if dice.random() < 0.25:
            return dict.fromkeys(chosen)
        return dict.fromkeys(chosen, next(self._values))

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
    ) -> None:
        """Write down what was seen; ``levels`` are those of keys for which it is another one."""
        told = {key: (levels or {}).get(key, level) for key in seen}
        self.recorder.read(begin, end, seen, levels=told, stale=stale)

    @contextmanager
    def may_fail(self, what: str, *others: type[BaseException]) -> Iterator[None]:
        """Do something that may fail, as everything may here, but not in every way."""
        moved = self.moves()
        try:
            yield
        except (MemWalError, *others) as error:
            self.record_failure(what, error, moved=moved)
        except BaseException as error:
            self.recorder.wrong(f"{what}: {type(error).__name__}: {error}")
            raise

    def record_failure(self, what: str, error: BaseException, *, moved: int) -> None:
        """Write down that a call failed, which began when so much had been moved.

        While a part of the table is away, files are missing that should be there.
        """
        unaffected = moved % 2 == 0 and self.moves() == moved
        never = (
            (InternalError, CorruptDataError, InvalidInputError) if unaffected else InternalError
        )
        if isinstance(error, never):
            self.recorder.wrong(f"{what}: {type(error).__name__}: {error}")
        else:
            self.recorder.failed(what, error)

    def moves(self) -> int:
        """How often a part of the table was moved, odd while it is away."""
        return moves(Path(self.told.folder))

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
