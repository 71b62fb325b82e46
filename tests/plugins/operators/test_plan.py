import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from memwal_airflow.dag_factory import LATER_TASKS
from memwal_airflow.operators import maintenance
from memwal_airflow.operators.maintenance import MergeAndPlanOperator
from memwal_airflow.skips import TaskSkipped, TaskSkipReason
from memwal_airflow.version_compat import XCOM_SKIPMIXIN_KEY, AirflowFailException
from support.airflow.skips import skips

from memwal.catalog import Catalog, Policy
from memwal.errors import StoreUnavailableError
from memwal.jobs.job import JobResult

Follow = Callable[..., tuple[set[str], dict[str, Any] | None]]

BUSY = Policy(merge_at_generations=1, index_at_generations=1, gc_interval_seconds=1e9)


@pytest.fixture
def flights(backlog: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The table, registered with a policy by which all is due; merges run in this process."""
    catalog.register("flights", uri=backlog.uri, policy=BUSY)
    monkeypatch.setenv("AIRFLOW__MEMWAL__LOCAL_BELOW_BYTES", str(1 << 30))
    return backlog


@pytest.fixture
def follow(context: dict[str, Any]) -> Follow:
    """Return a function that runs the first task of a run with parameters.

    It returns the tasks that follow, and the result.
    """

    def go(**params: Any) -> tuple[set[str], dict[str, Any] | None]:
        context["params"] = params
        operator = MergeAndPlanOperator(task_id="merge", table="flights", later=LATER_TASKS)
        result = None
        with contextlib.suppress(TaskSkipped):
            result = operator.execute(context)  # type: ignore[arg-type]
        return set(context["ti"].pushed.pop(XCOM_SKIPMIXIN_KEY)["followed"]), result

    return go


def test_what_is_due_after_the_merge_follows_it(
    flights: Any, catalog: Catalog, follow: Follow
) -> None:
    tasks, result = follow()
    assert result is not None
    assert tasks == {"index", "snapshot", "collect"}
    since = datetime.now(UTC) - timedelta(hours=1)
    (sample,) = catalog.backlog_points("flights", since=since, most=10)
    assert sample.generations == 0


def test_a_merge_with_nothing_to_do_still_decides(
    flights: Any, catalog: Catalog, follow: Follow
) -> None:
    flights.table.merge()
    tasks, result = follow()
    assert (tasks, result) == ({"index", "snapshot", "collect"}, None)
    flights.table.build_indexes()
    flights.table.build_snapshot()
    with catalog.record_run("flights", "gc") as run:
        run.finish(JobResult(job="gc", table=flights.uri, version=1))
    assert follow() == (set(), None)


def test_a_run_for_some_jobs_does_these_if_they_are_due(flights: Any, follow: Follow) -> None:
    assert follow(jobs=["index", "compact"]) == (set(), None)
    assert follow(jobs=["snapshot", "gc"]) == ({"snapshot", "collect"}, None)


def test_force_and_a_dry_run_are_for_all_jobs(flights: Any, follow: Follow) -> None:
    everything = set(LATER_TASKS.values())
    assert follow(dry_run=True) == (everything, None)
    assert follow(force=True, jobs=["gc"]) == ({"collect"}, None)
    assert follow(force=True)[0] == everything


def test_unknown_regions_are_named(flights: Any, follow: Follow) -> None:
    unknown = "00000000-0000-0000-0000-000000000009"
    with pytest.raises(AirflowFailException, match=unknown):
        follow(regions=[unknown])


def test_a_merge_that_is_done_does_not_fail_because_nothing_can_be_decided(
    flights: Any, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next try would merge nothing, and the event of the merged rows would be lost."""

    def fail(*arguments: Any, **options: Any) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr("memwal.fleet.tables.survey", fail)
    operator = MergeAndPlanOperator(task_id="merge", table="flights", later=LATER_TASKS)
    assert operator.execute(context)["metrics"]["generations"] == 5  # type: ignore[arg-type]
    assert XCOM_SKIPMIXIN_KEY not in context["ti"].pushed


def test_a_merge_that_fails_decides_nothing(
    flights: Any, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next try does."""

    def fail(*arguments: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(maintenance.MemWalMergeOperator, "run_on", fail)
    operator = MergeAndPlanOperator(task_id="merge", table="flights", later=LATER_TASKS)
    with pytest.raises(OSError, match="no space"):
        operator.execute(context)  # type: ignore[arg-type]
    assert XCOM_SKIPMIXIN_KEY not in context["ti"].pushed


def test_its_skip_says_why(flights: Any, context: dict[str, Any]) -> None:
    context["params"] = {"jobs": ["gc"]}
    operator = MergeAndPlanOperator(task_id="merge", table="flights", later=LATER_TASKS)
    with skips(TaskSkipReason.NOT_REQUESTED):
        operator.execute(context)  # type: ignore[arg-type]
