"""Write the tables of docs/benchmarks.md: ``python scripts/benchmarks_page.py [--check]``.

Each table has every line of one file of bench/figures, which is what a program of bench/ printed
with ``--json``. Lines whose target was missed come first, the others follow; among both, the worst
come first.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from common.measure import Figure  # noqa: E402

PAGE = ROOT / "docs" / "benchmarks.md"
FIGURES = ROOT / "bench" / "figures"

_TABLE = re.compile(r"(<!-- figures: ([a-z]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
_COLUMNS = ("what", "ours", "other", "of", "ratio", "target", "samples", "load", "note")


def written(page: str) -> str:
    """The page, with the tables of the figures that are stored."""
    return _TABLE.sub(lambda table: f"{table[1]}{_table(table[2])}{table[3]}", page)


def worst_first(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines in the order of the table."""
    return sorted(lines, key=lambda line: (line["met"] is not False, line["advantage"]))


def _table(name: str) -> str:
    report = json.loads((FIGURES / f"{name}.json").read_text())
    lines = [f"{_machine(report)}\n", _row(_COLUMNS), _row("---" for _ in _COLUMNS)]
    lines += [_row(_cells(line)) for line in worst_first(report["lines"])]
    return "\n".join(["", *lines, "", ""])


def _machine(report: dict[str, Any]) -> str:
    machine = report["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("pylance", "pyarrow", "obstore"))
    return (
        f"{report['rows']:,} rows, {machine['processors']} processors, {machine['file_system']}, "
        f"Linux {machine['system']}, Python {machine['python']}, {versions}; the load was "
        f"{machine['load'][0]:.1f} before."
    )


def _cells(line: dict[str, Any]) -> Iterator[str]:
    unit = line["unit"]
    yield line["what"]
    yield f"{Figure(**line['ours'])} {unit}"
    yield f"{Figure(**line['other'])} {unit}, {line['against']}"
    yield line["rival"]
    yield f"{line['ratio']:.2g}" if line["ratio"] < 1 else f"{line['ratio']:.3g}"
    yield {True: f"{line['target']}, met", False: f"{line['target']}, **missed**", None: ""}[
        line["met"]
    ]
    yield str(line["ours"]["samples"])
    yield f"{line['load']:.1f}"
    yield line["note"]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.strip() for cell in cells)} |"


def main() -> None:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; tell by the exit code")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    new = written(page)
    if arguments.check:
        sys.exit(0 if page == new else f"{PAGE} is old; run python scripts/benchmarks_page.py")
    PAGE.write_text(new)


if __name__ == "__main__":
    main()
