"""Merges and writes with Spark beside those without, in one run.

Usage: ``python bench/spark.py [--rows N] [--folder DIR] [--only NAME] [--json] [--rounds N]``. A
data frame that is written has twice the rows of the base table that is merged into. A merge with
Spark is timed from the start of the process of ``spark_apps/merge.py`` to its end. One in the own
process is timed without the start of that process, which a task of Airflow is already.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples")]

from airflow_demo.connect_server import ConnectServer  # noqa: E402
from cases.spark_writes import batch_lines, executor_lines, frame_lines  # noqa: E402
from common.measure import (  # noqa: E402
    Figure,
    Line,
    Rival,
    Target,
    limit_rounds,
    machine,
    report,
    rounds_of,
)
from common.processes import merge_copy  # noqa: E402
from common.tables import flush_generations, write_in_pieces  # noqa: E402

import memwal  # noqa: E402
from memwal.spark.application import apps_folder  # noqa: E402
from memwal.spark.session import ensure_java  # noqa: E402

CORES = 2
ROUNDS = 3
# Of a row: two numbers, and bytes that do not compress.
ROW_BYTES = 512
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("payload", pa.binary()),
    ]
)
GENERATIONS = 2
REGIONS = 4
# Of the rows that a program is told: some 16 MiB to 1 GiB with half a million.
SIZES = (1 / 16, 1 / 4, 1.0, 4.0)
# Of the rows of the base table: in a merge of few rows, and in one of many.
FEW, MANY = 1 / 25, 3 / 10
PIECE = 100_000

Merge = Callable[[str], float]
"""Merges a copy of a table, and returns the seconds."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows of the base table")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one")
    parser.add_argument("--only", action="append", choices=sorted(PARTS), help="this part only")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, help="at most; the figures say less with fewer")
    arguments = parser.parse_args()
    limit_rounds(arguments.rounds)
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        folder = Path(scratch)
        where = machine(folder)
        for name in arguments.only or PARTS:
            part = folder / name
            part.mkdir()
            lines += list(PARTS[name](part, arguments.rows))
            shutil.rmtree(part)
    report(lines, rows=arguments.rows, where=where, as_json=arguments.json)


@contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """The address of a Spark Connect server, while the block runs."""
    server = ConnectServer(folder / "connect.log", cores=CORES)
    try:
        server.start().wait()
        yield server.url
    finally:
        server.stop()


def warm_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Merge few rows and many, in a warm session and by spark-submit."""
    with running_server(folder) as url:
        for share, what in ((FEW, "few"), (MANY, "many")):
            table = make_table(folder / what, rows, share)
            found = measured(table, {"warm": in_session(url), "submitted": by_submit})
            yield Line(
                name="warm",
                what=f"a merge of {int(rows * share):,} rows into {rows:,}, in a warm session",
                ours=Figure.of(found["warm"]),
                other=Figure.of(found["submitted"]),
                unit="s",
                against="by spark-submit",
                rival=Rival.OURS,
                target=Target(0.3),
            )


def size_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Merge a 25th of tables of several sizes, in this process and in a warm session."""
    with running_server(folder) as url:
        for number, size in enumerate(SIZES):
            count = max(int(rows * size), 100)
            table = make_table(folder / str(number), count, FEW)
            status = table.status()
            peaks: list[float] = []
            ways = {"here": in_own_process(peaks), "warm": in_session(url)}
            found = measured(table, ways)
            stored = (status.base_bytes or 0) + status.backlog_bytes
            yield Line(
                name="size",
                what=f"a merge of a 25th of a table of {count:,} rows, in the own process",
                ours=Figure.of(found["here"]),
                other=Figure.of(found["warm"]),
                unit="s",
                against="in a warm session",
                rival=Rival.OURS,
                note=f"{stored >> 20:,} MiB stored, {status.backlog_bytes >> 20:,} MiB of them to "
                f"merge; the process took {max(peaks) / 2**20:,.0f} MiB for it",
            )
            shutil.rmtree(table.uri)


def make_table(path: Path, rows: int, share: float) -> memwal.Table:
    """A base table, and a backlog of a share of its rows: half updates, half new keys."""
    write_in_pieces(str(path), SCHEMA, rows, made_rows, piece=PIECE)
    table = memwal.enable(
        str(path), region_spec=memwal.RegionSpec.bucket("id", REGIONS), primary_key=["id"]
    )
    fresh = max(int(rows * share) // GENERATIONS, 2)
    flush_generations(table, rows, GENERATIONS, fresh, made_rows)
    return table


def made_rows(ids: np.ndarray, seed: int) -> pa.Table:
    """Rows of some keys."""
    width = ROW_BYTES - 16
    content = np.random.default_rng(seed).bytes(len(ids) * width)
    offsets = pa.py_buffer(np.arange(0, (len(ids) + 1) * width, width, dtype=np.int32))
    buffers = [None, offsets, pa.py_buffer(content)]
    payload = pa.Array.from_buffers(pa.binary(), len(ids), buffers)
    return pa.table([pa.array(ids), pa.array(ids % 1_000), payload], schema=SCHEMA)


def measured(table: memwal.Table, ways: dict[str, Merge]) -> dict[str, list[float]]:
    """Seconds of each way, turn by turn, after a round that warms up."""
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds_of(ROUNDS) + 1):
        for name in ways if round_ % 2 else reversed(ways):
            os.sync()
            seconds = ways[name](table.uri)
            if round_:
                samples[name].append(seconds)
    return samples


def in_own_process(peaks: list[float]) -> Merge:
    """Return the way without Spark; ``peaks`` gets the bytes that each process took."""

    def merge(uri: str) -> float:
        result: dict[str, Any] = merge_copy(uri, {"do": "ours", "max_tasks": 1})
        peaks.append(result["peak"] - result["baseline"])
        return float(result["seconds"])

    return merge


def in_session(url: str) -> Merge:
    """Return the way by a client of a warm session: all copies have one name."""
    return lambda uri: merged_by([sys.executable], uri, ["--remote", url, "--session", "bench"])


def by_submit(uri: str) -> float:
    """Merge by ``spark-submit``, with as many cores."""
    submit = str(Path(sys.executable).with_name("spark-submit"))
    return merged_by([submit, "--master", f"local[{CORES}]"], uri, [])


def merged_by(start: Sequence[str], uri: str, options: Sequence[str]) -> float:
    """Merge a copy of a table by the application."""
    copy = f"{uri}-copy"
    shutil.copytree(uri, copy)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ensure_java(environment)
    command = [*start, str(apps_folder() / "merge.py"), "--table", copy, *options]
    try:
        started = time.perf_counter()
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        elapsed = time.perf_counter() - started
    finally:
        shutil.rmtree(copy)
    result = json.loads(done.stdout.splitlines()[-1])
    if result["warnings"] or not result["metrics"]["generations"]:
        raise SystemExit(f"the merge did not do all: {result}")
    return elapsed


PARTS: dict[str, Callable[[Path, int], Iterator[Line]]] = {
    "warm": warm_lines,
    "size": size_lines,
    "frame": frame_lines,
    "executors": executor_lines,
    "batch": batch_lines,
}


if __name__ == "__main__":
    main()
