"""Several jobs at once, step by step in an order of chance, with deaths, errors and others.

Only one moves at a time, in an order that a seed decides. Each call of the store by a job waits at
a gate until it is let through. Between two calls of the others a job stands still, for as long as
the order wants: past any lease, past any grace. What is not decided is the order of calls that one
job makes from several threads.
"""

import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.data.sampled import drawn
from support.faults.fault_schedule import Actors, Job, may_be_refused
from support.faults.jobs import JOBS
from support.faults.others import OTHERS, Other
from support.faults.prepared import finish
from support.oracles.auditor import Auditor
from support.stores.faulty_store import Killed

import memwal
from memwal.errors import MemWalError, StoreUnavailableError

_SEED = "MEMWAL_FAULT_SEED"
SEEDS = range(3)
MANY_SEEDS = range(3, 303)

# Twice what two runs of a scheduler, or two schedulers, may start at once.
TROUPE = [*JOBS.items(), ("merge", JOBS["merge"]), ("collection", JOBS["collection"])]

PATIENCE_SECONDS = 60.0
MANY = 1 << 30


class Gate:
    """Where the calls of one job wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = 0
        self._permits = 0
        self._open = False
        self._error: BaseException | None = None

    def stand(self) -> None:
        """Wait to be let through. For the code that calls."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            self._wait(lambda: self._permits > 0 or self._open or self._error is not None)
            self._waiting -= 1
            self._permits = max(self._permits - 1, 0)
            self._changed.notify_all()
            error = self._error
            if error is not None and not isinstance(error, Killed):
                self._error = None
        if error is not None:
            raise error

    def let_through(self, running: Future[Any]) -> None:
        """Let one call go on, and return when the next one waits, or the job is over."""
        with self._changed:
            self._permits = 1
            self._changed.notify_all()
            self._wait(lambda: self._permits == 0 or running.done())
        self.settle(running)

    def settle(self, running: Future[Any]) -> None:
        """Return when a call waits, or the job is over."""
        with self._changed:
            self._wait(lambda: self._waiting > 0 or running.done())

    def strike(self, error: BaseException) -> None:
        """Let the next call fail; all of them from then on when it is the end of the process."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def open(self) -> None:
        """Let everything through from now on."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        # In small pieces, since the end of a job is told to nobody.
        for _ in range(int(PATIENCE_SECONDS / 0.01)):
            if ready():
                return
            self._changed.wait(0.01)
        raise AssertionError("a job neither went on nor ended")


@dataclass
class Player:
    """A job that moves when its turn comes."""

    name: str
    gate: Gate
    running: Future[Any]
    dead: bool = False


@dataclass
class Interleaving:
    """A play of several jobs, told by its seed.

    Attributes
    ----------
    told : list of str
        What happened, to be shown with a failure.
    """

    actors: Actors[Auditor]
    table: memwal.Table
    auditor: Auditor
    seed: int
    told: list[str] = field(default_factory=list)

    def play(self, jobs: Sequence[tuple[str, Job]], others: Sequence[tuple[str, Other]]) -> None:
        """Let the jobs move in turn until all are over, and the others act in between."""
        dice = random.Random(self.seed)
        left = list(others)
        with ThreadPoolExecutor(len(jobs)) as pool:
            players = [self._enter(pool, name, job) for name, job in jobs]
            try:
                while any(not player.running.done() for player in players):
                    self._turn(dice, players, left)
            finally:
                for player in players:
                    player.gate.open()
            for player in players:
                self._leave(player)

    def _enter(self, pool: ThreadPoolExecutor, name: str, job: Job) -> Player:
        location, store = self.actors.location(self.table)
        gate = Gate()
        store.act("*", gate.stand, times=MANY)
        running = pool.submit(job, location)
        gate.settle(running)
        return Player(name, gate, running)

    def _turn(
        self, dice: random.Random, players: Sequence[Player], left: list[tuple[str, Other]]
    ) -> None:
        player = dice.choice([player for player in players if not player.running.done()])
        event = dice.random()
        if left and event < 0.12:
            name, other = left.pop(dice.randrange(len(left)))
            self.told.append(name)
            other(self.table, self.auditor)
            self.auditor.look(self.table)
        elif event < 0.14 and not player.dead:
            self.told.append(f"{player.name} is killed")
            player.dead = True
            player.gate.strike(Killed())
            player.gate.settle(player.running)
        elif event < 0.17 and not player.dead:
            self.told.append(f"{player.name} meets an error")
            player.gate.strike(StoreUnavailableError("the store said 500"))
            player.gate.settle(player.running)
        else:
            moves = dice.choice([1, 1, 2, 4, 8, 16])
            self.told.append(f"{player.name} moves {moves}")
            for _ in range(moves):
                if player.running.done():
                    break
                player.gate.let_through(player.running)
            self.auditor.look_at_versions(self.table)

    def _leave(self, player: Player) -> None:
        try:
            player.running.result()
        except Killed:
            pass
        except MemWalError as error:
            if not (player.dead or may_be_refused(error) or "500" in str(error)):
                raise
        except (OSError, RuntimeError, ValueError):
            if not player.dead:
                raise


def play(actors: Actors, seed: int) -> None:
    dice = random.Random(seed)
    table, auditor = actors.copy(linked=seed % 3 == 0)
    jobs = dice.sample(TROUPE, dice.choice([2, 3, 4]))
    others = dice.sample(list(OTHERS.items()), dice.choice([2, 4, 6]))
    shown = Interleaving(actors, table, auditor, seed)
    try:
        shown.play(jobs, others)
        auditor.look(table)
        finish(table, auditor)
    except Exception as error:
        raise AssertionError(
            f"seed {seed}: {error}\nagain: {_SEED}={seed} with this test\n"
            + "\n".join(f"  {line}" for line in shown.told)
        ) from error
    actors.drop(table)


def only_or(seeds: list[Any]) -> list[Any]:
    """Return the seeds, or the only one that the environment names."""
    return [int(os.environ[_SEED])] if _SEED in os.environ else seeds


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", only_or(list(SEEDS)))
def test_a_schedule(actors: Actors, seed: int) -> None:
    play(actors, seed)


@pytest.mark.parametrize("seed", only_or(drawn(15, MANY_SEEDS, seed="schedules")))
def test_many_schedules(actors: Actors, seed: int) -> None:
    play(actors, seed)
