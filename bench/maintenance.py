"""Speed and memory of the maintenance jobs, each figure beside Lance's own way, in one run.

Usage: ``python bench/maintenance.py [--rows N] [--folder DIR] [--only NAME] [--without NAME]
[--json] [--rounds N]``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cases.blobs import blob_lines
from cases.clean_up import clean_lines, wide_lines
from cases.compactions import compaction_lines
from cases.divided_merges import divided_lines, scaling_lines
from cases.file_checks import check_lines
from cases.index_builds import index_lines
from cases.index_probes import probe_lines
from cases.merge_costs import cost_lines
from cases.merge_growth import growth_lines, task_memory_lines
from cases.merges import memory_lines, merge_lines, spark_lines
from cases.quality import quality_lines
from cases.regions import region_lines
from common.measure import Line, limit_rounds, machine, report

_PARTS: dict[str, Callable[[Path, int], Iterator[Line]]] = {
    "merge": merge_lines,
    "divided": divided_lines,
    "scaling": scaling_lines,
    "growth": growth_lines,
    "merge-cost": cost_lines,
    "task-memory": task_memory_lines,
    "compaction": compaction_lines,
    "wide-compaction": wide_lines,
    "clean-up": clean_lines,
    "memory": memory_lines,
    "quality": quality_lines,
    "spark": spark_lines,
    "regions": region_lines,
    "index": index_lines,
    "checks": check_lines,
    "blobs": blob_lines,
    "probes": probe_lines,
}


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    limit_rounds(arguments.rounds)
    lines = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        where = machine(Path(scratch))
        for name in arguments.only or [name for name in _PARTS if name not in arguments.without]:
            part = Path(scratch, name)
            part.mkdir()
            lines += list(_PARTS[name](part, arguments.rows))
    report(lines, rows=arguments.rows, where=where, as_json=arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the base table")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one")
    parser.add_argument("--only", action="append", choices=sorted(_PARTS), help="this part only")
    parser.add_argument(
        "--without", action="append", default=[], choices=sorted(_PARTS), help="not this part"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, help="at most; the figures say less with fewer")
    return parser.parse_args()


if __name__ == "__main__":
    main()
