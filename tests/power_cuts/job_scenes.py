"""A job runs on a table with something to do for each, until the power goes."""

import copy
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from power_cuts.scenes import Known, Scene, Stage
from support.data.tables import collect_now, folder
from support.faults.fault_schedule import Job
from support.faults.jobs import JOBS
from support.faults.power_loss import Crash
from support.faults.prepared import finish, prepared

import memwal
from memwal.storage.location import TableLocation

TABLE = "table.lance"


def _divide(location: TableLocation) -> None:
    memwal.add_region_spec(location.uri, memwal.RegionSpec.bucket("id", 3))


def _clean_up(location: TableLocation) -> None:
    ages = {"index_grace_seconds": 0, "orphan_grace_seconds": 0, "version_retention_seconds": 0}
    collect_now(memwal.Table(location), **ages)


def _copy(stage: Stage) -> None:
    table, _ = prepared()
    shutil.copytree(folder(table), stage.path.with_name(TABLE), copy_function=os.link)


def _live(job: Job) -> Callable[[Stage], object]:
    return lambda stage: job(TableLocation(str(stage.path.with_name(TABLE))))


def _check(job: Job, path: Path, crash: Crash[Known]) -> None:
    """All is well at once, and when the job has run once more, and all others."""
    table, auditor = memwal.open(str(path / TABLE)), copy.deepcopy(prepared()[1])
    auditor.look(table, verified=True)
    job(table.location)
    finish(table, auditor)


SCENES = {
    name: Scene(_live(job), partial(_check, job), _copy)
    for name, job in {
        **JOBS,
        "new region spec": _divide,
        "collection of versions": _clean_up,
    }.items()
}
