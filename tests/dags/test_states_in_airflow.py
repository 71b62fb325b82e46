"""What surrounds the jobs breaks, piece by piece; the table's state says so everywhere alike.

Pictures of the page meanwhile go to the folder that MEMWAL_SCREENSHOTS names, if it names one.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow_demo.standalone import AirflowStandalone
from support.airflow.browser import pictures
from support.data.policies import IDLE

from memwal.fleet import overview
from memwal.fleet.conditions import conditions
from memwal.jobs.job import JobResult
from memwal.jobs.policy import WHEN_DUE

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_ID = "memwal__flights"
SETTINGS = {
    "scheduler": {"scheduler_health_check_threshold": "20"},
    "triggerer": {"triggerer_health_check_threshold": "20"},
    "dag_processor": {"health_check_threshold": "20"},
    "memwal": {"table_dags": "each", "fleet_schedule": "none"},
}
# The threshold, two reports, and what a busy machine takes.
SOON = 180.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def test_each_state_is_told(tmp_path: Path, registered: Any) -> None:
    catalog = registered.catalog
    registered.write(*range(100))
    registered.table.merge()
    registered.table.build_indexes()
    policy = replace(IDLE, schedule=WHEN_DUE, poll_seconds=5)
    catalog.update("flights", policy=policy)
    for job in ("snapshot", "gc"):
        with catalog.record_run("flights", job) as run:
            run.finish(JobResult(job=job, table=registered.table.uri, version=1))
    dags = tmp_path / "dags"
    dags.mkdir()
    for name in ("memwal_tables.py", "memwal_fleet.py"):
        (dags / name).symlink_to(REPOSITORY / "dags" / name)

    def states() -> set[str]:
        (found,) = overview(catalog)
        return {reason.health.value for reason in found.reasons}

    def texts() -> str:
        return "; ".join(reason.text for reason in overview(catalog)[0].reasons)

    running = AirflowStandalone(
        tmp_path / "airflow", dags_folder=dags, env=registered.env, settings=SETTINGS
    )
    with running as airflow, pictures(airflow) as take:

        def wait(expected: set[str], *, naming: str = "") -> None:
            airflow.wait(
                lambda: expected <= states() and (expected or not states()) and naming in texts(),
                timeout=SOON,
                what=f"be {expected or 'well'}, but is {states()}",
            )

        airflow.wait_dag(DAG_ID)
        wait(set())
        for component, named, others in (
            ("dag-processor", "DAG processor", set()),
            ("triggerer", "triggerer", {"unwatched"}),
            ("scheduler", "scheduler", set()),
        ):
            airflow.kill(component)
            wait({"no_heartbeat", *others}, naming=named)
            told = {one.kind.value for one in conditions(catalog)}
            assert {"no_heartbeat", *others} <= told
            (row,) = airflow.client().get("/memwal/api/fleet").json()["tables"]
            assert row["health"] == "no_heartbeat"
            if component == "scheduler":
                take("no-heartbeat", "flights")
            airflow.restart(component)
            wait(set())

        # A run that fails without a job that failed.
        airflow.pause(DAG_ID)
        run_id = airflow.trigger(DAG_ID)
        path = airflow._run_path(DAG_ID, run_id)
        airflow._request("PATCH", path, json={"state": "failed"})
        wait({"run_failed"}, naming=run_id)
        assert catalog.backoffs.failed_jobs() == []
        airflow._request("PATCH", path, json={"state": "success"})
        wait(set())

        # A run that nothing takes, since its DAG is paused.
        airflow.trigger(DAG_ID)
        wait({"run_queued"}, naming="paused")
        airflow.pause(DAG_ID, paused=False)
        wait(set())

        # Nobody reports any more.
        airflow.kill("api-server")
        airflow.wait(
            lambda: "no_heartbeat" in states() and "API server" in texts(),
            timeout=SOON,
            what="miss the reports",
        )
