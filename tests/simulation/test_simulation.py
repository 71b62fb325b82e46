"""Random worlds keep their promises, and notice when a safeguard is taken out."""

import os
import random
import threading

import pytest
from simulation.explore import BrokenPromise, explore
from support.data.sampled import drawn
from support.faults.safeguards import no_sentinel

FIXED = range(12)
FRESH = int(os.environ.get("MEMWAL_SIMULATION_SEEDS", "3"))


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", FIXED)
def test_a_world_keeps_its_promises(seed: int) -> None:
    explored = explore(seed, steps=1_500)

    assert explored.acknowledged > 20
    assert explored.reads > 20


def test_fresh_worlds_keep_their_promises() -> None:
    for _ in range(FRESH):
        explore(int.from_bytes(os.urandom(4)), steps=1_500)


def test_a_seed_decides_everything() -> None:
    lived = explore(7, steps=1_000)
    assert lived.faults
    over = threading.Event()

    def draw() -> None:
        while not over.is_set():
            random.random()

    other = threading.Thread(target=draw)
    other.start()
    try:
        assert explore(7, steps=1_000) == lived
    finally:
        over.set()
        other.join()


@pytest.mark.parametrize("seed", drawn(6, range(1_000, 1_100), seed="long lives"))
def test_a_long_life_keeps_its_promises(seed: int) -> None:
    explore(seed, steps=10_000)


# simulation.test_orders takes out the others: some are noticed by one random world in hundreds.
def test_a_missing_safeguard_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    no_sentinel(monkeypatch)

    with pytest.raises(BrokenPromise):
        explore(13, steps=1_500)
