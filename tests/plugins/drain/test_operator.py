"""One task runs what is due of many tables; what fails or dies holds up no other table."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from memwal_airflow.drain import operator
from memwal_airflow.drain.dag import drain_params, plan, raise_failures
from memwal_airflow.drain.operator import MemWalDrainOperator
from memwal_airflow.notifications.failures import LATE
from memwal_airflow.version_compat import AirflowFailException, AirflowSkipException
from support.airflow.outlet_events import OutletEvents
from support.data.tables import MakeTable, numbered

from memwal.catalog import Catalog, Policy
from memwal.errors import ConflictError, StoreUnavailableError
from memwal.fleet import JobRequest, JobSpec, Runtime, run_job, scheduler
from memwal.jobs.job import JobResult

POLICY = Policy(merge_at_generations=1, index_at_generations=1)
FOLLOWED = "skipmixin_key"


class Updates:
    """The updates of assets by an alias."""

    def __init__(self) -> None:
        self.made: dict[str, list[Any]] = defaultdict(list)

    def add(self, asset: Any, *, extra: Any) -> None:
        self.made[asset.uri].append(extra)


Run = Callable[..., tuple[Any, Any]]


@pytest.fixture
def run(catalog: Catalog, context: dict[str, Any], without_spark: None) -> Run:
    """Run a task for tables that are announced, or by hand; get its result and its context."""

    def drain(*announced: str, pool: str = "default_pool", **params: Any) -> tuple[Any, Any]:
        told = {name: {"jobs": {"merge": "a limit"}, "succeeded": {}} for name in announced}
        event = SimpleNamespace(timestamp=datetime.now(UTC), extra={"payload": {"tables": told}})
        context["triggering_asset_events"] = {"memwal://due/0": [event]} if announced else {}
        context["params"] = {**drain_params().dump(), **params}
        context["dag_run"] = SimpleNamespace(run_after=datetime.now(UTC))
        context["outlet_events"] = OutletEvents(Updates)
        task = MemWalDrainOperator(task_id="drain", failed_task_id="failed", pool=pool)
        context["task"] = task
        return task.execute(context), context

    return drain


@pytest.fixture
def names(catalog: Catalog, make_table: MakeTable) -> tuple[str, ...]:
    """Tables with a backlog and an index, of two pools."""
    found = ("one", "two", "three")
    for name in found:
        table = make_table(maintained_indexes=["id_idx"])
        table.upsert(numbered(0, 3))
        pool = "sea" if name == "three" else None
        catalog.register(name, uri=table.uri, policy=replace(POLICY, pool=pool))
    return found


def updated(context: Any) -> dict[str, list[Any]]:
    (updates,) = context["outlet_events"].values()
    return dict(updates.made)


def test_the_tables_of_a_pool_are_done_and_announced(
    run: Run, names: tuple[str, ...], catalog: Catalog
) -> None:
    catalog.backoffs.record_failure("one", LATE, "a run of its own DAG")
    done, context = run(*names)
    jobs = {"merge": 2, "index": 2, "snapshot": 2, "gc": 2}
    assert done == {"tables": 2, "jobs": jobs, "failed": {}}
    runs = catalog.runs()
    assert {run.table for run in runs} == {"one", "two"}
    assert {run.external_id for run in runs} == {"dag/run/task/-1"}
    updates = updated(context)
    assert set(updates) == {
        f"memwal://{name}/{what}" for name in ("one", "two") for what in ("merged", "indexed")
    }
    assert [(e["rows"], e["generations"]) for e in updates["memwal://one/merged"]] == [(3, 1)]
    assert context["ti"].pushed[FOLLOWED] == {"followed": []}
    lineage = context["task"].get_openlineage_facets_on_complete(None)
    told = {one.name: one.outputFacets["outputStatistics"].rowCount for one in lineage.outputs}
    assert told == {catalog.get(name).uri: 3 for name in ("one", "two")}
    assert catalog.backoffs.failed_jobs() == []
    # Announced once more, a task for them has nothing to do; the other pool is not its own.
    with pytest.raises(AirflowSkipException):
        run(*names)
    assert run(*names, pool="sea")[0]["tables"] == 1


def test_a_table_that_fails_stops_no_other(
    run: Run, names: tuple[str, ...], catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.register("gone", uri="/nowhere/gone.lance", policy=POLICY)
    catalog.register("secret", uri="s3://b/t", storage_options_ref="/no/file.json", policy=POLICY)
    whole = scheduler.run_job

    def fail_two(catalog: Catalog, request: JobRequest, **options: Any) -> Any:
        if (request.table, request.job) == ("two", "merge"):
            raise StoreUnavailableError("the server does not answer")
        return whole(catalog, request, **options)

    monkeypatch.setattr(scheduler, "run_job", fail_two)
    done, context = run(*names, "gone", "secret")
    assert done["tables"] == 4
    failed = {(table, job) for table in done["failed"] for job in done["failed"][table]}
    assert failed == {("two", "merge"), ("gone", "status"), ("secret", "status")}
    assert "does not answer" in done["failed"]["two"]["merge"]
    assert {(one.table, one.job) for one in catalog.backoffs.failed_jobs()} == failed
    assert "memwal://one/merged" in updated(context)
    assert context["ti"].pushed[FOLLOWED] == {"followed": ["failed"]}
    with pytest.raises(AirflowFailException, match=r"two: merge: .*does not answer"):
        raise_failures(done)


def test_the_retry_announces_what_a_killed_try_merged(
    run: Run, names: tuple[str, ...], catalog: Catalog
) -> None:
    runtime = Runtime(external_id="dag/run/task/-1")
    run_job(catalog, JobRequest("one", "merge"), runtime=runtime)
    run_job(catalog, JobRequest("three", "merge"), runtime=replace(runtime, external_id="other"))
    done, context = run("one", "two")
    assert (done["tables"], done["jobs"]["merge"]) == (1, 1)
    merged = {uri for uri in updated(context) if uri.endswith("/merged")}
    assert merged == {"memwal://one/merged", "memwal://two/merged"}


@pytest.mark.parametrize(("master", "ran"), [("sc://spark:1", 1), ("local[1]", 0), ("yarn", 0)])
def test_a_large_table_uses_the_session_of_its_pool(
    run: Run,
    names: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    ran: int,
) -> None:
    """Or, where Spark is on this machine, none; elsewhere one task cannot run the jobs of many."""
    monkeypatch.setenv("AIRFLOW__MEMWAL__LOCAL_BELOW_BYTES", "0")
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_MASTER", master)
    sessions = []

    def connected(server: Any, spec: JobSpec, **given: Any) -> JobResult:
        sessions.append((server.url, given["session"]))
        return JobResult(job=spec.job, table="", version=1, metrics={"generations": 1})

    monkeypatch.setattr(operator, "run_connected", connected)
    done, _ = run(tables=["three"], jobs=["merge"], force=True, pool="sea")
    assert sessions == ran * [("sc://spark:1", "memwal sea")]
    assert bool(done["failed"]) is (master == "yarn")


def test_a_task_that_is_to_end_starts_no_job(
    run: Run, names: tuple[str, ...], catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemWalDrainOperator, "_prepare", lambda self, *_: self.on_kill())
    with pytest.raises(ConflictError):
        run(*names)
    assert catalog.runs() == []


def test_by_hand(run: Run, names: tuple[str, ...], catalog: Catalog) -> None:
    """Jobs of one table, due or not, in the order of a run; or nothing but what would be done."""
    done, _ = run(tables=["two"], dry_run=True)
    assert catalog.runs(job="merge") == []
    done, context = run(tables=["two"], jobs=["merge", "compact"], force=True)
    assert done == {"tables": 1, "jobs": {"merge": 1, "compact": 1}, "failed": {}}
    assert [run.job for run in reversed(catalog.runs(table="two"))][-2:] == ["merge", "compact"]
    assert set(updated(context)) == {"memwal://two/merged"}
    done, _ = run(tables=["two"], jobs=["merge"], regions=["9" * 8 + "-0000-4000-8000-" + "1" * 12])
    assert set(done["failed"]) == {"two"}
    with pytest.raises(AirflowFailException, match="nobody"):
        run(tables=["nobody"])
    # Without names, all that start when due.
    assert run()[0]["tables"] == 2


def test_a_plan_has_the_pools_of_due_tables_only(
    run: Run, names: tuple[str, ...], catalog: Catalog
) -> None:
    drains = {"default_pool": "drain", "sea": "drain_sea"}
    chosen = plan.function(drains, params={"tables": ["three"]}, triggering_asset_events={})
    assert chosen == ["drain_sea"]
    assert plan.function(drains, params={"tables": []}) == ["drain", "drain_sea"]
    # It has no task yet, and is announced again.
    with pytest.raises(AirflowSkipException):
        plan.function({"default_pool": "drain"}, params={"tables": ["three"]})
