"""A random world: who is there, what may go wrong, and what must be true at every moment.

``python -m simulation.explore SEED [STEPS]`` explores one again and tells the end of what happened.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from uuid import UUID

from simulation.consumers import consume, drop, modelled
from simulation.jobs import GRACE, ORPHAN_AGE, RETENTION, Client
from simulation.lake import CONSUMER, KINDS, Lake
from simulation.world import CALM, Odds, Process, World
from simulation.writers import Writer

from memwal.format.paths import consumer_key, manifest_dir, parse_generation_name

STEPS = 4_000
_STEPS_PER_LOOK = 40
_MANIFESTS_LEFT = 6


@dataclass(frozen=True)
class Explored:
    """What came of exploring a world.

    Attributes
    ----------
    steps, acknowledged, reads : int
    faults : collections.Counter
        By kind.
    seconds : float
        Of the world's own time.
    """

    steps: int
    acknowledged: int
    reads: int
    faults: Counter[str]
    seconds: float


class BrokenPromise(AssertionError):
    """What was found: the promise, the seed, and the last of what happened."""


def explore(seed: int, steps: int = STEPS) -> Explored:
    """Explore the world of a seed once.

    Raises
    ------
    BrokenPromise
        Something was seen that must not be.
    """
    # Not the dice of the world: what it draws first would go with how the world is.
    dice = Random(f"world {seed}")
    world = World(seed, _odds(dice))
    # With few keys writes meet; with many a lost one is not covered by the next.
    regions, keys, kind = dice.choice([1, 1, 2, 3]), dice.choice([5, 50]), dice.choice(KINDS)
    # A third of the worlds have a table without a primary key.
    has_keys = Random(f"key {seed}").random() > 1 / 3
    lake = Lake(world, regions, keys, RETENTION, kind, has_keys=has_keys)
    try:
        with modelled(world):
            _Cast(world, lake).live(steps)
    except AssertionError as broken:
        told = "\n".join(world.told[-80:])
        raise BrokenPromise(
            f"seed {seed}, after {world.steps} steps: {broken}\n{told}\n"
            f"again: PYTHONPATH=tests python -m simulation.explore {seed} {steps}"
        ) from broken
    acknowledged = sum(write.sure for write in lake.truth.writes)
    return Explored(world.steps, acknowledged, lake.truth.reads, world.faults, world.now)


def _odds(dice: Random) -> Odds:
    """Some worlds are harsh in one way, some in all, some in none."""
    odds = Odds()
    harsh = dice.choice(
        ["nothing", "all", "late", "twice", "after", "pause", "doze", "kill", "cut_off"]
    )
    if harsh == "nothing":
        return CALM
    if harsh == "all":
        return Odds(0.03, 0.03, 0.02, 0.02, 0.01, 0.005, 0.006, 0.002)
    return replace(odds, **{harsh: getattr(odds, harsh) * 8})


class _Cast:
    """The processes of a world."""

    def __init__(self, world: World, lake: Lake) -> None:
        self._world = world
        self._lake = lake
        self._failure: BaseException | None = None
        self._processes: list[Process] = []

    def live(self, steps: int) -> None:
        """Let everybody live, then clean up, and look at what is left."""
        dice, lake = self._world.dice, self._lake
        for region in lake.regions:
            for number in range(dice.choice([1, 1, 2, 3])):
                self._enter(
                    f"writer {region.int}.{number}",
                    partial(self._write, region, reopens=number == 1),
                )
        for name, job, seconds, least, most in (
            ("merger", Client.merge, 60.0, 1, 3),
            ("indexer", Client.build_index, 60.0, 1, 1),
            ("collector", Client.collect, 300.0, 1, 2),
            ("reader", Client.read, 20.0, 1, 2),
            ("long reader", Client.read_for_long, 60.0, 0, 2),
            # Where nothing is tagged, much more is collected.
            ("tagger", Client.tag, 600.0, 0, 1),
            ("direct", Client.write_directly, 60.0, 1, 1),
            # Only the logs of a table without a key tell changes: tests.feed.test_without_key.
            *[("consumer", consume, 10.0, 1, 2)] * lake.format.has_keys,
        ):
            for number in range(dice.randint(least, most)):
                self._enter(
                    f"{name} {number}",
                    lambda process, job=job, seconds=seconds: self._client(process, job, seconds),
                )
        self._run(lambda: self._world.steps >= steps)
        self._end()

    def _write(self, region: UUID, process: Process, *, reopens: bool) -> None:
        Writer(self._lake, process, region, reopens=reopens).live()

    def _client(self, process: Process, job: Callable[[Client], None], seconds: float) -> None:
        client = Client(self._lake, process)
        client.again_and_again(lambda: job(client), seconds)

    def _enter(self, name: str, life: Callable[[Process], None], after: float = 0.0) -> None:
        """A process that comes back a while after it was killed."""
        dice = self._world.dice
        process = Process(
            name, slow=dice.choice([1, 1, 1, 5, 30]), sleepy=dice.choice([1] * 7 + [50])
        )
        self._processes.append(process)

        def guarded() -> None:
            try:
                life(process)
            except AssertionError as error:
                self._failure = error
            finally:
                self._processes.remove(process)
                if not self._ending:
                    self._enter(name, life, self._world.dice.choice([0.1, 5.0, 900.0]))

        self._world.start(process, guarded, after=after)

    _ending = False

    def _run(self, until: Callable[[], bool]) -> None:
        looked = 0

        def done() -> bool:
            nonlocal looked
            if self._failure is not None:
                raise self._failure
            if self._world.steps - looked >= _STEPS_PER_LOOK:
                looked = self._world.steps
                self._lake.look()
            return until()

        self._world.run(done)

    def _end(self) -> None:
        self._ending = True
        for process in list(self._processes):
            process.dead = True
        self._world.odds = CALM
        self._world.run(lambda: False)
        end(self._world, self._lake)


def end(world: World, lake: Lake) -> None:
    """When nobody else is there: flush, merge, index and collect everything, and compare."""
    finisher = Process("finisher")
    failures: list[BaseException] = []

    def finish() -> None:
        try:
            for region in lake.regions:
                Writer(lake, finisher, region).finish()
            client = Client(lake, finisher)
            lake.base.tags.clear()
            if consumer_key(CONSUMER) in lake.objects:
                drop(client)
            client.merge(everything=True)
            client.build_index()
            for _ in range(3):
                world.sleep(sum(a.total_seconds() for a in (GRACE, RETENTION, ORPHAN_AGE)))
                client.collect()
        except BaseException as error:
            failures.append(error)

    lake.look()
    world.start(finisher, finish)
    world.run(lambda: False)
    if failures:
        raise AssertionError(f"cleaning up failed: {failures[0]!r}") from failures[0]
    lake.look()
    rows = dict(lake.base.newest.rows)
    lake.check(rows, "the base table in the end", since=world.now)
    _look_at_leftovers(lake)


def _look_at_leftovers(lake: Lake) -> None:
    folders = {key.split("/")[2] for key in lake.objects if key.count("/") > 2}
    left = [name for name in folders if parse_generation_name(name) is not None]
    assert not left, f"generations are left: {left}"
    assert not lake.tagged(), "tags of the consumer are left"
    covered = lake.flushed()
    for region in lake.regions:
        # What is behind the last flush are fences of those who wrote nothing.
        log = [p for p in lake.log(region) if p <= covered[region]]
        assert len(log) <= 1, f"entries are left that are flushed: {log}"
        names = [key for key in lake.objects if key.startswith(manifest_dir(region))]
        assert len(names) <= _MANIFESTS_LEFT, f"manifests are left: {names}"


def main() -> None:
    """Explore one again."""
    explored = explore(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else STEPS)
    print(explored)


if __name__ == "__main__":
    main()
