"""The operators through the real spark-submit; the applications here start no Spark session."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.exceptions import AirflowNotFoundException
from airflow.sdk.exceptions import AirflowException, AirflowSkipException
from memwal_airflow.assets import indexed_asset, merged_asset
from memwal_airflow.operators import (
    BuildIndexesOperator,
    BuildSnapshotOperator,
    CollectGarbageOperator,
    MergeOperator,
    TableJobOperator,
)

from memwal.catalog import Catalog, RunState
from memwal.maintenance.results import JobResult

APPLICATION = """
import json, os, sys, uuid
import memwal

arguments = sys.argv[1:]
value = lambda name: arguments[arguments.index(name) + 1]
regions = [uuid.UUID(after) for name, after in zip(arguments, arguments[1:]) if name == "--region"]
table = memwal.open(value("--table"))
result = {call}.to_dict()
result["seen"] = {{
    "arguments": arguments,
    "environment": dict(os.environ),
    "options": json.load(open(value("--storage-options-file")))
    if "--storage-options-file" in arguments
    else None,
}}
json.dump(result, open(value("--result"), "w"))
"""
NOTHING = "memwal.maintenance.results.JobResult(job='x', table='t', version=1, figures={figures})"


class TaskInstance:
    """What the operators use of one."""

    dag_id, run_id, task_id, map_index = "dag", "run", "task", -1

    def __init__(self, **pulled: Any) -> None:
        self.pushed: dict[str, Any] = {}
        self.pulled = pulled

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def xcom_pull(self, task_ids: str) -> Any:
        return self.pulled.get(task_ids)


class Event:
    def __init__(self) -> None:
        self.extra: dict[str, Any] = {}


def context(**pulled: Any) -> Any:
    assets = [merged_asset("t"), indexed_asset("t")]
    return {
        "ti": TaskInstance(**pulled),
        "params": {},
        "outlet_events": {asset: Event() for asset in assets},
    }


@pytest.fixture
def apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "apps"
    folder.mkdir()
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_APPS_FOLDER", str(folder))
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_MASTER", "local[1]")
    return folder


def merge_task(table: Any, **options: Any) -> MergeOperator:
    arguments = {"regions": [table.hot], "outlets": [merged_asset("t")], **options}
    return MergeOperator(task_id="merge", table="t", table_uri=table.uri, **arguments)


def test_a_merge_runs_is_recorded_and_described(
    backlog: Any, apps: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = json.dumps({"conn_type": "generic", "extra": {"aws_secret_access_key": "hunter2"}})
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", secret)
    (apps / "merge.py").write_text(APPLICATION.format(call="table.merge(regions=regions)"))
    given = context()
    task = merge_task(backlog, storage_options_ref="airflow:lake", max_bytes=1 << 21)
    result = task.execute(given)

    assert backlog.table.base().dataset.count_rows() == result["figures"]["rows_upserted"] > 0
    remaining = {r.region_id: r.backlog_generations for r in backlog.table.status().regions}
    assert remaining == {backlog.hot: 0, backlog.cold: 1}
    (run,) = catalog.runs(table="t")
    assert (run.job, run.state, run.external_id) == (
        "merge",
        RunState.SUCCEEDED,
        "dag/run/task/-1",
    )
    assert run.result == result
    figures = result["figures"]
    assert given["outlet_events"][merged_asset("t")].extra == {
        "version": result["version"],
        "rows": figures["rows_upserted"] + figures["rows_deleted"],
        "generations": 4,
    }
    assert given["ti"].pushed["result"] == result

    seen = result["seen"]
    assert "hunter2" not in json.dumps(seen["arguments"]) + json.dumps(seen["environment"])
    assert seen["options"] == {"aws_secret_access_key": "hunter2"}
    assert seen["environment"]["HOME"] == os.environ["HOME"]
    file = seen["arguments"][seen["arguments"].index("--storage-options-file") + 1]
    assert not Path(file).exists()


def test_a_merge_of_nothing_is_skipped_without_an_event(
    backlog: Any, apps: Path, catalog: Catalog
) -> None:
    backlog.table.merge()
    (apps / "merge.py").write_text(APPLICATION.format(call="table.merge(regions=regions)"))
    given = context()
    with pytest.raises(AirflowSkipException, match="Nothing was merged"):
        merge_task(backlog).execute(given)
    assert given["outlet_events"][merged_asset("t")].extra == {}
    assert catalog.runs()[0].state is RunState.SUCCEEDED


def test_a_merge_that_could_merge_no_region_fails(backlog: Any, apps: Path) -> None:
    figures = {"generations": 0, "rows_upserted": 0, "rows_deleted": 0}
    call = NOTHING.format(figures=figures).replace("version=1", "version=1, problems=('torn',)")
    (apps / "merge.py").write_text(APPLICATION.format(call=call))
    with pytest.raises(AirflowException, match="torn"):
        merge_task(backlog).execute(context())


def test_a_job_that_fails_is_recorded_and_raises(
    backlog: Any, apps: Path, catalog: Catalog
) -> None:
    (apps / "merge.py").write_text("raise SystemExit('no such luck')")
    with pytest.raises(AirflowException, match="no such luck"):
        merge_task(backlog).execute(context())
    (run,) = catalog.runs()
    assert run.state is RunState.FAILED
    assert "no such luck" in (run.error or "")


def test_an_application_without_a_result_is_an_error(backlog: Any, apps: Path) -> None:
    (apps / "merge.py").write_text("")
    with pytest.raises(AirflowException, match="left no result"):
        merge_task(backlog).execute(context())


def test_maintenance_goes_on_without_a_catalog(
    backlog: Any, apps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMWAL_CATALOG_URL", f"sqlite:///{tmp_path / 'not-migrated.db'}")
    (apps / "merge.py").write_text(APPLICATION.format(call="table.merge(regions=regions)"))
    assert merge_task(backlog).execute(context())["figures"]["generations"] == 4


def test_killing_the_task_ends_all_of_its_job(backlog: Any, apps: Path, catalog: Catalog) -> None:
    (apps / "merge.py").write_text("print('up', flush=True)\nimport time; time.sleep(600)")
    task = merge_task(backlog)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            task.execute(context())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    me = psutil.Process()
    deadline = time.monotonic() + 60
    while not (family := _drivers(me)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert family
    task.on_kill()
    thread.join(30)
    assert not thread.is_alive()
    assert [type(error) for error in failures] == [AirflowException]
    assert not any(process.is_running() for process in family)
    assert catalog.runs()[0].state is RunState.FAILED


def _drivers(process: psutil.Process) -> list[psutil.Process]:
    """The JVM of a running job and its Python driver; empty before there are both."""
    found = []
    for member in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = member.cmdline()
            if "apps/merge.py" in " ".join(command):
                found.append((member, command))
    kinds = {Path(command[0]).name.rstrip("0123456789.") for _, command in found}
    running = {"java", "python"} <= kinds
    return [member for member, _ in found] if running else []


def test_which_master_a_job_runs_on(backlog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def master(**options: Any) -> str:
        return str(merge_task(backlog, **options)._get_hook()._connection["master"])

    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", '{"conn_type": "spark", "host": "spark://m"}')
    assert master() == "local[*]"
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_MASTER", "local[1]")
    assert master() == "local[1]"
    assert master(master="local[3]") == "local[3]"
    assert master(spark_conn_id="cluster") == "spark://m"
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_CONN_ID", "cluster")
    assert master() == "spark://m"
    assert master(master="local[3]") == "local[3]"
    with pytest.raises(AirflowNotFoundException, match="nowhere"):
        master(spark_conn_id="nowhere")


def test_indexes_that_have_caught_up_need_no_spark(backlog: Any) -> None:
    task = BuildIndexesOperator(task_id="index", table="t", table_uri=backlog.uri)
    with pytest.raises(AirflowSkipException, match="covers what was merged"):
        task.execute(context())


def test_a_snapshot_is_due_after_a_merge_and_when_there_is_none(backlog: Any) -> None:
    task = BuildSnapshotOperator(
        task_id="snapshot", table="t", table_uri=backlog.uri, merge_task_id="merge"
    )
    assert task.idle_reason(context()) is None
    backlog.table.build_snapshot()
    assert "exists" in (task.idle_reason(context()) or "")
    assert task.idle_reason(context(merge={"commits": 1})) is None


def test_a_collection_waits_for_the_grace_period(
    backlog: Any, apps: Path, catalog: Catalog
) -> None:
    (apps / "gc.py").write_text(APPLICATION.format(call="table.collect_garbage(dry_run=False)"))
    task = CollectGarbageOperator(
        task_id="collect",
        table="t",
        table_uri=backlog.uri,
        grace_seconds=600,
        retention_seconds=0.5,
    )
    result = task.execute(context())
    arguments = result["seen"]["arguments"]
    assert arguments[arguments.index("--grace-seconds") + 1] == "600"
    assert arguments[arguments.index("--retention-seconds") + 1] == "0.5"
    assert "--execute" in arguments
    with pytest.raises(AirflowSkipException, match="next is due after 600 s"):
        task.execute(context())
    assert len(catalog.runs(job="gc")) == 1


def test_jobs_are_named_as_their_results_are() -> None:
    names = {kind.job for kind in TableJobOperator.__subclasses__()}
    assert names == {"merge", "index", "snapshot", "gc"}
    assert JobResult.__doc__ is not None
    assert all(f"``{name}``" in JobResult.__doc__ for name in names)
