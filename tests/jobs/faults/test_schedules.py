"""Several jobs at once, step by step in an order of chance, with deaths, errors and others."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from support.data.sampled import drawn
from support.faults.fault_schedule import Actors
from support.faults.interleaving import Interleaving
from support.faults.jobs import JOBS
from support.faults.others import OTHERS
from support.faults.prepared import finish

_SEED = "MEMWAL_FAULT_SEED"
SEEDS = range(3)
MANY_SEEDS = range(3, 303)

# Twice what two runs of a scheduler, or two schedulers, may start at once.
TROUPE = [*JOBS.items(), ("merge", JOBS["merge"]), ("collection", JOBS["collection"])]


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
