"""What each call costs as a table grows along one axis: base rows, regions, generations or width.

Usage: ``python bench/growth.py [--rows N] [--regions N] [--generations N] [--width BYTES]
[--rounds N] [--folder DIR] [--json]``. Each axis has three points, the last of them as given; the
other axes stay at the first point of theirs. A figure is a median of rounds, each in processes of
their own, which have done the same with a small table before.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.growing_tables import Shape, make
from common.measure import Figure, machine
from common.processes import run_child

AXES = {
    "rows": "rows of the base table",
    "regions": "regions, of which one has unmerged rows",
    "generations": "unmerged generations of one region",
    "width": "bytes of a row",
}
"""Axes and their names in the table."""

# A base table that is read to its end would take minutes with the widest rows.
_WIDE_ROWS = 300
_NARROW = 100
# Smaller powers, and smaller differences between the two largest sizes, are noise.
_POWER = 0.15
_MS, _BYTES = 3, 30_000

_READS = (
    "first scan of one key",
    "second scan of one key",
    "filter on the key",
    "lookup",
    "count after a foreign commit",
    "vector search",
    "text search",
)
_JOBS = ("merge of one changed region", "index job")
_REASONS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "rows",
        ("text search",),
        "The first text search of a process reads the words of the index and the number of words "
        "of each document. Lance's own search reads as many bytes.",
    ),
    (
        "rows",
        ("vector search",),
        "A search probes 20 partitions of the vector index, and reads the centroids of all: the "
        "two smaller tables have fewer partitions.",
    ),
    (
        "rows",
        ("index job",),
        "Lance reads the words of the text index to extend it, and the rows of each partition of "
        "the vector index are counted.",
    ),
    (
        "regions",
        ("open", "first write", "flush"),
        "The version of the table has the merge progress of every region, and a claim lists their "
        "folders.",
    ),
    (
        "regions",
        _READS,
        "The folders of the regions are listed, and each that must be there is compared with the "
        "merge progress. Unless the filter gives keys, the manifest of each region is asked for: "
        "only this shows new generations.",
    ),
    (
        "regions",
        ("status", "plan of a merge", "plan of a collection", "quick verify"),
        "The state of each region is asked for: its manifest and mark are read, for a "
        "collection and a verification also its folders and the generations that are still there.",
    ),
    (
        "regions",
        _JOBS,
        "The manifest of each region is read, and each new version of the table has the progress "
        "of all regions, for each index.",
    ),
    (
        "generations",
        ("first scan of one key", "lookup", "count after a foreign commit"),
        "Keys, tombstones and Bloom filters of each generation are read once by a process, and "
        "which rows of the base table they replace is asked of its index.",
    ),
    (
        "generations",
        ("vector search", "text search"),
        "Vectors and texts of each generation are read once by a process.",
    ),
    (
        "generations",
        ("second scan of one key", "filter on the key", "status", "first write", "plan of a merge"),
        "The manifest of the region names each of its generations.",
    ),
    (
        "generations",
        ("plan of a collection", "quick verify"),
        "The folder of each generation is listed, and verified.",
    ),
    (
        "generations",
        _JOBS,
        "Rows of each generation are merged, and indexed.",
    ),
    (
        "width",
        ("lookup", "first write", "flush", "merge of one changed region"),
        "Bytes of the rows themselves, which are read or written.",
    ),
)
_REASON_OF = {
    (axis, call): number for number, (axis, calls, _) in enumerate(_REASONS, 1) for call in calls
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One call along one axis.

    Attributes
    ----------
    call, axis : str
        What was called, and what grew.
    sizes : tuple of int
        Points of the axis.
    ms, bytes_read : tuple of Figure
        Processor time, and bytes that the process read of files, at each point.
    """

    call: str
    axis: str
    sizes: tuple[int, ...]
    ms: tuple[Figure, ...]
    bytes_read: tuple[Figure, ...]

    def as_dict(self) -> dict[str, Any]:
        powers = {"ms_power": self._power(self.ms), "bytes_power": self._power(self.bytes_read)}
        return {**asdict(self), **powers}

    def _power(self, figures: Sequence[Figure]) -> float:
        """The power of the size with which a figure grows between the two largest sizes."""
        *_, before, last = (max(figure.median, 1e-3) for figure in figures)
        return math.log(last / before) / math.log(self.sizes[-1] / self.sizes[-2])


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    axes = _axes(arguments)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        where = machine(Path(scratch))
        cells = list(_cells(Path(scratch), axes, arguments.rounds))
    told = [cell.as_dict() for cell in cells]
    if arguments.json:
        print(json.dumps({"machine": where, "rounds": arguments.rounds, "cells": told}, indent=2))
    else:
        for line in lines(told):
            print(line)


def lines(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Return the table in Markdown, a row for each call and a column for each axis, and reasons."""
    sizes = {cell["axis"]: cell["sizes"] for cell in cells}
    heads = [
        f"{title}: {'; '.join(f'{size:,}' for size in sizes[axis])}" for axis, title in AXES.items()
    ]
    yield f"| call | {' | '.join(heads)} |"
    yield "|---" * (1 + len(AXES)) + "|"
    for call in dict.fromkeys(cell["call"] for cell in cells):
        row = {cell["axis"]: cell for cell in cells if cell["call"] == call}
        yield f"| {call} | {' | '.join(_printed(row[axis]) for axis in AXES)} |"
    yield ""
    yield from causes(cells)


def causes(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Return in Markdown along which axes calls grow, and why; numbers are those of the table."""
    growing = {(cell["axis"], cell["call"]) for cell in cells if grows(cell)}
    for number, (axis, calls, reason) in enumerate(_REASONS, 1):
        named = ", ".join(call for call in calls if (axis, call) in growing)
        yield f"{number}. **{axis}**: {named or 'no call'}. {reason}"


def grows(cell: dict[str, Any]) -> bool:
    """Return whether a call costs more along an axis, beyond noise."""
    kinds = (("ms_power", "ms", _MS), ("bytes_power", "bytes_read", _BYTES))
    return any(
        cell[power] > _POWER and cell[name][-1]["median"] - cell[name][-2]["median"] > least
        for power, name, least in kinds
    )


def has_reason(cell: dict[str, Any]) -> bool:
    """Return whether it is known why a call may grow along an axis."""
    return (cell["axis"], cell["call"]) in _REASON_OF


def _printed(cell: dict[str, Any]) -> str:
    ms = "; ".join(_short(figure["median"]) for figure in cell["ms"])
    kb = "; ".join(_short(figure["median"] / 1e3) for figure in cell["bytes_read"])
    text = f"{ms} ms ({cell['ms_power']:.2f}), {kb} kB ({cell['bytes_power']:.2f})"
    if not grows(cell):
        return text
    reason = _REASON_OF.get((cell["axis"], cell["call"]), "no reason known")
    return f"**{text}** [{reason}]"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _axes(arguments: argparse.Namespace) -> dict[str, tuple[Shape, ...]]:
    rows, narrow = _points(arguments.rows // 100, arguments.rows), arguments.rows // 100
    return {
        "rows": tuple(Shape(count) for count in rows),
        "regions": tuple(Shape(narrow, regions=n) for n in _points(1, arguments.regions)),
        "generations": tuple(
            Shape(narrow, generations=n) for n in _points(1, arguments.generations)
        ),
        "width": tuple(
            Shape(min(narrow, _WIDE_ROWS), width=n) for n in _points(_NARROW, arguments.width)
        ),
    }


def _points(first: int, last: int) -> tuple[int, int, int]:
    return first, round(math.sqrt(first * last)), last


def _cells(folder: Path, axes: dict[str, tuple[Shape, ...]], rounds: int) -> Iterator[Cell]:
    found = _measured(folder, {shape for shapes in axes.values() for shape in shapes}, rounds)
    for axis, shapes in axes.items():
        for call in found[shapes[0]]:
            taken = [found[shape][call] for shape in shapes]
            yield Cell(
                call=call,
                axis=axis,
                sizes=tuple(getattr(shape, axis) for shape in shapes),
                ms=tuple(Figure.of([one["ms"] for one in each]) for each in taken),
                bytes_read=tuple(Figure.of([one["bytes"] for one in each]) for each in taken),
            )


def _measured(
    folder: Path, shapes: set[Shape], rounds: int
) -> dict[Shape, dict[str, list[dict[str, float]]]]:
    """Return the samples of every call with a table of each shape."""
    tables = {shape: folder / f"{number}" for number, shape in enumerate(shapes)}
    for shape, table in tables.items():
        make(table, shape)
    make(folder / "warm", Shape(_WIDE_ROWS))
    found: dict[Shape, dict[str, list[dict[str, float]]]] = {shape: {} for shape in shapes}
    for _ in range(rounds):
        for shape, table in tables.items():
            for do in ("read", "write"):
                copies = {"uri": _copy(table), "warm": _copy(folder / "warm")}
                told = run_child("growing", {"do": do, "regions": shape.regions, **copies})
                for call, sample in told.items():
                    found[shape].setdefault(call, []).append(sample)
                for copy in copies.values():
                    shutil.rmtree(copy)
    return found


def _copy(table: Path) -> str:
    """Copy a table by hard links: its files are replaced, and never written to again."""
    copy = table.with_name(f"{table.name}-copy")
    shutil.copytree(table, copy, copy_function=os.link)
    return str(copy)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the largest base table")
    parser.add_argument("--regions", type=int, default=1_024, help="most regions")
    parser.add_argument("--generations", type=int, default=256, help="most generations")
    parser.add_argument("--width", type=int, default=1_000_000, help="bytes of the widest rows")
    parser.add_argument("--rounds", type=int, default=3, help="samples of each figure")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
