"""The operators on real tables: the real applications, with a spark-submit that needs no Spark."""

import json
import shutil
import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowNotFoundException
from memwal_airflow.assets import indexed_asset, merged_asset
from memwal_airflow.operators.base import MemWalOperator, external_id
from memwal_airflow.operators.maintenance import (
    MemWalCollectOperator,
    MemWalCompactOperator,
    MemWalIndexOperator,
    MemWalMergeOperator,
    MemWalQualityOperator,
    MemWalSnapshotOperator,
    TableCheckpointOperator,
)
from memwal_airflow.skips import RegionsSkipped, TaskSkipReason
from memwal_airflow.spark import application
from memwal_airflow.version_compat import AirflowException, AirflowFailException
from support.airflow.skips import skips
from support.data.tables import SCHEMA, numbered

import memwal
from memwal.catalog import Catalog, Policy, RunState
from memwal.catalog.leases import job_resource
from memwal.errors import InvalidInputError, StoreAccessError
from memwal.quality.rules import QualityRules

pytestmark = pytest.mark.usefixtures("fake_spark")


def merge_task(**options: Any) -> MemWalMergeOperator:
    arguments = {"table": "t", "outlets": [merged_asset("t")], **options}
    return MemWalMergeOperator(task_id="merge", **arguments)


@pytest.fixture
def apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the applications, which is empty."""
    folder = tmp_path / "apps"
    folder.mkdir()
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_APPS_FOLDER", str(folder))
    return folder


def left_behind(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "state").iterdir())


@pytest.mark.parametrize(
    ("limit", "in_process"), [(None, True), ("1000000", True), ("1000", False), ("0", False)]
)
def test_small_tables_need_no_spark(
    managed: Any,
    catalog: Catalog,
    context: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str | None,
    in_process: bool,
) -> None:
    if limit is None:
        monkeypatch.delenv("AIRFLOW__MEMWAL__LOCAL_BELOW_BYTES")
    else:
        monkeypatch.setenv("AIRFLOW__MEMWAL__LOCAL_BELOW_BYTES", limit)
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_APPS_FOLDER", str(tmp_path / "nowhere"))
    if not in_process:
        with pytest.raises(AirflowFailException, match="nowhere"):
            merge_task().execute(context)
        return
    result = merge_task().execute(context)
    assert managed.waiting() == {managed.hot: 0, managed.cold: 1}
    (run,) = catalog.runs(table="t")
    assert (run.state, run.external_id, run.result) == (
        RunState.SUCCEEDED,
        "dag/run/task/-1",
        result,
    )
    assert run.lease_token is not None


def test_a_merge_of_what_is_due_is_leased_recorded_and_described(
    managed: Any, catalog: Catalog, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    task = merge_task()
    monkeypatch.setattr(task.log, "info", lambda text, *given: texts.append(text % given))
    result = task.execute(context)

    assert managed.waiting() == {managed.hot: 0, managed.cold: 1}
    assert [sample.generations for sample in catalog.latest_samples()] == [1]
    (run,) = catalog.runs(table="t")
    assert (run.job, run.state, run.external_id, run.lease_token) == (
        "merge",
        RunState.SUCCEEDED,
        "dag/run/task/-1",
        1,
    )
    assert run.result == result
    metrics = result["metrics"]
    assert context["outlet_events"][merged_asset("t")].extra == {
        "version": result["version"],
        "rows": metrics["rows_upserted"] + metrics["rows_deleted"],
        "generations": 4,
    }
    pushed = context["ti"].pushed
    assert pushed["result"] == result
    assert pushed["_link_SparkUiLink"] == "http://127.0.0.1:4040"
    assert pushed["_link_TablePageLink"] == "/memwal/#/tables/t"
    assert (catalog.leases.list(), left_behind(tmp_path)) == ([], [])
    assert context["task_state_store"].values == {}
    # The log ends with a summary.
    for named in ("rows upserted", "generations", "commits", "bytes read", "seconds: start"):
        assert named in texts[-1]
    assert f"{sum(managed.waiting().values())} generation" in texts[-1]


def test_what_is_not_due_needs_no_spark(
    managed: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_APPS_FOLDER", "/none")
    with skips(TaskSkipReason.NOT_DUE):
        merge_task(regions=[managed.cold]).execute(context)
    with skips(TaskSkipReason.NOT_DUE):
        MemWalIndexOperator(task_id="index", table="t").execute(context)
    with pytest.raises(AirflowFailException, match="spark_apps_folder"):
        merge_task().execute(context)


def test_quiet_hours_are_a_reason(managed: Any, catalog: Catalog, context: Any) -> None:
    windows = ("00:00-12:00 UTC", "12:00-00:00 UTC")
    catalog.update("t", policy=replace(catalog.get("t").policy, quiet_hours=windows))
    with skips(TaskSkipReason.QUIET):
        merge_task().execute(context)


@pytest.mark.usefixtures("without_spark")
def test_a_run_by_hand_names_jobs_and_regions_and_forces(managed: Any, context: Any) -> None:
    context["params"] = {"jobs": ["index", "gc"], "force": True, "regions": [managed.cold]}
    with skips(TaskSkipReason.NOT_REQUESTED):
        merge_task().execute(context)
    context["params"]["jobs"] = []
    with skips(TaskSkipReason.NOT_REQUESTED):
        merge_task(regions=[managed.hot]).execute(context)
    merge_task(regions=[managed.hot, managed.cold]).execute(context)
    assert managed.waiting() == {managed.hot: 4, managed.cold: 0}


def test_a_dry_run_says_what_would_be_done(
    managed: Any, catalog: Catalog, context: Any, tmp_path: Path
) -> None:
    context["params"] = {"dry_run": True}
    with skips(TaskSkipReason.DRY_RUN, naming=managed.hot):
        merge_task().execute(context)
    before = sorted(path for path in Path(managed.uri).rglob("*"))
    counted = MemWalCollectOperator(task_id="collect", table="t").execute(context)
    assert counted["job"] == "gc"
    assert sorted(path for path in Path(managed.uri).rglob("*")) == before
    assert (catalog.runs(), left_behind(tmp_path)) == ([], [])


def test_a_job_that_somebody_does_is_waited_for_a_while(
    managed: Any, catalog: Catalog, context: Any
) -> None:
    with (
        catalog.leases.acquire(job_resource("t", "merge"), holder="a fleet"),
        skips(TaskSkipReason.RUNNING, naming="a fleet"),
    ):
        merge_task(wait=timedelta(seconds=0.1)).execute(context)
    assert catalog.runs() == []


def test_a_lost_lease_ends_the_application(
    managed: Any,
    catalog: Catalog,
    context: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_SPARK_WAIT", str(tmp_path / "never"))
    monkeypatch.setattr(application, "LEASE_CHECK_SECONDS", 0.1)
    started = application.SparkJob.start
    running: list[application.SparkJob] = []

    def start(*args: Any, **options: Any) -> application.SparkJob:
        running.append(started(*args, **options))
        catalog.leases.release(job_resource("t", "merge"))
        return running[0]

    monkeypatch.setattr(application.SparkJob, "start", start)
    with pytest.raises(memwal.errors.ConflictError):
        merge_task().execute(context)
    assert not running[0].running
    assert catalog.runs()[0].state is RunState.FAILED
    assert left_behind(tmp_path) == []


def test_an_application_that_fails_is_recorded_without_its_log_which_may_have_data(
    managed: Any, catalog: Catalog, context: Any, apps: Path
) -> None:
    (apps / "merge.py").write_text("raise SystemExit('no such luck')")
    with pytest.raises(AirflowException, match="no such luck"):
        merge_task().execute(context)
    (run,) = catalog.runs()
    assert run.state is RunState.FAILED
    assert run.error == "SparkApplicationError"

    (apps / "merge.py").write_text("")
    with pytest.raises(AirflowException):
        merge_task().execute(context)
    assert [run.state for run in catalog.runs()] == [RunState.FAILED] * 2


def test_an_application_that_reports_its_error_is_recorded_with_that(
    managed: Any, catalog: Catalog, context: Any, apps: Path
) -> None:
    told = "StoreAccessError: no rights; renew the credentials"
    noise = "\n".join(f"line {number}" for number in range(50))
    (apps / "merge.py").write_text(f"print('error: {told}'); raise SystemExit({noise!r})")
    with pytest.raises(StoreAccessError, match="no rights"):
        merge_task().execute(context)
    (run,) = catalog.runs()
    assert (run.state, run.error) == (RunState.FAILED, told)
    # Wrong input stays wrong: Airflow does not try it again.
    (apps / "merge.py").write_text("raise SystemExit('error: InvalidInputError: grace')")
    with pytest.raises(AirflowFailException, match="grace"):
        merge_task().execute(context)


def test_what_is_no_longer_due_fails_no_longer(
    managed: Any, catalog: Catalog, context: Any
) -> None:
    catalog.backoffs.record_failure("t", "merge", "StoreUnavailableError: not now")
    with skips(TaskSkipReason.NOT_DUE):
        merge_task(regions=[managed.cold]).execute(context)
    assert catalog.backoffs.failed_jobs() == []


def test_an_application_gets_credentials_in_a_private_file_and_what_the_policy_allows(
    managed: Any,
    catalog: Catalog,
    context: Any,
    tmp_path: Path,
    apps: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = json.dumps({"conn_type": "generic", "extra": {"aws_secret_access_key": "hunter2"}})
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", secret)
    roots = ("/data/shared", "s3://lake/shared")
    policy = replace(catalog.get("t").policy, allow_external=roots)
    catalog.update("t", storage_options_ref="airflow:lake", policy=policy)
    (apps / "snapshot.py").write_text(
        "import json, os, shutil, sys\n"
        "value = lambda name: sys.argv[sys.argv.index(name) + 1]\n"
        f"shutil.copy2(value('--storage-options-file'), {str(tmp_path / 'seen')!r})\n"
        "result = dict(job='snapshot', table='t', version=1)\n"
        "result['warnings'] = [*sys.argv, *map(str, os.environ.items())]\n"
        "json.dump(result, open(value('--result'), 'w'))\n"
    )
    result = MemWalSnapshotOperator(task_id="snapshot", table="t").execute(context)
    assert "hunter2" not in json.dumps(result)
    assert {f"--allow-external={root}" for root in roots} <= set(result["warnings"])
    seen = tmp_path / "seen"
    assert json.loads(seen.read_text()) == {"aws_secret_access_key": "hunter2"}
    assert stat.S_IMODE(seen.stat().st_mode) == 0o600
    assert left_behind(tmp_path) == []


@pytest.mark.usefixtures("without_spark")
def test_a_region_that_cannot_be_merged_is_skipped_and_seen(
    managed: Any, catalog: Catalog, context: Any
) -> None:
    region = next(r for r in managed.table.status().regions if r.region_id == managed.hot)
    assert region.backlog_generations == 4
    for path in Path(managed.uri, "_mem_wal", managed.hot).glob("*_gen_1"):
        shutil.rmtree(path)
    with pytest.raises(RegionsSkipped, match=managed.hot):
        merge_task().execute(context)
    assert [record.region_id for record in catalog.backoffs.skipped_regions("t")] == [managed.hot]
    with skips(TaskSkipReason.BACKOFF):
        merge_task().execute(context)


@pytest.mark.usefixtures("without_spark")
def test_other_jobs(managed: Any, catalog: Catalog, context: Any) -> None:
    assert MemWalSnapshotOperator(task_id="a", table="t").execute(context)["job"] == "snapshot"
    assert MemWalCollectOperator(task_id="b", table="t").execute(context)["job"] == "gc"
    with skips(TaskSkipReason.NOT_DUE):
        MemWalCompactOperator(task_id="c", table="t").execute(context)
    assert catalog.last_runs("t").keys() == {"snapshot", "gc"}


def suite(severity: str = "critical") -> dict[str, Any]:
    """Rules that one row of the backlog's table in a hundred does not meet."""
    expectation = {"type": "expect_column_values_to_be_between", "severity": severity}
    return {
        "mode": "quarantine",
        "suite": [{**expectation, "kwargs": {"column": "id", "max_value": 98}}],
        "check_schedule_seconds": 3600,
    }


def with_rules(catalog: Catalog, rules: dict[str, Any]) -> None:
    policy = replace(catalog.get("t").policy, quality=QualityRules.from_dict(rules))
    catalog.update("t", policy=policy)


@pytest.mark.usefixtures("without_spark")
def test_the_quality_of_the_base_table_is_checked(
    managed: Any, catalog: Catalog, context: Any
) -> None:
    check = MemWalQualityOperator(task_id="quality", table="t")
    context["params"] = {"force": True}
    with skips(TaskSkipReason.NO_SUITE):
        check.execute(context)
    context["params"] = {}
    managed.table.merge()
    with_rules(catalog, suite())
    with pytest.raises(AirflowFailException):
        check.execute(context)
    found = context["ti"].pushed["result"]["quality"]
    assert (found["success"], found["expectations"][0]["failed"]) == (False, 1)
    run = catalog.runs()[0]
    assert (run.job, run.state) == ("quality", RunState.SUCCEEDED)
    assert (run.result or {})["quality"] == found
    with skips(TaskSkipReason.NOT_DUE):
        check.execute(context)


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize(
    ("severity", "fail_on", "fails"),
    [
        ("critical", "never", False),
        ("warning", "critical", False),
        ("warning", "warning", True),
        ("info", "warning", False),
    ],
)
def test_what_a_check_fails_by(
    managed: Any, catalog: Catalog, context: Any, severity: str, fail_on: Any, fails: bool
) -> None:
    managed.table.merge()
    with_rules(catalog, suite(severity))
    check = MemWalQualityOperator(task_id="quality", table="t", fail_on=fail_on)
    if fails:
        with pytest.raises(AirflowFailException):
            check.execute(context)
    else:
        result = check.execute(context)
        assert result["quality"]["failed_rows"] == 1
        assert len(result["warnings"]) == 1


@pytest.mark.usefixtures("without_spark")
def test_an_index_is_built_by_a_task_of_its_own(
    catalog: Catalog, context: Any, make_table: Any
) -> None:
    table = make_table(SCHEMA, maintained_indexes=["n_idx", "id_idx"])
    table.upsert(numbered(0, 5))
    table.merge()
    catalog.register("t", uri=table.uri)
    task = MemWalIndexOperator(
        task_id="index", table="t", index="n_idx", outlets=[indexed_asset("t")]
    )
    result = task.execute(context)
    assert {lag.name: lag.generations for lag in table.status().indexes} == {
        "n_idx": 0,
        "id_idx": 1,
    }
    extra = context["outlet_events"][indexed_asset("t")].extra
    assert extra == {"version": result["version"]}


@pytest.mark.usefixtures("without_spark")
def test_a_checkpoint_merges_and_indexes_all_that_the_gate_of_the_policy_lets_in(
    managed: Any, catalog: Catalog, context: Any, tmp_path: Path
) -> None:
    with_rules(catalog, suite())
    task = TableCheckpointOperator(task_id="c", table="t", outlets=[merged_asset("t")])
    result = task.execute(context)
    assert managed.waiting() == {managed.hot: 0, managed.cold: 0}
    assert context["outlet_events"][merged_asset("t")].extra == {
        "version": result["version"],
        "rows": result["metrics"]["rows_upserted"],
        "generations": 5,
    }
    assert managed.table.base().dataset.count_rows() == 99
    assert catalog.runs()[0].job == "checkpoint"

    with (
        catalog.leases.acquire(job_resource("t", "index")),
        pytest.raises(AirflowException, match=job_resource("t", "index")),
    ):
        TableCheckpointOperator(task_id="c", table="t", deadline=timedelta(seconds=0.1)).execute(
            context
        )
    context["params"] = {"dry_run": True}
    with skips(TaskSkipReason.DRY_RUN):
        task.execute(context)


@pytest.mark.usefixtures("without_spark")
def test_a_table_that_is_in_no_catalog(
    backlog: Any, catalog: Catalog, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "snapshot.json"
    monkeypatch.setenv("MEMWAL_CATALOG_SNAPSHOT", str(snapshot))
    task = MemWalMergeOperator(
        task_id="merge", table_uri=backlog.uri, policy={"merge_at_generations": 9}
    )
    with skips(TaskSkipReason.NOT_DUE):
        task.execute(context)
    task = MemWalMergeOperator(
        task_id="merge", table_uri=backlog.uri, policy=Policy(merge_at_generations=1)
    )
    assert task.execute(context)["metrics"]["generations"] == 5
    assert "_link_TablePageLink" not in context["ti"].pushed
    assert (catalog.list(), catalog.runs(), snapshot.exists()) == ([], [], False)


@pytest.mark.parametrize(
    ("operator", "options"),
    [
        (MemWalSnapshotOperator, {}),
        (MemWalSnapshotOperator, {"table": "t", "table_uri": "/t"}),
        (MemWalSnapshotOperator, {"table": "t", "policy": {}}),
        (MemWalQualityOperator, {"table": "t", "fail_on": "error"}),
    ],
)
def test_wrong_arguments(operator: type[MemWalOperator], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        operator(task_id="x", **options)


def test_wrong_regions_and_tables_are_not_tried_again(managed: Any, context: Any) -> None:
    with pytest.raises(AirflowFailException, match="hot"):
        merge_task(regions=["hot"]).execute(context)
    unknown = "00000000-0000-0000-0000-000000000009"
    with pytest.raises(AirflowFailException, match=unknown):
        merge_task(regions=[unknown]).execute(context)
    with pytest.raises(memwal.errors.ObjectNotFoundError):
        merge_task(table="none").execute(context)


def test_which_master_a_job_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def master(**options: Any) -> str:
        return merge_task(**options).hook().master

    monkeypatch.delenv("AIRFLOW__MEMWAL__SPARK_CONN_ID")
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", '{"conn_type": "spark", "host": "spark://m"}')
    assert master() == "local[*]"
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_MASTER", "local[1]")
    assert master() == "local[1]"
    assert master(spark_options={"master": "local[3]"}) == "local[3]"
    assert master(spark_conn_id="cluster") == "spark://m"
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_CONN_ID", "cluster")
    assert master() == "spark://m"
    assert master(spark_options={"master": "local[3]"}) == "local[3]"
    with pytest.raises(AirflowNotFoundException):
        master(spark_conn_id="nowhere")


def test_options_of_spark_reach_its_command_line() -> None:
    task = merge_task(spark_options={"conf": {"spark.ui.enabled": "true"}, "driver_memory": "2g"})
    command, _ = task.hook().command("merge.py", ["--table", "x"])
    assert command[0] == "spark3-submit"
    assert "spark.ui.enabled=true" in command
    assert command[command.index("--driver-memory") + 1] == "2g"
    assert command[-3].endswith("spark_apps/merge.py")
    assert command[-2:] == ["--table", "x"]


def test_templates_are_rendered(managed: Any, catalog: Catalog) -> None:
    task = MemWalMergeOperator(
        task_id="m", table="{{ params.name }}", regions="{{ params.regions }}"
    )
    assert set(MemWalOperator.template_fields) < set(MemWalMergeOperator.template_fields)
    task.render_template_fields({"params": {"name": "t", "regions": managed.hot}})
    assert (task.table, task.regions) == ("t", managed.hot)


def test_long_names_of_airflow_fit_into_the_catalog(context: Any) -> None:
    ti = context["ti"]
    assert external_id(context) == "dag/run/task/-1"
    ti.dag_id = "d" * 250
    ti.task_id = "t" * 250
    first = external_id(context)
    ti.map_index = 1
    assert len(first) <= 400
    assert external_id(context) != first
