"""Copies of one prepared table, and jobs on them with faults."""

from pathlib import Path

import pytest
from support.faults.fault_schedule import Actors, KnownSteps
from support.faults.prepared import prepared
from support.oracles.auditor import Auditor
from support.stores.faulty_store import FaultyStores, skip_waits

from memwal.jobs.table import compact, snapshot


@pytest.fixture(scope="session")
def known_steps() -> KnownSteps:
    """Return the steps of the jobs that were counted already, which are the same for each copy."""
    return {}


@pytest.fixture
def actors(
    known_steps: KnownSteps,
    quick_faults: FaultyStores,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Actors[Auditor]:
    """Return what copies the table and runs jobs with faults."""
    skip_waits(monkeypatch, compact)
    # Hints are moved whenever they could be, which is one more step that can go wrong.
    monkeypatch.setattr(snapshot, "_HINT_LAG", 1)
    return Actors(*prepared(), quick_faults, tmp_path, known_steps)
