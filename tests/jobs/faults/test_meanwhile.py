"""Every job stands still at its steps, past any lease and any grace, while others go on."""

import itertools
import random

import pytest
from support.data.sampled import drawn
from support.faults.fault_schedule import Actors, Fault, Step, chosen
from support.faults.jobs import JOBS
from support.faults.others import OTHERS, Other
from support.faults.prepared import finish
from support.oracles.auditor import Auditor

import memwal

SECOND = "a second copy"
NAMES = (SECOND, *OTHERS)
# A twelfth of them by default: every job meets others, and every other one meets jobs.
BY_DEFAULT = {
    (job, name)
    for row, job in enumerate(JOBS)
    for column, name in enumerate(NAMES)
    if (row + column) % 12 == 0
}
STANDING = Fault("standing", lambda store, number: store.pause("*", skip=number), common=True)


def other(job: str, name: str) -> Other:
    """What goes on while the job stands still."""
    if name != SECOND:
        return OTHERS[name]

    def same_job(table: memwal.Table, auditor: Auditor) -> None:
        if job.startswith("snapshot"):
            auditor.snapshot_begins()
        JOBS[job](table.location)

    return same_job


def attempt(actors: Actors, job: str, name: str, steps: list[Step]) -> None:
    for step in steps:
        with actors.trying(job, f"next to {name}", step) as (table, auditor):

            def meanwhile(table: memwal.Table = table, auditor: Auditor = auditor) -> None:
                other(job, name)(table, auditor)
                auditor.look(table)

            actors.pause(table, JOBS[job], step, meanwhile)
            auditor.look(table)
            finish(table, auditor)


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("job", "name"),
    drawn(22, itertools.product(JOBS, NAMES), seed="pairs", default=BY_DEFAULT.__contains__),
)
def test_somebody_goes_on(actors: Actors, job: str, name: str) -> None:
    """At one of the steps, which is another one for each."""
    steps = actors.steps(JOBS[job])
    one = random.Random(f"{job} {name}").choice([step for step in steps if step.number > 2])
    attempt(actors, job, name, [one])


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    ("job", "name"), drawn(1, itertools.product(JOBS, NAMES), seed="every kind of step")
)
def test_somebody_goes_on_at_every_kind_of_step(actors: Actors, job: str, name: str) -> None:
    attempt(actors, job, name, chosen(actors.steps(JOBS[job]), STANDING, every=False))
