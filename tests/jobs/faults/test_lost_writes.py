"""Writes inside Lance that fail for a moment: nothing that is named lacks a byte."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import lance
import pytest
from support.data.tables import MakeTable, state
from support.faults import lost_writes_child
from support.faults.lost_writes import bad_files

import memwal
from memwal.jobs.options import VerifyOptions
from memwal.jobs.verify import Severity, verify

SOURCE = Path(lost_writes_child.__file__).with_name("lost_writes.c")
TESTS = Path(__file__).parents[2]
ROUNDS = 40


@functools.cache
def shim() -> tempfile.TemporaryDirectory[str]:
    """Compile it, once a process, into a folder that goes with it."""
    compiler = shutil.which("cc")
    assert compiler is not None, "There is no C compiler; scripts/slow_tools.py brings one"
    built = tempfile.TemporaryDirectory(prefix="memwal-lost-writes-")
    arguments = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", f"{built.name}/shim.so"]
    subprocess.run([compiler, *arguments, str(SOURCE), "-ldl"], check=True)
    return built


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_writes_that_fail_for_a_moment(make_table: MakeTable, tmp_path: Path, seed: int) -> None:
    table = make_table(maintained_indexes=["id_idx", "n_idx"])
    log = tmp_path / "failures"
    environment = {
        **os.environ,
        "PYTHONPATH": str(TESTS),
        "LD_PRELOAD": f"{shim().name}/shim.so",
        "LOST_WRITES_BELOW": table.uri,
        "LOST_WRITES_RATE": "30000",
        "LOST_WRITES_SEED": str(seed + 1),
        "LOST_WRITES_LOG": str(log),
    }
    child = subprocess.run(
        [sys.executable, lost_writes_child.__file__, table.uri, str(seed), str(ROUNDS)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    report = json.loads(child.stdout.splitlines()[-1])
    expected = {int(key): value for key, value in report["rows"].items()}

    assert log.stat().st_size > 10
    assert report["counts"]["flush"] > 10
    assert bad_files(table) == []
    findings = verify(table.location, VerifyOptions(deep=True)).findings
    assert [f for f in findings if f.severity is Severity.ERROR] == []
    with table.writer() as writer:
        writer.claim()
    table.checkpoint()
    assert state(memwal.open(table.uri)) == expected
    dataset = lance.dataset(table.uri)
    for value in range(ROUNDS):
        ids = dataset.to_table(filter=f"n = {value}")["id"].to_pylist()
        assert sorted(ids) == sorted(key for key, n in expected.items() if n == value)
