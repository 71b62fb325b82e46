"""What Airflow costs and how fast it is, in an Airflow of its own: ours beside limits.

Usage: ``python bench/airflow.py [--only PART ...] [--tables N] [--idle-tables N] [--dags N]
[--waiting N] [--rows N] [--tasks N] [--seconds S] [--days D] [--folder DIR] [--json]``.

The parts:

``parse``
    Seconds to build the DAGs of tables from a snapshot, and that of one of them in the process of
    its task.
``idle``
    Processor time of the triggerer while it watches the idle tables of 8 regions, for so many
    seconds. Ends with an error if a run starts.
``looks``
    Requests and processor time of the looks at an idle table of 64 regions in an object store,
    and from these what 10,000 of them cost by the default policy. Needs no Airflow.
``statements``
    Statements to the catalog by the loop of the trigger, in this process: while so many tables are
    idle, and while so many are due and wait for their runs. All names stand for one table.
``week``
    Share of the runs that had work, in a simulation of days with lost events, full executors,
    failing jobs and triggerers that die, see ``tests/support/airflow/week.py``.
``regions``
    Rows of task instances of a run of a table with 64 regions.
``due``
    Seconds from the flush that makes a table due to the end of its merge: for one table after the
    other, and for all tables at once. The tables are small, so that their jobs run in the process
    of the task. A flush waits for the next look of the triggerer as well, which is the policy's
    ``poll_seconds``: 1 here.
``due-warm``, ``due-submit``
    The same with every job on Spark: in one session of a server that is up, and by
    ``spark-submit``.
``drain``, ``drain-warm``
    The same as ``due`` and ``due-warm`` with one DAG for all tables.
``bare``
    The same as ``due`` for as many DAGs without a table, whose first task does nothing and skips
    the others: what Airflow itself needs on this machine. One event starts them all.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("plugins", "examples", "tests")]

from airflow_demo.connect_server import ConnectServer  # noqa: E402
from airflow_demo.standalone import AirflowStandalone  # noqa: E402
from cases.looks import looks  # noqa: E402
from common.measure import Figure, Line, Rival, Target, constant, machine, report  # noqa: E402

# This file must not stand for the package.
sys.path.remove(str(ROOT / "bench"))
from cases.due_loop import statements_per_second, week  # noqa: E402

import memwal  # noqa: E402
from memwal.catalog import Catalog, Policy, RunState  # noqa: E402

# Airflow logs to the standard output, which has the report.
logging.getLogger("alembic").setLevel(logging.WARNING)

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
PARTS = (
    "parse",
    "idle",
    "looks",
    "statements",
    "week",
    "regions",
    "due",
    "due-warm",
    "due-submit",
    "drain",
    "drain-warm",
    "bare",
)
Spark = Literal["warm", "submit"]
BARE = """
from airflow.providers.standard.operators.python import BranchPythonOperator, PythonOperator
from airflow.sdk import DAG, Asset
for number in range(COUNT):
    with DAG(f"bare{number:03}", schedule=[Asset("all")], max_active_runs=1) as dag:
        first = BranchPythonOperator(task_id="first", python_callable=lambda: [])
        first >> [PythonOperator(task_id=f"later{n}", python_callable=print) for n in range(6)]
    globals()[dag.dag_id] = dag
with DAG("start", schedule=None) as start:
    PythonOperator(task_id="start", python_callable=print, outlets=[Asset("all")])
"""
PARSE = """
import os, sys, time
from memwal_airflow.dag_factory import build_dags
started = time.perf_counter()
build_dags(sys.argv[1])
every = time.perf_counter() - started
os.environ["_AIRFLOW_PARSING_CONTEXT_DAG_ID"] = "memwal__table000"
os.environ["_AIRFLOW_PARSING_CONTEXT_TASK_ID"] = "merge"
started = time.perf_counter()
build_dags(sys.argv[1])
print(every, time.perf_counter() - started)
"""
AIRFLOW_DEFAULTS = {"dag_processor": {"min_file_process_interval": "30"}}
"""Of Airflow itself, where the embedded one differs: how often DAG files are parsed."""

IDLE = Policy(
    merge_at_age_seconds=1e9,
    index_at_age_seconds=1e9,
    snapshot_at_age_seconds=1e9,
    gc_interval_seconds=1e9,
)
"""A policy with the default poll, by which nothing becomes due in the time of a benchmark."""


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        scratch = Path(folder)
        where = machine(scratch)
        lines = [line for part in arguments.only for line in RUN[part](scratch, arguments)]
    report(lines, rows=arguments.rows, where=where, as_json=arguments.json)


def parsing(folder: Path, arguments: argparse.Namespace) -> Iterator[Line]:
    """Build DAGs from a snapshot, in a process that has imported what it needs."""
    count = arguments.dags
    snapshot = folder / "parse.json"
    with contextlib.closing(Catalog(f"sqlite:///{folder / 'parse.db'}")) as catalog:
        catalog.migrate()
        for name in _names(count):
            catalog.register(name, uri=f"/data/{name}.lance")
        catalog.export_snapshot(snapshot)
    samples: list[list[float]] = [[], []]
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", PARSE, str(snapshot)],
            env={
                **os.environ,
                "AIRFLOW_HOME": str(folder / "parse"),
                "AIRFLOW__MEMWAL__TABLE_DAGS": "each",
            },
            check=True,
            capture_output=True,
            text=True,
        )
        for found, seconds in zip(samples, done.stdout.split()[-2:], strict=True):
            found.append(float(seconds))
    limits = (f"DAGs of {count} tables", 1.5), ("DAG of one table, in its task", 0.2)
    for found, (what, limit) in zip(samples, limits, strict=True):
        yield _limited("airflow parse", what, Figure.of(found), limit)


def idle(folder: Path, arguments: argparse.Namespace) -> Iterator[Line]:
    """Watch tables that are idle."""
    count = arguments.idle_tables
    place = folder / "idle"
    place.mkdir()
    first = _make(place, "first", regions=8)
    _flush(first, range(arguments.rows))
    first.merge()
    first.build_indexes()
    first.build_snapshot()
    with _running(place, arguments) as (airflow, catalog):
        for name in _names(count):
            uri = str(place / f"{name}.lance")
            shutil.copytree(first.uri, uri)
            catalog.register(name, uri=uri, policy=IDLE)
            with catalog.record_run(name, "gc") as run:
                run.finish(memwal.open(uri).collect_garbage())
        airflow.wait_dag(f"memwal__{_names(count)[-1]}", timeout=600)
        airflow.wait(
            lambda: len(catalog.latest_samples()) == count, timeout=600, what="look at all tables"
        )
        time.sleep(arguments.seconds / 10)
        rows, before = _rows(airflow), _seconds_of(airflow, "triggerer")
        memory = _memory_of(airflow, "triggerer")
        started = time.monotonic()
        while time.monotonic() - started < arguments.seconds:
            airflow.check()
            time.sleep(1)
        used = _seconds_of(airflow, "triggerer") - before
        elapsed = time.monotonic() - started
        grown = _memory_of(airflow, "triggerer") - memory
        if _rows(airflow) != rows:
            raise RuntimeError(f"idle tables had runs: {rows} before, {_rows(airflow)} after")
    yield Line(
        name="airflow idle",
        what=f"processor time of the triggerer, {count} idle tables of 8 regions",
        ours=constant(100 * used / elapsed),
        other=constant(5.0),
        unit="% of a core",
        against="a limit",
        rival=Rival.LIMIT,
        target=Target(1),
        note=f"{elapsed:.0f} s; no run, no task instance, no event; memory {grown:+.0f} MiB",
    )


def statements(folder: Path, arguments: argparse.Namespace) -> Iterator[Line]:
    """Count the statements of the trigger's loop, of idle tables and of those that wait."""
    idle_table, due_table = _make(folder, "idle", regions=8), _make(folder, "due", regions=1)
    _flush(idle_table, range(arguments.rows))
    idle_table.merge()
    idle_table.build_indexes()
    _backlog(due_table, arguments.rows)
    waits = replace(IDLE, merge_at_generations=2)
    for what, table, count, policy, limit in (
        ("idle tables of 8 regions", idle_table, arguments.idle_tables, IDLE, 2.0),
        ("due tables that wait", due_table, arguments.waiting, waits, 5.0),
    ):
        table.build_snapshot()
        done = table.collect_garbage()
        with contextlib.closing(Catalog(f"sqlite:///{table.uri}.db")) as catalog:
            catalog.migrate()
            for name in _names(count):
                catalog.register(name, uri=table.uri, policy=policy)
                with catalog.record_run(name, "gc") as run:
                    run.finish(done)
            rate = asyncio.run(
                statements_per_second(catalog, count, policy is waits, arguments.seconds)
            )
        # One for all: a limit of 0 would have no ratio.
        rate = max(rate, 1e-3)
        text = f"statements to the catalog, {count} {what}"
        yield _limited("airflow statements", text, constant(rate), limit, unit="per s")


def regions(folder: Path, arguments: argparse.Namespace) -> Iterator[Line]:
    """Count the task instances of a run of a table with many regions."""
    place = folder / "regions"
    place.mkdir()
    table = _make(place, "wide", regions=64)
    with _running(place, arguments) as (airflow, catalog):
        since = datetime.now(UTC)
        _backlog(table, arguments.rows)
        catalog.register(
            "wide", uri=table.uri, policy=Policy(poll_seconds=1, merge_at_generations=2)
        )
        _wait_merged(airflow, catalog, {"wide"}, since, arguments.limit)
        rows = _count(airflow, "task_instance WHERE dag_id = 'memwal__wide'")
        runs = _count(airflow, "dag_run WHERE dag_id = 'memwal__wide'")
    what = "rows of task instances for a run of a table with 64 regions"
    yield _limited("airflow regions", what, constant(rows / runs), 8.0, unit="rows")


def due(
    folder: Path,
    arguments: argparse.Namespace,
    spark: Spark | None = None,
    *,
    drained: bool = False,
) -> Iterator[Line]:
    """Make tables due, one after the other and all at once."""
    part = "drain" if drained else "due"
    part = part if spark is None else f"{part}-{spark}"
    place = folder / part
    place.mkdir()
    names = _names(arguments.tables)
    tables = {name: _make(place, name, regions=1) for name in names}
    policy = Policy(
        poll_seconds=1,
        spark_session="small",
        merge_at_generations=2,
        merge_at_age_seconds=1e9,
        index_at_age_seconds=1e9,
        index_at_generations=1_000,
        snapshot_at_age_seconds=1e9,
        gc_interval_seconds=1e9,
    )
    with _running(place, arguments, spark, drained=drained) as (airflow, catalog):
        for name, table in tables.items():
            table.build_snapshot()
            with catalog.record_run(name, "gc") as run:
                run.finish(table.collect_garbage())
            catalog.register(name, uri=table.uri, policy=policy)
        airflow.wait_dag("memwal_drain" if drained else f"memwal__{names[-1]}", timeout=600)
        airflow.wait(
            lambda: len(catalog.latest_samples()) == len(names), timeout=600, what="look at all"
        )
        airflow.wait_dag("memwal_drain" if drained else "memwal_due", timeout=600)
        # Until the triggerer watches its asset.
        time.sleep(5)
        single = []
        for name in names[: arguments.singles]:
            since = datetime.now(UTC)
            _backlog(tables[name], arguments.rows)
            flushed = datetime.now(UTC)
            ended = _wait_merged(airflow, catalog, {name}, since, arguments.limit)
            single.append((ended[name] - flushed).total_seconds())
            time.sleep(5)
        since = datetime.now(UTC)
        flushed_at = {}
        for name in names:
            _backlog(tables[name], arguments.rows)
            flushed_at[name] = datetime.now(UTC)
        ended = _wait_merged(airflow, catalog, set(names), since, arguments.limit)
    waited = [(ended[name] - flushed_at[name]).total_seconds() for name in names]
    note = f"{arguments.rows} rows, {arguments.tasks} tasks at once"
    how = {"warm": ", warm Spark", "submit": ", spark-submit", None: ""}[spark]
    how += ", one DAG for all" if drained else ""
    what = f"one table, flush to merge{how}"
    most = 60.0 if spark == "submit" else 5.0
    yield _limited(f"airflow {part}", what, Figure.of(single), most, note=note)
    what = f"{len(names)} tables, flush to merge{how}"
    limits = (60.0, 60.0) if spark == "submit" else (15.0, 30.0)
    yield from _burst(f"airflow {part}", what, waited, limits=limits, note=note)


def bare(folder: Path, arguments: argparse.Namespace) -> Iterator[Line]:
    """Run as many tasks that do nothing."""
    place = folder / "bare"
    (place / "dags").mkdir(parents=True)
    dags = BARE.replace("COUNT", str(arguments.tables))
    (place / "dags" / "bare.py").write_text(dags)
    with AirflowStandalone(
        place / "airflow",
        dags_folder=place / "dags",
        settings={"core": {"dags_are_paused_at_creation": "False"}, **AIRFLOW_DEFAULTS},
        parallelism=arguments.tasks,
    ) as airflow:
        airflow.wait_dag("start", timeout=600)
        airflow.wait_dag(f"bare{arguments.tables - 1:03}", timeout=600)
        time.sleep(30)
        airflow.trigger("start", {})
        airflow.wait(
            lambda: len(_ended(airflow, "first")) == arguments.tables,
            timeout=arguments.limit,
            what="end all tasks",
        )
        (started,) = _ended(airflow, "start")
        waited = [(at - started).total_seconds() for at in _ended(airflow, "first")]
    what = f"{arguments.tables} empty tasks, event to end"
    note = f"no table, {arguments.tasks} tasks at once"
    yield from _burst("airflow bare", what, waited, note=note)


RUN = {
    "parse": parsing,
    "idle": idle,
    "looks": lambda folder, arguments: looks(folder, IDLE),
    "statements": statements,
    "week": week,
    "regions": regions,
    "due": due,
    "due-warm": partial(due, spark="warm"),
    "due-submit": partial(due, spark="submit"),
    "drain": partial(due, drained=True),
    "drain-warm": partial(due, spark="warm", drained=True),
    "bare": bare,
}


def _burst(
    name: str,
    what: str,
    waited: list[float],
    *,
    limits: tuple[float, float] = (15.0, 30.0),
    note: str,
) -> Iterator[Line]:
    p50, p99 = np.percentile(waited, [50, 99])
    yield _limited(name, f"{what}, p50", constant(float(p50)), limits[0], note=note)
    yield _limited(name, f"{what}, p99", constant(float(p99)), limits[1], note=note)


def _limited(
    name: str, what: str, ours: Figure, limit: float, *, unit: str = "s", note: str = ""
) -> Line:
    return Line(
        name=name,
        what=what,
        ours=ours,
        other=constant(limit),
        unit=unit,
        against="a limit",
        rival=Rival.LIMIT,
        target=Target(1),
        note=note,
    )


@contextlib.contextmanager
def _running(
    folder: Path,
    arguments: argparse.Namespace,
    spark: Spark | None = None,
    *,
    drained: bool = False,
) -> Iterator[tuple[AirflowStandalone, Catalog]]:
    """Run an Airflow with an empty catalog."""
    snapshot = folder / "tables.json"
    url = f"sqlite:///{folder / 'catalog.db'}?timeout=60"
    catalog = Catalog(url, snapshot_path=snapshot)
    catalog.migrate()
    catalog.export_snapshot(snapshot)
    dags = folder / "dags"
    dags.mkdir()
    for name in ("memwal_tables.py", "memwal_fleet.py"):
        (dags / name).symlink_to(ROOT / "dags" / name)
    table_dags = "drain" if drained else "each"
    settings = {"spark_master": "local[1]", "fleet_schedule": "none", "table_dags": table_dags}
    if spark is not None:
        settings["local_below_bytes"] = "0"
    with contextlib.ExitStack() as stack:
        stack.callback(catalog.close)
        if spark == "warm":
            server = ConnectServer(folder / "connect.log")
            stack.callback(server.stop)
            server.start().wait()
            settings["spark_master"] = server.url
        airflow = stack.enter_context(
            AirflowStandalone(
                folder / "airflow",
                dags_folder=dags,
                env={"MEMWAL_CATALOG_URL": url, "MEMWAL_CATALOG_SNAPSHOT": str(snapshot)},
                settings={"memwal": settings, **AIRFLOW_DEFAULTS},
                parallelism=arguments.tasks,
            )
        )
        yield airflow, catalog


def _names(count: int) -> list[str]:
    return [f"table{number:03}" for number in range(count)]


def _make(folder: Path, name: str, *, regions: int) -> memwal.Table:
    return memwal.create(
        str(folder / f"{name}.lance"),
        SCHEMA,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", regions),
        maintained_indexes=["id_idx"],
    )


def _flush(table: memwal.Table, ids: range) -> None:
    with table.writer() as writer:
        writer.upsert(pa.table({"id": pa.array(ids, pa.int64()), "v": ["x"] * len(ids)}))
        writer.flush()


def _backlog(table: memwal.Table, rows: int) -> None:
    """Write the two generations that make a table due."""
    _flush(table, range(rows))
    _flush(table, range(rows // 2, rows // 2 + rows))


def _wait_merged(
    airflow: AirflowStandalone, catalog: Catalog, names: set[str], since: datetime, limit: float
) -> dict[str, datetime]:
    """Return when the merge of each table ended that began since a time."""
    ended: dict[str, datetime] = {}

    def merged() -> bool:
        for run in catalog.runs(job="merge", since=since, limit=10_000):
            if run.state is RunState.SUCCEEDED and run.finished_at is not None:
                ended[run.table] = run.finished_at
        return names <= ended.keys()

    airflow.wait(merged, timeout=limit, what="merge")
    return ended


def _ended(airflow: AirflowStandalone, task_id: str) -> list[datetime]:
    """Return when the tasks with an id ended successfully."""
    path = f"file:{airflow.home / 'airflow.db'}?mode=ro"
    query = "SELECT end_date FROM task_instance WHERE task_id = ? AND state = 'success'"
    with contextlib.closing(sqlite3.connect(path, uri=True)) as connection:
        return [datetime.fromisoformat(at) for (at,) in connection.execute(query, [task_id])]


def _rows(airflow: AirflowStandalone) -> dict[str, int]:
    """Count what a run leaves in Airflow's database."""
    return {name: _count(airflow, name) for name in ("dag_run", "task_instance", "asset_event")}


def _count(airflow: AirflowStandalone, rows: str) -> int:
    """Count rows of Airflow's database."""
    path = f"file:{airflow.home / 'airflow.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(path, uri=True)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {rows}").fetchone()[0])  # noqa: S608


def _family(airflow: AirflowStandalone, component: str) -> list[psutil.Process]:
    process = psutil.Process(airflow.pids[component])
    return [process, *process.children(recursive=True)]


def _seconds_of(airflow: AirflowStandalone, component: str) -> float:
    times = [process.cpu_times() for process in _family(airflow, component)]
    return float(sum(time.user + time.system for time in times))


def _memory_of(airflow: AirflowStandalone, component: str) -> float:
    family = _family(airflow, component)
    return float(sum(process.memory_info().rss for process in family) / (1 << 20))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--tables", type=int, default=50, help="tables that become due at once")
    parser.add_argument("--singles", type=int, default=7, help="tables that become due alone")
    parser.add_argument("--idle-tables", type=int, default=1_000)
    parser.add_argument("--dags", type=int, default=500, help="tables whose DAGs are built")
    parser.add_argument("--waiting", type=int, default=300, help="due tables that wait")
    parser.add_argument("--days", type=float, default=7, help="simulated days")
    parser.add_argument("--rows", type=int, default=1_000, help="rows of a generation")
    parser.add_argument("--tasks", type=int, default=4, help="tasks that run at once")
    parser.add_argument(
        "--seconds", type=float, default=300, help="how long idle tables are watched"
    )
    parser.add_argument("--limit", type=float, default=1_800, help="give up after so long")
    parser.add_argument("--folder", type=Path, help="where the tables are made")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
