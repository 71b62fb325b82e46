"""Cost of finding out whether indexes find their rows, in tables with stable row ids."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
from common.measure import Figure, Line, Rival, rounds_of

import memwal
from memwal.lsm.indexes.unusable import find_unusable

_ROUNDS = 7
_ROWS = 200_000
_FRAGMENTS = (10, 200)
_LOOKED_UP = 100


def probe_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Look rows up, first in a copy that no cache knows, then after each of some commits."""
    rows = min(rows, _ROWS)
    for fragments in _FRAGMENTS:
        made = folder / f"made-{fragments}"
        _make(made, rows, fragments)
        numbers = range(rounds_of(_ROUNDS))
        first = [_first_lookup(made, folder / f"{fragments}-{n}", rows) for n in numbers]
        yield _line(f"first lookup in {fragments} fragments", first)
        later = list(_later_lookups(made, rows))
        yield _line(f"lookup in {fragments} fragments after a commit", later)


def _line(what: str, samples: list[tuple[float, float]]) -> Line:
    return Line(
        name="probes",
        what=f"{what} of a table with stable row ids, with the probes of its two indexes",
        ours=Figure.of([1_000 * (probe + lookup) for probe, lookup in samples]),
        other=Figure.of([1_000 * lookup for _, lookup in samples]),
        unit="ms",
        against="without",
        rival=Rival.OURS,
    )


def _make(path: Path, rows: int, fragments: int) -> None:
    step = -(-rows // fragments)
    lance.write_dataset(_rows(0, rows), path, max_rows_per_file=step, enable_stable_row_ids=True)
    dataset = lance.dataset(path)
    for column in ("id", "n"):
        dataset.create_scalar_index(column, "BTREE", name=f"{column}_idx")
    memwal.enable(
        str(path),
        primary_key=["id"],
        region_spec=memwal.RegionSpec.unsharded(),
        maintained_indexes=["id_idx", "n_idx"],
    )


def _rows(first: int, last: int) -> pa.Table:
    numbers = list(range(first, last))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
    return pa.table({"id": numbers, "n": numbers}, schema=schema)


def _first_lookup(made: Path, path: Path, rows: int) -> tuple[float, float]:
    """Return the seconds of the probes and of the lookup, in a copy that no cache knows."""
    shutil.copytree(made, path)
    seconds = _probe_and_look_up(memwal.open(str(path)), rows)
    shutil.rmtree(path)
    return seconds


def _later_lookups(path: Path, rows: int) -> Iterator[tuple[float, float]]:
    table = memwal.open(str(path))
    _probe_and_look_up(table, rows)
    for number in range(rounds_of(_ROUNDS)):
        with table.writer() as writer:
            writer.upsert(_rows(number, number + 1))
        table.merge()
        table.build_indexes()
        yield _probe_and_look_up(table, rows)


def _probe_and_look_up(table: memwal.Table, rows: int) -> tuple[float, float]:
    keys = pa.array(range(0, rows, rows // _LOOKED_UP))
    base = table.base()
    start = time.perf_counter()
    find_unusable(base)
    probed = time.perf_counter()
    table.lookup(keys).to_table()
    return probed - start, time.perf_counter() - probed
