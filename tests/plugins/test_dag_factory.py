import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.task.priority_strategy import validate_and_load_priority_weight_strategy
from memwal_airflow import dag_factory
from memwal_airflow.dag_factory import build_dag, build_dags, snapshot_path
from memwal_airflow.operators import maintenance

from memwal.catalog import Catalog, ManagedTable, Policy
from memwal.errors import InvalidInputError, StoreUnavailableError
from memwal.quality.rules import QualityRules


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tables.json"
    monkeypatch.setenv("MEMWAL_CATALOG_SNAPSHOT", str(path))
    return path


def register(**options: Any) -> ManagedTable:
    catalog = Catalog()
    arguments = {"name": "flights", "uri": "/data/flights.lance", **options}
    table = catalog.register(**arguments)
    catalog.close()
    return table


@pytest.fixture
def table(snapshot: Path, catalog: Catalog) -> ManagedTable:
    policy = Policy(
        schedule=90,
        tags=("air",),
        priority=7,
        merge_at_generations=9,
        retries=4,
        pool="lake",
        late_seconds=1800,
    )
    return register(owner="data team", storage_options_ref="airflow:lake", policy=policy)


def test_the_shape_of_a_dag(table: ManagedTable) -> None:
    dag = build_dag(with_suite(table))
    later = {"recover", "index", "compact", "snapshot", "collect", "quality"}
    edges = {task.task_id: task.downstream_task_ids - {"done"} for task in dag.tasks}
    assert edges == {
        "gate": {"merge", *later},
        "merge": later,
        "recover": set(),
        "index": {"compact", "collect"},
        "compact": {"collect"},
        "snapshot": {"collect"},
        "collect": {"quality"},
        "quality": set(),
        "done": set(),
    }
    # A job that fails fails the run, also if the tasks behind it were skipped before.
    assert dag.get_task("done").upstream_task_ids == {"merge", *later}
    rules = {task.task_id: task.trigger_rule for task in dag.tasks}
    assert (rules.pop("gate"), rules.pop("merge")) == ("all_done", "all_success")
    assert set(rules.values()) == {"none_failed"}
    assert not [task for task in dag.tasks if task.is_mapped]
    # Only a table with a suite has its check.
    assert set(dag.task_dict) - set(build_dag(table).task_dict) == {"quality"}


def with_suite(table: ManagedTable) -> ManagedTable:
    check = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}
    rules = {"suite": [check]}
    quality = QualityRules.from_dict(rules)
    return replace(table, policy=replace(table.policy, quality=quality))


def test_a_table_without_mem_wal_has_no_tasks_of_regions(snapshot: Path, catalog: Catalog) -> None:
    dag = build_dag(register(mem_wal=False))
    assert {task.task_id: task.downstream_task_ids - {"done"} for task in dag.tasks} == {
        "gate": {"index", "compact", "collect"},
        "index": {"compact", "collect"},
        "compact": {"collect"},
        "collect": set(),
        "done": set(),
    }


def test_merges_of_all_tables_come_before_the_rest_of_any(table: ManagedTable) -> None:
    """Else a table at the end of the line waits for the checks and compactions of all others."""
    tasks = build_dag(with_suite(table)).task_dict.values()
    weights = {
        task.task_id: validate_and_load_priority_weight_strategy(task.weight_rule).get_weight(
            cast(TaskInstance, SimpleNamespace(task=task))
        )
        for task in tasks
    }
    waits = ["gate", "merge", "index", "compact", "collect"]
    found = [weights[name] for name in waits]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(found)
    assert weights["done"] == 7


def test_the_policy_reaches_the_dag(table: ManagedTable) -> None:
    dag = build_dag(with_suite(table))
    assert (dag.dag_id, dag.max_active_runs, dag.catchup) == ("memwal__flights", 1, False)
    assert dag.schedule == timedelta(seconds=90)
    assert dag.tags == {"memwal", "air"}
    assert list(dag.params) == ["jobs", "regions", "force", "dry_run"]
    assert dag.is_paused_upon_creation is False
    assert "`/data/flights.lance`" in (dag.doc_md or "")
    tasks = {task.task_id: task for task in dag.tasks}
    assert {task.owner for task in dag.tasks} == {"data team"}
    assert {task.priority_weight for task in dag.tasks} == {7}
    jobs = {"recover", "merge", "index", "compact", "snapshot", "collect", "quality"}
    assert {(tasks[job].retries, tasks[job].pool) for job in jobs} == {(4, "lake")}
    assert (tasks["gate"].pool, tasks["gate"].retries) == ("default_pool", 2)
    assert [asset.uri for asset in tasks["merge"].outlets] == ["memwal://flights/merged"]
    announced = tasks["index"].outlets
    assert [asset.uri for asset in announced] == ["memwal://flights/indexed"]


def test_a_run_has_a_deadline(table: ManagedTable) -> None:
    (deadline,) = build_dag(table).deadline or ()
    assert deadline.interval == timedelta(seconds=1800)
    assert deadline.callback.path == "memwal_airflow.notifications.failures.record_late"
    assert deadline.callback.kwargs == {"table": "flights", "seconds": 1800}


def test_by_default_a_run_starts_when_something_is_due(snapshot: Path, catalog: Catalog) -> None:
    asset = build_dag(register()).timetable.asset_condition
    assert asset.uri == "memwal://flights/due"
    # One trigger watches all tables.
    assert asset.watchers == []


def test_one_sensor_waits_for_all_regions(table: ManagedTable) -> None:
    """A run of a table with 64 regions has 8 task rows."""
    dag = build_dag(replace(table, regions=64))
    assert len(dag.tasks) == 8
    gate = dag.get_task("gate")
    assert gate.start_from_trigger
    arguments = gate.start_trigger_args
    assert arguments.trigger_kwargs["shares"] == 1
    assert set(arguments.trigger_kwargs["tasks"].values()) == gate.downstream_task_ids
    # Without a triggerer, a minute longer than the window.
    assert arguments.timeout == timedelta(seconds=120)
    assert build_dag(replace(table, policy=replace(table.policy, late_seconds=30))).get_task(
        "gate"
    ).start_trigger_args.timeout == timedelta(seconds=75)


@pytest.mark.parametrize(
    ("regions", "groups", "sensors"), [(None, 64, 0), (1, 64, 0), (5, 64, 5), (500, 64, 64)]
)
def test_each_region_has_a_sensor_if_the_policy_wants_it(
    table: ManagedTable, regions: int | None, groups: int, sensors: int
) -> None:
    policy = replace(table.policy, sensor_groups=groups)
    dag = build_dag(replace(table, regions=regions, policy=policy))
    assert ("regions" in dag.task_dict) == bool(sensors)
    if sensors:
        mapped = dag.get_task("regions")
        assert mapped.expand_input.value == {"share": list(range(sensors))}
        assert mapped.start_from_trigger
        assert mapped.start_trigger_args.trigger_kwargs["shares"] == sensors
        assert mapped.downstream_task_ids == {"gate"}
        # The sensors have waited.
        assert dag.get_task("gate").start_trigger_args.timeout == timedelta(minutes=1)


@pytest.mark.usefixtures("airflow_database")
def test_a_dag_can_be_serialized_and_holds_the_name_of_its_table_only(table: ManagedTable) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    dag = build_dag(replace(table, regions=2, policy=replace(table.policy, sensor_groups=2)))
    data = DagSerialization.to_dict(dag)
    again = DagSerialization.from_dict(data)
    assert set(again.task_dict) == {task.task_id for task in dag.tasks}
    for name in ("regions", "gate"):
        sensor = again.get_task(name)
        assert sensor.start_from_trigger
        assert sensor.start_trigger_args.trigger_cls.endswith(".GateTrigger")
        assert "run_params" in sensor.template_fields
    assert again.get_task("gate").inherits_from_skipmixin
    assert "airflow:lake" not in json.dumps(data)


def test_enabled_tables_have_dags_and_others_none(snapshot: Path, catalog: Catalog) -> None:
    register(name="a")
    register(name="b", enabled=False)
    assert set(build_dags(snapshot)) == {"memwal__a"}


def test_of_many_tables_a_task_builds_its_own_only(
    snapshot: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = register(name="t").created_at.isoformat()
    entry = json.loads(snapshot.read_text())["tables"][0] | {"created_at": now, "updated_at": now}
    tables = [entry | {"name": f"t{number}"} for number in range(50)]
    snapshot.write_text(json.dumps({"format": 3, "tables": tables}))
    assert len(build_dags(snapshot)) == 50
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "memwal__t12")
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_TASK_ID", "merge")
    assert list(build_dags(snapshot)) == ["memwal__t12"]


def test_without_a_snapshot_there_are_no_tables_yet(tmp_path: Path) -> None:
    assert build_dags(tmp_path / "none.json") == {}


def test_a_bad_snapshot_is_not_taken_for_an_empty_one(snapshot: Path) -> None:
    snapshot.write_text("{}")
    with pytest.raises(InvalidInputError, match=r"tables\.json"):
        build_dags(snapshot)


def test_the_path_must_be_configured(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert snapshot_path() == snapshot
    monkeypatch.delenv("MEMWAL_CATALOG_SNAPSHOT")
    with pytest.raises(InvalidInputError, match="MEMWAL_CATALOG_SNAPSHOT"):
        snapshot_path()


DAG_FILE = """
from memwal_airflow.dag_factory import build_dags
# Airflow reads files that speak of airflow and dag only.
globals().update(build_dags({path!r}))
"""


@pytest.fixture
def run(backlog: Any, load_dag: Any, snapshot: Path, catalog: Catalog, without_spark: None) -> Any:
    """Run the DAG of the backlog's table with these parameters and give each task's states."""
    policy = Policy(schedule=None, merge_at_generations=4, merge_at_age_seconds=3600)
    register(uri=backlog.uri, policy=policy)
    # The DAG has a sensor for each region that the catalog knows of.
    catalog.record_backlog("flights", backlog.table.status())

    def go(**params: Any) -> tuple[str, dict[str, set[str]]]:
        dag = load_dag(DAG_FILE.format(path=str(snapshot)), "memwal__flights")
        # DAG.test() looks for deadlines in the database by what a scheduler would have put there.
        dag.deadline = None
        done = dag.test(run_conf=params)
        states: dict[str, set[str]] = {}
        for instance in done.get_task_instances():
            states.setdefault(instance.task_id, set()).add(str(instance.state))
        return str(done.state), states

    return go


def test_a_dry_run_changes_nothing(run: Any, backlog: Any, catalog: Catalog) -> None:
    before = backlog.table.status().to_dict()["regions"]
    state, tasks = run(dry_run=True)
    assert state == "success"
    assert all(tasks[task] == {"skipped"} for task in ("merge", "index", "snapshot"))
    assert tasks["collect"] == {"success"}
    after = backlog.table.status().to_dict()["regions"]
    for region in (*before, *after):
        region.pop("oldest_backlog_seconds")
    assert after == before
    assert catalog.runs() == []


def test_a_run_without_work_succeeds_with_all_jobs_skipped(
    run: Any, backlog: Any, catalog: Catalog
) -> None:
    state, tasks = run(jobs=["compact"])
    assert (state, tasks.pop("done")) == ("success", {"success"})
    assert set().union(*tasks.values()) == {"skipped"}
    assert catalog.runs() == []
    # Recorded by the gate, so that the page shows the table as it is.
    assert catalog.latest_samples()[0].generations == 5


def test_only_the_jobs_that_are_due_begin(run: Any, backlog: Any, catalog: Catalog) -> None:
    state, tasks = run(jobs=["snapshot", "compact"])
    assert tasks["done"] == {"success"}
    assert (state, tasks["gate"], tasks["snapshot"]) == ("success", {"success"}, {"success"})
    assert tasks["merge"] == tasks["compact"] == {"skipped"}
    assert {run.job for run in catalog.runs()} == {"snapshot"}


def test_a_table_that_cannot_be_read_fails_the_job_and_not_the_gate(
    run: Any, backlog: Any, catalog: Catalog
) -> None:
    catalog.update("flights", uri=backlog.uri + "-not", policy=Policy(schedule=None, retries=0))
    state, tasks = run()
    assert (state, tasks["gate"], tasks["merge"]) == ("failed", {"success"}, {"failed"})


@pytest.mark.parametrize("jobs", [["merge"], ["snapshot"], ["merge", "snapshot"]])
def test_a_job_that_fails_fails_the_run_whatever_is_skipped(
    run: Any, backlog: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, jobs: list[str]
) -> None:
    *before, failing = jobs
    run_on = maintenance.MemWalJobOperator.run_on

    def fail(self: Any, *arguments: Any) -> Any:
        if self.job == failing:
            raise StoreUnavailableError("away")
        return run_on(self, *arguments)

    catalog.update("flights", policy=replace(catalog.get("flights").policy, retries=0))
    monkeypatch.setattr(maintenance.MemWalJobOperator, "run_on", fail)
    state, tasks = run(jobs=jobs)
    assert all(tasks[job] == {"success"} for job in before)
    assert (state, tasks[failing], tasks["collect"]) == ("failed", {"failed"}, {"skipped"})


def test_a_run_may_be_about_some_regions(run: Any, backlog: Any) -> None:
    state, tasks = run(force=True, regions=[backlog.cold], jobs=["merge"])
    assert (state, tasks["merge"], tasks["done"]) == ("success", {"success"}, {"success"})
    remaining = {r.region_id: r.backlog_generations for r in backlog.table.status().regions}
    assert remaining == {backlog.hot: 4, backlog.cold: 0}


def test_a_table_whose_dag_cannot_be_built_is_left_out_and_says_so(
    table: ManagedTable, snapshot: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(name="trains", uri="/data/trains.lance")
    content = json.loads(snapshot.read_text())
    content["tables"][0]["policy"]["of_the_future"] = True
    snapshot.write_text(json.dumps(content))
    assert list(build_dags(snapshot)) == ["memwal__trains"]
    (failed,) = catalog.backoffs.failed_jobs()
    assert (failed.table, failed.job) == ("flights", "dag")
    assert "of_the_future" in failed.reason

    # Memwal's own fleet would refuse it, too; the policy cannot know what Airflow accepts.
    register(name="ships", uri="/data/ships.lance", policy=Policy(schedule="99 * * * *"))
    assert list(build_dags(snapshot)) == ["memwal__flights", "memwal__trains"]
    assert {one.table for one in catalog.backoffs.failed_jobs()} == {"flights", "ships"}

    def build(table: ManagedTable) -> object:
        raise ValueError("no such timetable")

    monkeypatch.setattr(dag_factory, "build_dag", build)
    assert build_dags(snapshot) == {}
    assert {one.table for one in catalog.backoffs.failed_jobs()} == {"flights", "ships", "trains"}


def test_dags_of_some_owners_and_the_rights_of_their_roles(
    snapshot: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, owner in {"a": "air team", "b": "sea team"}.items():
        register(name=name, owner=owner)
    assert set(build_dags(snapshot, owners={"sea team"})) == {"memwal__b"}
    # Rights that were given by hand stay.
    assert {dag.access_control for dag in build_dags(snapshot).values()} == {None}
    monkeypatch.setenv("AIRFLOW__MEMWAL__OWNER_ROLES", '{"air team": "Air"}')
    dags = build_dags(snapshot)
    assert dags["memwal__a"].access_control == {"Air": dag_factory.OWNER_RIGHTS}
    assert dags["memwal__b"].access_control == {}
    monkeypatch.setenv("AIRFLOW__MEMWAL__OWNER_ROLES", '["Air"]')
    with pytest.raises(InvalidInputError, match="owner_roles"):
        build_dags(snapshot)
