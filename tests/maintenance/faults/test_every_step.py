"""Every job, with every fault, at every step: nothing is lost, and the next run completes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.auditor import Auditor
from support.fault_schedule import FAULTS, Actors, Job, chosen, telling
from support.tables import later

import memwal
from memwal.maintenance.checkpoint import checkpoint
from memwal.maintenance.compaction import compact
from memwal.maintenance.garbage import collect_garbage
from memwal.maintenance.index_build import build_indexes
from memwal.maintenance.merge import merge
from memwal.maintenance.snapshot_build import build_snapshot

DAY = 86_400.0

JOBS: dict[str, Job] = {
    "merge": merge,
    "merge by generation": lambda location: merge(location, commit_bytes=1, max_tasks=2),
    "index build": build_indexes,
    "snapshot build": build_snapshot,
    "snapshot build in a file": lambda location: build_snapshot(location, inline_regions=1),
    "compaction": lambda location: compact(location, min_fragments=2),
    "checkpoint": lambda location: checkpoint(location, commit_bytes=1),
    "collection": lambda location: collect_garbage(
        location, dry_run=False, retention=timedelta(0), clock=later(2 * DAY)
    ),
}

REMOTE = ("merge", "merge by generation", "index build", "compaction")
"""Jobs of which Lance makes commits by itself where stores are durable."""


def attempt(
    actors: Actors, name: str, fault_name: str, finish: object, *, every: bool, remote: bool = False
) -> None:
    """Try one fault at the steps of one job."""
    job, fault = JOBS[name], FAULTS[fault_name]
    steps = actors.steps(job, commits=remote)
    assert any(step.changes for step in steps)
    for step in chosen(steps, fault, every=every):
        with telling(name, fault_name, step):
            table, auditor = actors.copy()
            actors.suffer(table, job, fault, step, remote=remote)
            auditor.look(table, verified=not fault.fatal)
            job(table.location)
            auditor.look(table)
            assert callable(finish)
            finish(table, auditor)
            actors.drop(table)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("job", JOBS)
def test_a_fault(actors: Actors, finish: object, job: str, fault: str) -> None:
    attempt(actors, job, fault, finish, every=False)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("job", JOBS)
def test_a_fault_at_every_step(actors: Actors, finish: object, job: str, fault: str) -> None:
    attempt(actors, job, fault, finish, every=True)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("job", REMOTE)
def test_a_fault_where_lance_commits(actors: Actors, finish: object, job: str, fault: str) -> None:
    attempt(actors, job, fault, finish, every=True, remote=True)


def test_the_prepared_table_has_work_for_every_job(
    actors: Actors, prepared: tuple[memwal.Table, Auditor]
) -> None:
    """Else nothing would be tested."""
    for name, job in JOBS.items():
        table, _ = actors.copy()
        result = job(table.location)
        done = {key: value for key, value in result.figures.items() if value}
        assert done, f"{name} had nothing to do"
        if name == "collection":
            assert {"generations_dropped", "folders", "log_entries", "manifests"} <= done.keys()
