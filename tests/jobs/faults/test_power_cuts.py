"""The power goes at every sync of every job: nothing is lost, and the next run completes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.data.sampled import drawn
from support.data.tables import folder
from support.faults.fault_schedule import Finish, Job
from support.faults.jobs import JOBS
from support.faults.power_loss import Crash, Recorder, survive, survive_not
from support.oracles.auditor import Auditor
from support.systems import BARE, take_away

import memwal
from memwal.jobs.gc import collect_garbage
from memwal.jobs.options import GcOptions
from memwal.storage.location import TableLocation

TABLE = "table.lance"

Prepared = tuple[memwal.Table, Auditor]


def _divide(location: TableLocation) -> None:
    memwal.add_region_spec(location.uri, memwal.RegionSpec.bucket("id", 3))


def _clean_up(location: TableLocation) -> None:
    collect_garbage(
        location,
        GcOptions(
            dry_run=False,
            grace_seconds=0,
            retention_seconds=0,
            index_grace_seconds=0,
            orphan_grace_seconds=0,
            version_retention_seconds=0,
        ),
    )


CUT: dict[str, Job] = JOBS | {"new region spec": _divide, "collection of versions": _clean_up}


def recorded(prepared: Prepared, folder_: Path, job: Job) -> Recorder[None]:
    """What a job does to the disk of a copy of the prepared table."""
    disk = folder_ / "disk"
    shutil.copytree(folder(prepared[0]), disk / TABLE, copy_function=os.link)
    recorder: Recorder[None] = Recorder(disk, lambda: None)
    with recorder.watch():
        job(TableLocation(str(disk / TABLE)))
    return recorder


def checked(prepared: Prepared, job: Job, finish: Finish) -> Callable[[Path, Crash[None]], None]:
    """Whether all is well at once, and when the job has run once more, and all others."""

    def check(path: Path, crash: Crash[None]) -> None:
        table, auditor = memwal.open(str(path / TABLE)), prepared[1].copy()
        auditor.look(table, verified=True)
        job(table.location)
        finish(table, auditor)

    return check


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("job", CUT)
def test_every_sync(prepared: Prepared, finish: Finish, tmp_path: Path, job: str) -> None:
    recorder = recorded(prepared, tmp_path, CUT[job])
    survive(recorder.crashes(), tmp_path, checked(prepared, CUT[job], finish))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "missing"),
    [
        ("merge", "^syncfs"),
        ("merge", "_versions/"),
        ("index build", "^syncfs"),
        ("index build", "_versions/"),
        ("compaction", "^syncfs"),
        ("new region spec", "^syncfs"),
        ("merge", f"^fsync {TABLE}/data/"),
        ("compaction", f"^fsync {TABLE}/data/"),
    ],
)
def test_a_missing_sync_is_noticed(
    prepared: Prepared,
    finish: Finish,
    tmp_path: Path,
    job: str,
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if missing.startswith("^fsync"):
        # Only then is a file of Lance's synced by itself.
        take_away(monkeypatch, "syncfs")
    recorder = recorded(prepared, tmp_path, CUT[job])
    survive_not(recorder, missing, tmp_path, checked(prepared, CUT[job], finish))


@pytest.mark.parametrize(
    ("job", "most"),
    [("merge", 2), *(pytest.param(job, 2, marks=pytest.mark.slow) for job in CUT)],
)
def test_some_syncs(
    prepared: Prepared, finish: Finish, tmp_path: Path, job: str, most: int
) -> None:
    check_some(prepared, finish, tmp_path, job, most)


@pytest.mark.parametrize("job", drawn(4, CUT, seed="where the system has less"))
def test_some_syncs_where_the_system_has_less(
    prepared: Prepared, finish: Finish, tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch, BARE)
    check_some(prepared, finish, tmp_path, job, most=2)


def check_some(prepared: Prepared, finish: Finish, tmp_path: Path, job: str, most: int) -> None:
    recorder = recorded(prepared, tmp_path, CUT[job])
    survive(recorder.crashes(), tmp_path, checked(prepared, CUT[job], finish), most=most)
