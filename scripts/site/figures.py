"""The figures of the benchmarks, as Markdown: ``python scripts/site/figures.py [--check]``.

bench/figures has a file for each program of bench/: its output with ``--json``. The site's page
of all figures has every line of them. This program writes two parts of docs/benchmarks.md, the
lines whose target was missed and those that are asked for most, and the list of
docs/design/scale.md: which calls cost more as a table grows.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Last: bench/airflow.py must not stand for the package.
sys.path.append(str(ROOT / "bench"))

import growth  # noqa: E402
import merge_scale  # noqa: E402
import scale  # noqa: E402
from common.measure import Figure  # noqa: E402

PAGES = (ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "design" / "scale.md")
FIGURES = ROOT / "bench" / "figures"

PROGRAMS = {
    "writer": "The writer",
    "reader": "Reads",
    "changes": "Feeds of changes",
    "cold": "The first call",
    "maintenance": "Maintenance",
    "divided": "Divided merges",
    "spark": "Spark",
    "airflow": "Airflow",
}
"""Titles of the files of bench/figures, besides that of the table of growth."""

ASKED = (
    ("writer", "upserts of 1,000 rows without fsync", "ShardWriter"),
    ("writer", "durable upserts of 1 row by 32 threads into one region", "one by one"),
    (
        "writer",
        "durable upserts of 1,000 rows with BTREE, IVF_PQ and text, until flushed",
        "ShardWriter",
    ),
    ("reader", "scan of all columns", "native"),
    ("reader", "lookup of one key", "native"),
    ("reader", "vector search over 33 sources", "native"),
    ("reader", "until a fresh read has a row of another writer, beyond its poll", "5 ms"),
    ("maintenance", "merge of the backlog", "one merge_insert of the newest rows"),
    ("maintenance", "peak memory of a merge", "one merge_insert of the newest rows"),
    ("maintenance", "peak memory of a compaction of rows of 1 MiB", "limit"),
    (
        "maintenance",
        "processor time to clean up many fragments, with three indexes",
        "LanceDB's optimize()",
    ),
    ("airflow", "one table, flush to merge", "a limit"),
)
"""Program, what was measured and the other side of the lines that are asked for most."""

_TABLE = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
_COLUMNS = ("what", "ours", "other", "of", "ratio", "target", "samples", "load", "note")
_ASKED_COLUMNS = ("what", "ours", "other", "ratio (target)")


def markdown() -> str:
    """A section for each program, with every line; missed targets first, then the worst first."""
    return "\n".join(_section(name) for name in PROGRAMS)


def costs() -> str:
    """The models of costs: of many regions, and of one large merge."""
    return "\n".join([*scale.lines(), "", *merge_scale.lines(), ""])


def growth_table() -> str:
    """What each call costs as a table grows."""
    report = _report("growth")
    return "\n".join([f"{_machine(report)}\n", *growth.lines(report["cells"]), ""])


def written(page: str) -> str:
    """The page, with its parts of stored figures."""
    tables = {"missed": _missed, "asked": _asked, "growth": _causes}

    def filled(table: re.Match[str]) -> str:
        lines = "\n".join(tables[table[2]]())
        return f"{table[1]}\n{lines}\n\n{table[3]}"

    return _TABLE.sub(filled, page)


def worst_first(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines in the order of the table."""
    return sorted(lines, key=lambda line: (line["met"] is not False, line["advantage"]))


def _report(name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((FIGURES / f"{name}.json").read_text())
    return report


def _section(name: str) -> str:
    report = _report(name)
    lines = [f"## {PROGRAMS[name]}\n", f"{_machine(report)}\n"]
    lines += [_row(_COLUMNS), _row("---" for _ in _COLUMNS)]
    lines += [_row(_cells(line)) for line in worst_first(report["lines"])]
    return "\n".join([*lines, ""])


def _missed() -> Iterator[str]:
    for name in PROGRAMS:
        alike: dict[tuple[str, str], list[str]] = {}
        for line in worst_first(_report(name)["lines"]):
            if line["met"] is False:
                cases = alike.setdefault((line["against"], line["target"]), [])
                cases.append(f"{line['what']} {_ratio(line)}")
        for (against, target), cases in alike.items():
            yield f"- {'; '.join(cases)}, against {against} ({target})"


def _asked() -> Iterator[str]:
    yield _row(_ASKED_COLUMNS)
    yield _row("---" for _ in _ASKED_COLUMNS)
    for name, what, against in ASKED:
        (line,) = (
            line
            for line in _report(name)["lines"]
            if (line["what"], line["against"]) == (what, against) and line["target"]
        )
        yield _row(_asked_cells(line))


def _causes() -> Iterator[str]:
    return growth.causes(_report("growth")["cells"])


def _machine(report: dict[str, Any]) -> str:
    machine = report["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("pylance", "pyarrow", "obstore"))
    size = f"{report['rows']:,} rows, " if "rows" in report else ""
    return (
        f"{size}{machine['processors']} processors, {machine['file_system']}, "
        f"Linux {machine['system']}, Python {machine['python']}, {versions}; the load was "
        f"{machine['load'][0]:.1f} before."
    )


def _asked_cells(line: dict[str, Any]) -> Iterator[str]:
    ours, other = (Figure(*[line[side]["median"]] * 3) for side in ("ours", "other"))
    yield line["what"]
    yield f"{ours} {line['unit']}"
    yield f"{other}, {line['against']}"
    yield f"{_ratio(line)} ({line['target']})"


def _cells(line: dict[str, Any]) -> Iterator[str]:
    unit = line["unit"]
    yield line["what"]
    yield f"{Figure(**line['ours'])} {unit}"
    yield f"{Figure(**line['other'])} {unit}, {line['against']}"
    yield line["rival"]
    yield _ratio(line)
    yield {True: f"{line['target']}, met", False: f"{line['target']}, **missed**", None: ""}[
        line["met"]
    ]
    yield str(line["ours"]["samples"])
    yield f"{line['load']:.1f}"
    yield line["note"]


def _ratio(line: dict[str, Any]) -> str:
    return f"{line['ratio']:.2g}" if line["ratio"] < 1 else f"{line['ratio']:.3g}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.strip() for cell in cells)} |"


def main() -> None:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; tell by the exit code")
    arguments = parser.parse_args()
    for path in PAGES:
        page = path.read_text()
        new = written(page)
        if arguments.check and page != new:
            sys.exit(f"{path} is old; run python scripts/site/figures.py")
        path.write_text(new)


if __name__ == "__main__":
    main()
