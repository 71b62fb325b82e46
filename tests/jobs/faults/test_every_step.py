"""Every job, with every fault, at every step: nothing is lost, and the next run completes."""

import itertools
import random

import pytest
from support.data.sampled import drawn
from support.faults.fault_schedule import FAULTS, Actors, chosen
from support.faults.jobs import JOBS, rebuild
from support.faults.prepared import finish

DAMAGED = "index build after damage"
"""Until this job has run to its end, verify names the damage."""
TRIED = {**JOBS, DAMAGED: rebuild}

REMOTE = ("merge", "merge by generation", "index build", "compaction")
"""Jobs of which Lance makes commits by itself where stores are durable."""

# Of one job with one fault.
DEFAULT_STEPS = 1
SLOW_STEPS = 2

# An eighth of them by default: every job meets faults, and every fault meets jobs.
PAIRS = [
    (job, fault)
    for row, job in enumerate(TRIED)
    for column, fault in enumerate(FAULTS)
    if (row + column) % 8 == 0
]


def attempt(
    actors: Actors,
    name: str,
    fault_name: str,
    *,
    most: int | None,
    remote: bool = False,
) -> None:
    """Try one fault at some steps of one job; None for all."""
    every = most is None
    job, fault = TRIED[name], FAULTS[fault_name]
    steps = actors.steps(job, commits=remote)
    assert any(step.changes for step in steps)
    tried = chosen(steps, fault, every=every)
    if most is not None and len(tried) > most:
        tried = random.Random(f"{name} {fault_name}").sample(tried, most)
    for step in tried:
        with actors.trying(name, fault_name, step) as (table, auditor):
            actors.suffer(table, job, fault, step, remote=remote)
            auditor.look(table, verified=every and name != DAMAGED)
            job(table.location)
            finish(table, auditor)


@pytest.mark.parametrize(("job", "fault"), PAIRS)
def test_a_fault(actors: Actors, job: str, fault: str) -> None:
    attempt(actors, job, fault, most=DEFAULT_STEPS)


@pytest.mark.parametrize(
    ("job", "fault"), drawn(40, itertools.product(TRIED, FAULTS), seed="every job")
)
def test_a_fault_of_every_job(actors: Actors, job: str, fault: str) -> None:
    attempt(actors, job, fault, most=SLOW_STEPS)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("job", TRIED)
def test_a_fault_at_every_step(actors: Actors, job: str, fault: str) -> None:
    attempt(actors, job, fault, most=None)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("job", "fault"), drawn(4, itertools.product(REMOTE, FAULTS), seed="where Lance commits")
)
def test_a_fault_where_lance_commits(actors: Actors, job: str, fault: str) -> None:
    attempt(actors, job, fault, most=None, remote=True)


def test_the_prepared_table_has_work_for_every_job(actors: Actors) -> None:
    """Else nothing would be tested."""
    for name, job in JOBS.items():
        table, _ = actors.copy()
        result = job(table.location)
        done = {key: value for key, value in result.metrics.items() if value}
        assert done, f"{name} had nothing to do"
        if name.startswith("snapshot"):
            assert done["hints"] == 2
        if name == "collection":
            assert {"generations_dropped", "folders", "log_entries", "manifests"} <= done.keys()
