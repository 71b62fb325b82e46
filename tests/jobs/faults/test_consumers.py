"""A consumer beside collections and clean-ups of versions, each stopped at a call of its store.

What the consumer needs is kept, or its next call tells that it expired.
"""

import copy
import functools
import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.data.copied import lasting_folder
from support.data.sampled import drawn
from support.data.tables import Rows, folder, later, state
from support.faults.collecting import DAY
from support.faults.fault_schedule import FAULTS, Actors, Fault, Job, KnownSteps, Step, chosen
from support.faults.others import indexer, merger, our_writer
from support.faults.prepared import prepared
from support.oracles.auditor import Auditor
from support.oracles.native import collect_all
from support.stores.faulty_store import FaultyStores

import memwal
from memwal.errors import ConsumerExpiredError
from memwal.feed.consumer import Consumer
from memwal.jobs.gc import collect_garbage
from memwal.jobs.options import GcOptions
from memwal.storage.location import TableLocation

copies: dict[str, Rows] = {}
"""The rows that consumers have made of their feeds, by the token of the last one."""


def apply(consumer: Consumer) -> str:
    """Read all changes, keep the rows with the token of their feed, and return that."""
    feed = consumer.read()
    copy = {} if consumer.token is None else dict(copies[consumer.token])
    for row in feed.to_table().to_pylist():
        if row["_change"] == "delete":
            copy.pop(row["id"], None)
        else:
            copy[row["id"]] = row["n"]
    copies[feed.token] = copy
    return feed.token


def commit(location: TableLocation) -> None:
    consumer = Consumer(location, "c", start=None)
    consumer.commit(apply(consumer))


def reset(location: TableLocation) -> None:
    Consumer(location, "c", start=None).reset()
    commit(location)


def drop(location: TableLocation) -> None:
    Consumer(location, "c", start=None).drop()


def clean_up(location: TableLocation) -> None:
    """Collect generations and versions that nothing holds."""
    ages = GcOptions(
        dry_run=False,
        grace_seconds=0,
        retention_seconds=0,
        foreign_claim_seconds=0,
        version_retention_seconds=0,
    )
    collect_garbage(location, ages)


def expire(location: TableLocation) -> None:
    """Collect when the consumer has committed nothing for a week."""
    options = GcOptions(dry_run=False, grace_seconds=0, retention_seconds=0)
    collect_garbage(location, options, clock=later(8 * DAY))


JOBS: dict[str, Job] = {
    "commit": commit,
    "reset": reset,
    "drop": drop,
    "clean-up": clean_up,
    "expiry": expire,
}


def changes(table: memwal.Table, auditor: Auditor) -> None:
    """Write, merge, and collect all that is not held."""
    for _ in range(2):
        our_writer(table, auditor)
        merger(table, auditor)
        indexer(table, auditor)
        clean_up(table.location)
    collect_all(table)


def another_process(table: memwal.Table, auditor: Auditor) -> None:
    """Commit, and have the table go on."""
    go_on(table)
    changes(table, auditor)


def an_expiry(table: memwal.Table, auditor: Auditor) -> None:
    """Let the consumer expire, and collect what it needed."""
    expire(table.location)
    changes(table, auditor)


MEANWHILE: dict[str, Callable[[memwal.Table, Auditor], None]] = {
    "changes": changes,
    "another process": another_process,
    "an expiry": an_expiry,
}


def go_on(table: memwal.Table) -> None:
    """Read and commit by the next process, which begins again if the consumer is expired."""
    consumer = table.consumer("c")
    try:
        token = apply(consumer)
    except ConsumerExpiredError:
        consumer.reset()
        token = apply(consumer)
    assert copies[token] == state(table.fresh())
    consumer.commit(token)


def check(table: memwal.Table, auditor: Auditor) -> None:
    """Every row arrives, before all is collected again and after; no other tag is left."""
    # The versions before it may be cleaned up.
    auditor.seen = table.base().version
    auditor.look(table)
    go_on(table)
    changes(table, auditor)
    go_on(table)
    clean_up(table.location)
    assert sum("consumer" in name for name in table.base().dataset.tags.list()) == 1


@functools.cache
def consumed() -> tuple[memwal.Table, Auditor, dict[str, Rows]]:
    """The prepared table with a consumer that has not read the newest versions."""
    table, auditor = prepared()
    path = lasting_folder() / "table.lance"
    shutil.copytree(folder(table), path)
    table, auditor = memwal.open(str(path)), copy.deepcopy(auditor)
    copies.clear()
    go_on(table)
    our_writer(table, auditor)
    merger(table, auditor)
    indexer(table, auditor)
    our_writer(table, auditor)
    return table, auditor, dict(copies)


@pytest.fixture(scope="session")
def known_steps() -> KnownSteps:
    """Return the steps of these jobs on this table."""
    return {}


@pytest.fixture
def actors(known_steps: KnownSteps, quick_faults: FaultyStores, tmp_path: Path) -> Actors:
    """Return what copies the table with the consumer and runs jobs with faults."""
    table, auditor, known = consumed()
    copies.clear()
    copies.update(known)
    return Actors(table, auditor, quick_faults, tmp_path, known_steps)


def attempt(actors: Actors, name: str, fault_name: str, *, most: int | None) -> None:
    """Try a fault at some steps of a job; None for all."""
    job, fault = JOBS[name], FAULTS[fault_name]
    tried = chosen(actors.steps(job), fault, every=most is None)
    if most is not None and len(tried) > most:
        tried = random.Random(f"{name} {fault_name}").sample(tried, most)
    for step in tried:
        with actors.trying(name, fault_name, step) as (table, auditor):
            actors.suffer(table, job, fault, step)
            check(table, auditor)


STANDING = Fault("standing", lambda store, number: store.pause("*", skip=number), common=True)
# An eighth of them by default, as for every job.
PAIRS = {
    (job, fault)
    for row, job in enumerate(JOBS)
    for column, fault in enumerate(FAULTS)
    if (row + column) % 8 == 0
}


@pytest.mark.parametrize(
    ("job", "fault"),
    drawn(10, itertools.product(JOBS, FAULTS), seed="consumers", default=PAIRS.__contains__),
)
def test_a_fault(actors: Actors, job: str, fault: str) -> None:
    attempt(actors, job, fault, most=2)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("job", JOBS)
def test_a_fault_at_every_step(actors: Actors, job: str, fault: str) -> None:
    attempt(actors, job, fault, most=None)


def stand(actors: Actors, job: str, name: str, steps: list[Step]) -> None:
    """Let a job stand still before some steps while something else happens."""
    for step in steps:
        with actors.trying(job, f"next to {name}", step) as (table, auditor):
            happens = functools.partial(MEANWHILE[name], table, auditor)
            actors.pause(table, JOBS[job], step, happens)
            check(table, auditor)


@pytest.mark.few(4)
@pytest.mark.parametrize(("job", "name"), list(itertools.product(JOBS, MEANWHILE)))
def test_somebody_goes_on(actors: Actors, job: str, name: str) -> None:
    steps = actors.steps(JOBS[job])
    stand(actors, job, name, [random.Random(f"{job} {name}").choice(steps)])


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("job", "name"), drawn(5, itertools.product(JOBS, MEANWHILE), seed="each call")
)
def test_somebody_goes_on_at_every_kind_of_step(actors: Actors, job: str, name: str) -> None:
    stand(actors, job, name, chosen(actors.steps(JOBS[job]), STANDING, every=False))
