"""Writes inside Lance that fail for a moment: nothing that is named lacks a byte."""

import json
from pathlib import Path
from typing import Any

import lance
import pytest
from support.data.tables import MakeTable, state
from support.faults import lost_writes, lost_writes_child
from support.faults.lost_writes import bad_files
from support.faults.preloaded import preload
from support.processes import python_environment, run_python

import memwal
from memwal.errors import MemWalError
from memwal.jobs.options import VerifyOptions
from memwal.jobs.verify import FindingSeverity, verify

TESTS = Path(__file__).parents[2]
ROUNDS = 40


def work(table: memwal.Table, seed: int, log: Path, *more: str) -> dict[str, Any]:
    """Let a process work on a table while some of its writes fail, and return what it printed."""
    failing = lost_writes.failing_writes(table.uri, log, rate=100_000, seed=seed + 1)
    environment = python_environment(preload([lost_writes.SOURCE]) | failing)
    program = Path(lost_writes_child.__file__)
    child = run_python(program, table.uri, seed, ROUNDS, *more, env=environment)
    report: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return report


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_writes_that_fail_for_a_moment(make_table: MakeTable, tmp_path: Path, seed: int) -> None:
    table = make_table(maintained_indexes=["id_idx", "n_idx"])
    log = tmp_path / "failures"
    report = work(table, seed, log)
    expected = {int(key): value for key, value in report["rows"].items()}

    assert log.stat().st_size > 10
    assert report["counts"]["flush"] > 10
    assert bad_files(table) == []
    findings = verify(table.location, VerifyOptions(deep=True)).findings
    assert [f for f in findings if f.severity is FindingSeverity.ERROR] == []
    with table.writer() as writer:
        writer.claim()
    table.checkpoint()
    assert state(memwal.open(table.uri)) == expected
    dataset = lance.dataset(table.uri)
    for value in range(ROUNDS):
        ids = dataset.to_table(filter=f"n = {value}")["id"].to_pylist()
        assert sorted(ids) == sorted(key for key, n in expected.items() if n == value)


@pytest.mark.slow
def test_the_look_before_naming_is_needed(make_table: MakeTable, tmp_path: Path) -> None:
    """Lance drops some of the errors: without the look, files that are not whole are named."""
    for seed in range(20):
        table = make_table(maintained_indexes=["id_idx", "n_idx"])
        work(table, seed, tmp_path / f"failures-{seed}", "--unseen")
        try:
            if bad_files(table):
                return
        except MemWalError:
            return
    pytest.fail("no file was lost: the harness does not do what it should")
