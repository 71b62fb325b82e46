"""What the first call of a process costs: processor time of ours beside Lance's own, in one run.

Usage: ``python bench/cold.py [--rows N] [--rounds N] [--folder DIR] [--json]``. Each sample is a
process of its own that starts, does one thing on a copy of a table with that many rows, and ends;
sides take turns. Processor time is that of all threads, the interpreter's start included.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
from common.measure import Figure, Line, Target, machine, report
from common.processes import run_child

import memwal

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
ACTIONS = {
    "import": ("import, with the names of the package", "import lance"),
    "scan": ("first scan of a table", "first scan of the merged table"),
    "write": ("first upsert of one row, flushed", "first merge_insert of one row"),
    "merge": ("first merge of a small backlog", "first merge_insert of the same rows"),
}
TARGETS = {"scan": Target(1.3), "merge": Target(2)}


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        where = machine(Path(folder))
        lines = list(_lines(Path(folder), arguments.rows, arguments.rounds))
    report(lines, rows=arguments.rows, where=where, as_json=arguments.json)


def _lines(folder: Path, rows: int, rounds: int) -> Iterator[Line]:
    tables = _tables(folder, rows)
    for action, (what, against) in ACTIONS.items():
        seconds: dict[str, list[float]] = defaultdict(list)
        modules: dict[str, int] = {}
        for round_ in range(rounds + 1):
            for side in ("ours", "lance") if round_ % 2 else ("lance", "ours"):
                copy = folder / "copy"
                shutil.copytree(tables[side], copy)
                task = {"do": action, "side": side, "uri": str(copy), "rows": str(tables["rows"])}
                told = run_child("cold", task)
                shutil.rmtree(copy)
                modules[side] = told["modules"]
                if round_:
                    seconds[side].append(told["seconds"])
        yield Line(
            name="cold",
            what=what,
            ours=Figure.of(seconds["ours"]),
            other=Figure.of(seconds["lance"]),
            unit="s of a processor",
            against=against,
            target=TARGETS.get(action),
            note=f"{modules['ours']} modules, {modules['lance']} of the other",
        )


def _tables(folder: Path, rows: int) -> dict[str, Path]:
    """Make a table with a backlog, the same one merged, and its newest rows."""
    ours, merged, newest = folder / "ours", folder / "lance", folder / "rows"
    table = memwal.create(
        str(ours), SCHEMA, primary_key=["id"], region_spec=memwal.RegionSpec.bucket("id", 2)
    )
    first = pa.table({"id": range(rows), "n": [0] * rows}, schema=SCHEMA)
    changed = first.slice(0, max(rows // 10, 1))
    with table.writer() as writer:
        writer.upsert(first)
    table.merge()
    lance.write_dataset(first, str(merged))
    lance.write_dataset(changed, str(newest))
    with table.writer() as writer:
        writer.upsert(changed)
    return {"ours": ours, "lance": merged, "rows": newest}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="rows of the table")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each side")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
