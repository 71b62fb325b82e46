"""Verification as a task: what it fails by, and what it leaves for others to read."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from memwal_airflow.operators.verify import MemWalVerifyOperator
from memwal_airflow.version_compat import AirflowFailException
from support.data.quarantined import rules

from memwal.catalog import Catalog
from memwal.errors import InvalidInputError
from memwal.jobs.policy import Policy

pytestmark = pytest.mark.usefixtures("fake_spark")


def test_a_table_in_order(managed: Any, catalog: Catalog, context: Any) -> None:
    task = MemWalVerifyOperator(task_id="v", table="t", quick=True, regions=[managed.hot])
    report = task.execute(context)
    assert (report["errors"], report["regions"]) == (0, 1)
    assert context["ti"].pushed["result"] == report
    (run,) = catalog.runs()
    assert run.result is not None
    assert (run.job, run.result["metrics"]["errors"]) == ("verify", 0)


def test_errors_fail_the_task_and_are_recorded(
    managed: Any, catalog: Catalog, context: Any
) -> None:
    for path in Path(managed.uri, "_mem_wal", managed.hot).glob("*_gen_1"):
        shutil.rmtree(path)
    with pytest.raises(AirflowFailException, match=managed.uri):
        MemWalVerifyOperator(task_id="v", table="t", sample_generations=1).execute(context)
    assert context["ti"].pushed["result"]["errors"] > 0
    (run,) = catalog.runs()
    assert run.result is not None
    assert run.result["metrics"]["errors"] > 0
    assert run.result["warnings"]
    assert [(failed.table, failed.job) for failed in catalog.backoffs.failed_jobs()] == [
        ("t", "verify")
    ]

    report = MemWalVerifyOperator(task_id="v", table="t", fail_on="never").execute(context)
    assert report["errors"] > 0


def test_rows_in_the_quarantine_of_the_rules_are_not_lost(
    managed: Any, catalog: Catalog, context: Any, tmp_path: Path
) -> None:
    present = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "v"}}
    gate = rules("quarantine", present, quarantine_uri=str(tmp_path / "elsewhere.lance"))
    catalog.update("t", policy=Policy(quality=gate))
    managed.table.upsert([{"id": 1, "v": None}])
    assert managed.table.merge(quality=gate).quality["quarantined_rows"] == 1
    report = MemWalVerifyOperator(task_id="v", table="t").execute(context)
    assert report["errors"] == 0


def test_wrong_options() -> None:
    unknown: Any = "anything"
    with pytest.raises(InvalidInputError, match="anything"):
        MemWalVerifyOperator(task_id="v", table="t", fail_on=unknown)
    with pytest.raises(InvalidInputError):
        MemWalVerifyOperator(task_id="v", table="t", quick=True, sample_generations=1)
