"""The feed of changes beside plain Lance, in one run.

Usage: ``python bench/changes.py [--rows N] [--folder DIR] [--only NAME]... [--json] [--rounds N]``.
So many rows change. A merge of a tenth of them is into a table with ten times as many.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cases import feeds
from common.measure import Line, limit_rounds, machine, report

BENCHMARKS: dict[str, Callable[[Path, int], Iterator[Line]]] = {
    "feed": feeds.feed_lines,
    "merged": feeds.merged_lines,
    "poll": feeds.poll_lines,
    "writer": feeds.writer_lines,
    "example": feeds.example_lines,
}


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    limit_rounds(arguments.rounds)
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        where = machine(Path(scratch))
        for name in arguments.only or BENCHMARKS:
            folder = Path(scratch) / name
            folder.mkdir()
            lines += BENCHMARKS[name](folder, arguments.rows)
    report(lines, rows=arguments.rows, where=where, as_json=arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows that change")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="all by default")
    parser.add_argument("--rounds", type=int, help="at most; the figures say less with fewer")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
