"""Speed, memory and requests of reads, beside Lance's own readers or a merged table, in one run.

Usage: ``python bench/reader.py [--only NAME]... [--rows N] [--folder DIR] [--keep] [--json]
[--rounds N]``. The
base table has that many rows, and eight regions hold four generations of an eightieth of them each,
half of whose rows are updates. Every side reads the same state and is open already; ours still asks
storage for it. A figure is a median with its quartiles, a ratio is ours by the other.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cases import (
    fresh,
    generation_growth,
    many_generations,
    requests,
    scan_growth,
    scans,
    searches,
    spark_loads,
    text_searches,
    uncovered,
)
from common.backlog import Backlog, backlog
from common.measure import Line, limit_rounds, machine, report

# Of the tables that all of these read, which are made once.
OF_THE_BACKLOG: dict[str, Callable[[Backlog], Iterator[Line]]] = {
    "scan": scans.scan_lines,
    "scan-memory": scans.memory_lines,
    "lookup": scans.lookup_lines,
}
# With tables of their own.
BENCHMARKS: dict[str, Callable[[Path, int], Iterator[Line]]] = {
    "vector": searches.vector_lines,
    "text": text_searches.text_lines,
    "fresh": fresh.fresh_lines,
    "lookup-growth": many_generations.growth_lines,
    "scan-lag": uncovered.uncovered_lines,
    "generations": generation_growth.generation_lines,
    "scan-growth": scan_growth.scan_growth_lines,
    "spark-loads": spark_loads.load_lines,
    "read-requests": requests.query_requests,
    "status-requests": requests.status_requests,
}


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    limit_rounds(arguments.rounds)
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(dir=arguments.folder)
        scratch = Path(stack.enter_context(folder))
        kept = arguments.folder / f"tables-of-{arguments.rows}" if arguments.keep else scratch
        where = machine(scratch)
        names = arguments.only or [*OF_THE_BACKLOG, *BENCHMARKS]
        lines = list(measured(names, scratch, kept, arguments.rows))
    report(lines, rows=arguments.rows, where=where, as_json=arguments.json)


def measured(names: list[str], scratch: Path, kept: Path, rows: int) -> Iterator[Line]:
    """Lines of the benchmarks that are asked for."""
    chosen = [OF_THE_BACKLOG[name] for name in names if name in OF_THE_BACKLOG]
    if chosen:
        kept.mkdir(parents=True, exist_ok=True)
        state = backlog(kept, rows)
        for benchmark in chosen:
            yield from benchmark(state)
    for name in names:
        if name in BENCHMARKS:
            folder = scratch / name
            folder.mkdir()
            yield from BENCHMARKS[name](folder, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=[*OF_THE_BACKLOG, *BENCHMARKS],
        help="benchmark to run; all by default",
    )
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the base table")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one")
    parser.add_argument("--rounds", type=int, help="at most; the figures say less with fewer")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the tables of scans and lookups in the folder, and use those of an earlier run",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    if arguments.keep and arguments.folder is None:
        parser.error("--keep needs a --folder")
    return arguments


if __name__ == "__main__":
    main()
