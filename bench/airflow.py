"""How long rows wait when the backlogs of many tables come at once, in an Airflow of its own.

Usage: ``python bench/airflow.py [--tables N] [--rows N] [--tasks N] [--local-below BYTES] [--warm]
[--seconds S] [--folder DIR] [--json]``. Each table has one region with two generations of so many
rows each, and an index to build. All are registered at once when Airflow runs, and their DAGs begin
by themselves; a table has waited from then until its merge is recorded as done. It ends when all
are merged, or after S seconds with what is merged by then. ``--local-below`` is Airflow's option
``local_below_bytes``: with 0 every job is a Spark application, by ``spark-submit`` or, with
``--warm``, in sessions of a Spark Connect server that is up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from rich.console import Console
from rich.table import Table as Screen

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "plugins"), str(ROOT / "examples")]

from airflow_demo.connect_server import ConnectServer  # noqa: E402
from airflow_demo.standalone import AirflowStandalone  # noqa: E402
from common.measure import machine  # noqa: E402

import memwal  # noqa: E402
from memwal.catalog import Catalog, Policy, RunState  # noqa: E402

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
PHASES = ("plan", "wait_for_backlog", "merge")


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        report = measured(Path(scratch), arguments)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)


def measured(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Start Airflow, make the tables, and wait until all are merged."""
    where = machine(folder)
    snapshot = folder / "tables.json"
    url = f"sqlite:///{folder / 'catalog.db'}?timeout=60"
    catalog = Catalog(url, snapshot_path=snapshot)
    catalog.migrate()
    uris = {name: _make(folder, name, arguments.rows) for name in _names(arguments.tables)}
    dags = folder / "dags"
    dags.mkdir()
    (dags / "memwal_tables.py").symlink_to(ROOT / "dags" / "memwal_tables.py")
    server = ConnectServer(folder / "connect.log")
    spark = server.url if arguments.warm else "local[1]"
    memwal_settings = {"spark_master": spark}
    if arguments.local_below is not None:
        memwal_settings["local_below_bytes"] = str(arguments.local_below)
    with contextlib.ExitStack() as stack:
        if arguments.warm:
            stack.callback(server.stop)
            server.start().wait()
        airflow = stack.enter_context(
            AirflowStandalone(
                folder / "airflow",
                dags_folder=dags,
                env={"MEMWAL_CATALOG_URL": url, "MEMWAL_CATALOG_SNAPSHOT": str(snapshot)},
                settings={"memwal": memwal_settings},
                parallelism=arguments.tasks,
            )
        )
        load, used = [os.getloadavg()[0]], _processor_seconds()
        began, started = datetime.now(UTC), time.monotonic()
        # A run begins as soon as the DAG is there, and the next in a day.
        policy = Policy(schedule=86_400.0, merge_at_generations=2, sensor_poke_seconds=2)
        for name, uri in uris.items():
            catalog.register(name, uri=uri, policy=policy)
        while len(_merges(catalog)) < len(uris) and time.monotonic() - started < arguments.seconds:
            airflow.check()
            time.sleep(1)
        elapsed = time.monotonic() - started
        used, load = _processor_seconds() - used, [*load, os.getloadavg()[0]]
        # The tasks end a moment after what they did.
        airflow.wait(
            lambda: _ended_merges(airflow.home / "airflow.db") >= len(_merges(catalog)),
            timeout=60,
            what="end the tasks of the merges",
        )
    phases, tasks = _phases(airflow.home / "airflow.db")
    waited = [(finished - began).total_seconds() for finished in _merges(catalog)]
    catalog.close()
    if not waited:
        raise RuntimeError(f"no table was merged within {arguments.seconds:.0f} s")
    return {
        "machine": where,
        "tables": len(uris),
        "merged": len(waited),
        "rows": arguments.rows,
        "tasks_at_once": arguments.tasks,
        "local_below_bytes": arguments.local_below,
        "spark": "warm" if arguments.warm else "submitted",
        "load": load,
        "waited_seconds": _figures(waited),
        "seconds": elapsed,
        "tasks": tasks,
        "tasks_per_second": tasks / elapsed,
        # Of everything on the machine: what others did is among it.
        "processors_busy": used / elapsed,
        "phases": phases,
    }


def _names(count: int) -> list[str]:
    return [f"table{number:03}" for number in range(count)]


def _make(folder: Path, name: str, rows: int) -> str:
    """Make a table with its backlog; return its address."""
    table = memwal.create(
        str(folder / f"{name}.lance"),
        SCHEMA,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 1),
        maintained_indexes=["id_idx"],
    )
    for start in (0, rows // 2):
        with table.writer() as writer:
            ids = pa.array(range(start, start + rows), pa.int64())
            writer.upsert(pa.table({"id": ids, "v": ["x"] * rows}))
            writer.flush()
    return table.uri


def _merges(catalog: Catalog) -> list[datetime]:
    """When each merge that succeeded was over."""
    runs = catalog.runs(job="merge", limit=10_000)
    return [run.finished_at for run in runs if run.finished_at and run.state is RunState.SUCCEEDED]


def _phases(database: Path) -> tuple[dict[str, dict[str, float]], int]:
    """Seconds that tasks of each kind ran, and that they waited for a slot; how many ended.

    Read from Airflow's database: its API keeps one waiting when this machine has too much to do.
    """
    found: dict[str, list[float]] = defaultdict(list)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(
            "SELECT task_id, queued_dttm, start_date, end_date FROM task_instance"
            " WHERE start_date IS NOT NULL AND end_date IS NOT NULL"
        ).fetchall()
    for task, *times in rows:
        if task not in PHASES or None in times:
            continue
        queued, starts, ends = map(datetime.fromisoformat, times)
        found[f"{task} runs"].append((ends - starts).total_seconds())
        found[f"{task} is queued"].append((starts - queued).total_seconds())
    return {name: _figures(samples) for name, samples in found.items()}, len(rows)


def _ended_merges(database: Path) -> int:
    """How many tasks of merges have ended."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        (count,) = connection.execute(
            "SELECT count(*) FROM task_instance WHERE task_id = 'merge' AND end_date IS NOT NULL"
        ).fetchone()
    return int(count)


def _figures(samples: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(samples, [50, 99])
    return {"p50": float(p50), "p99": float(p99), "most": max(samples)}


def _processor_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system)


def show(report: dict[str, Any]) -> None:
    """Print the report."""
    below = report["local_below_bytes"]
    limit = "the default size" if below is None else f"{below:,} bytes"
    title = (
        f"{report['tables']} tables, {report['tasks_at_once']} tasks at once, without Spark below "
        f"{limit}, Spark {report['spark']}, {report['machine']}"
    )
    screen = Screen("seconds", "p50", "p99", "most", title=title)
    rows = {"from backlog to merged": report["waited_seconds"], **report["phases"]}
    for name, figures in rows.items():
        screen.add_row(name, *(f"{figures[key]:.1f}" for key in ("p50", "p99", "most")))
    console = Console()
    console.print(screen)
    console.print(
        f"{report['merged']} of them were merged after {report['seconds']:.0f} s and "
        f"{report['tasks']} tasks that had ended, "
        f"{report['tasks_per_second']:.2f} a second, {report['processors_busy']:.1f} processors "
        f"busy, load {report['load'][0]:.1f} before and {report['load'][1]:.1f} after."
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--rows", type=int, default=1_000, help="rows of a generation")
    parser.add_argument("--tasks", type=int, default=4, help="tasks that run at once")
    parser.add_argument("--local-below", type=int, metavar="BYTES", help="as by default")
    parser.add_argument("--warm", action="store_true", help="jobs with Spark find it up")
    parser.add_argument("--seconds", type=float, default=3_600, help="give up after so long")
    parser.add_argument("--folder", type=Path, help="where the tables are made")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
