"""Processor time of reads in a table with few unmerged generations, and with 16 times as many."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
from common import tables
from common.measure import Figure, Line, Rival, Target, rounds_of

import memwal

_FEW = 8
_GROWTH = 16
_ROUNDS = 10
_ROWS_EACH = 1_000
_BASE_PART = 2

Read = Callable[[memwal.Table], object]


def generation_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Repeated reads of a table of 8 regions with 128 unmerged generations, with default options.

    The note has the figure of a table with 8 generations, and the exponent by which it grows.

    Parameters
    ----------
    folder : Path
        Where the tables are made; they are removed again.
    rows : int
        The base tables have half of it, and each generation up to a thousand.
    """
    states = [_table(folder, rows // _BASE_PART, count) for count in (_FEW, _FEW * _GROWTH)]
    merged = _merged(states[-1], folder)
    yield _line(
        "count after a commit without rows",
        [_samples(table, _count, before=_commit) for table in states],
        Figure.of(_each(lambda: lance.dataset(merged.uri).count_rows())),
        "Lance's count of the merged table, opened again",
        "of a process that has counted the version before",
    )
    shutil.rmtree(folder)


def _line(
    what: str, ours: list[list[float]], other: Figure, against: str, note: str, **target: Target
) -> Line:
    few, many = map(Figure.of, ours)
    exponent = math.log(many.median / few.median, _GROWTH)
    return Line(
        name="generations",
        what=f"{what} with {_FEW * _GROWTH} generations",
        ours=many,
        other=other,
        unit="ms of a processor",
        against=against,
        rival=Rival.LANCE,
        note=f"{few.median:.3g} ms with {_FEW}: grows by the power of {exponent:.2f}; {note}",
        **target,
    )


def _samples(table: memwal.Table, read: Read, *, before: Read | None = None) -> list[float]:
    read(table)
    return _each(lambda: read(table), before=None if before is None else lambda: before(table))


def _each(call: Callable[[], object], *, before: Callable[[], object] | None = None) -> list[float]:
    """Milliseconds of a processor of each call; one more goes first."""
    samples = []
    for _ in range(rounds_of(_ROUNDS) + 1):
        if before is not None:
            before()
        started = time.process_time()
        call()
        samples.append(1e3 * (time.process_time() - started))
    return samples[1:]


def _count(table: memwal.Table) -> None:
    table.scan().count_rows()


def _commit(table: memwal.Table) -> None:
    table.build_snapshot()


def _table(folder: Path, rows: int, count: int) -> memwal.Table:
    """A table with an index on the key, and so many generations in 8 regions."""
    uri = str(folder / str(count))
    made = tables.write_in_pieces(uri, tables.NARROW, rows, _rows, piece=rows)
    made.create_scalar_index("id", "BTREE")
    table = memwal.enable(uri, primary_key=["id"], region_spec=memwal.RegionSpec.bucket("id", _FEW))
    each = max(min(_ROWS_EACH, rows // count), 1)
    tables.flush_generations(table, rows, count // _FEW, each * _FEW, _rows)
    return table


def _rows(ids: object, seed: int) -> object:
    del seed
    return tables.narrow_rows(len(ids), 0).set_column(0, tables.NARROW.field("id"), [ids])


def _merged(table: memwal.Table, folder: Path) -> lance.LanceDataset:
    rows = table.scan().to_reader()
    merged = lance.write_dataset(rows, str(folder / "merged"), schema=rows.schema)
    merged.create_scalar_index("id", "BTREE")
    return merged
