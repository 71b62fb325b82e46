"""Speed and memory of the writer, each figure beside what it is to be measured by, in one run.

Usage: ``python bench/writer.py [--only NAME]... [--rows N] [--folder DIR] [--json]``. Ours and the
other take turns, so that a busy machine slows both; a figure is a median with its quartiles, a
ratio is ours by the other.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cases import latency, memory, processor_time, reads, requests, throughput
from common.folders import quick_folder
from common.measure import Line, machine, report

BENCHMARKS: dict[str, Callable[[Path, int], Iterator[Line]]] = {
    "durable-single": latency.durable_single,
    "single": latency.single,
    "threads": latency.threads,
    "bulk": throughput.bulk,
    "indexed": throughput.indexed,
    "reads": reads.reads,
    "routing": throughput.routing,
    "memory": memory.writing,
    "requests": requests.flush_requests,
    "replay": memory.replaying,
    "flush-cpu": processor_time.flushes,
    "replay-cpu": processor_time.replays,
    "append-cpu": processor_time.appends,
    "upsert-cpu": processor_time.upserts,
    "wide-keys": processor_time.wide_keys,
}


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        where = machine(Path(scratch))
        for name in arguments.only or BENCHMARKS:
            parent = Path(scratch) / name
            parent.mkdir()
            folder, creation = quick_folder(parent)
            where[f"file_creation_us, {name}"] = round(creation * 1e6)
            lines += BENCHMARKS[name](folder, arguments.rows)
    report(lines, rows=arguments.rows, where=where, as_json=arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=BENCHMARKS, help="benchmark to run; all by default"
    )
    parser.add_argument(
        "--rows", type=int, default=100_000, help="what the size of every benchmark follows"
    )
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
