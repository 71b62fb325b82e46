"""Verification as a task: what it fails by, and what it leaves for others to read."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from memwal_airflow.operators.verify import MemWalVerifyOperator
from memwal_airflow.version_compat import AirflowFailException

from memwal.catalog import Catalog
from memwal.errors import InvalidInputError

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


def test_wrong_options() -> None:
    unknown: Any = "anything"
    with pytest.raises(InvalidInputError, match="anything"):
        MemWalVerifyOperator(task_id="v", table="t", fail_on=unknown)
    with pytest.raises(InvalidInputError):
        MemWalVerifyOperator(task_id="v", table="t", quick=True, sample_generations=1)
