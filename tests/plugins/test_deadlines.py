import asyncio
import logging

import pytest
from memwal_airflow.notifications.failures import record_late

from memwal.catalog import Catalog


def test_a_run_that_is_late_is_a_failed_job_of_its_table(
    catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    context = {"dag_run": {"dag_run_id": "scheduled__1"}}
    with caplog.at_level(logging.ERROR):
        asyncio.run(record_late(table="flights", seconds=90, context=context))
    (failed,) = catalog.backoffs.failed_jobs()
    assert (failed.table, failed.job) == ("flights", "late")
    assert "scheduled__1" in failed.reason
    assert "90 s" in failed.reason
    assert failed.reason in caplog.text
