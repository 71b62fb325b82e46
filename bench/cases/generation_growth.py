"""Processor time of reads in a table with few unmerged generations, and with 16 times as many."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
from common import tables
from common.measure import Figure, Line, Rival, Target, constant, rounds_of
from common.processes import run_child

import memwal
from cases import searches

_FEW = 8
_GROWTH = 16
_ROUNDS = 10
_WARM_UP = 3
_ROWS_EACH = 1_000
_BASE_PART = 10
_VECTOR_PART = 100
_MS_PER_GENERATION = 1.5
_KEY = "id = 5"
_FILTER = "id % 7 = 3"

Read = Callable[[memwal.Table], object]


def generation_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Reads of a table of 8 regions with 128 unmerged generations, or 128 regions with one each.

    Options are the default ones. The note has the figure of a table with 8 of them, and the
    exponent by which it grows.

    Parameters
    ----------
    folder : Path
        Where the tables are made; they are removed again.
    rows : int
        The base tables have a tenth of it, of vectors a hundredth, and each generation up to a
        thousand.
    """
    counts = (_FEW, _FEW * _GROWTH)
    states = [_table(folder / str(count), rows // _BASE_PART, count) for count in counts]
    merged = _merged(states[-1], folder)
    yield _line(
        "count after a commit without rows",
        [_samples(table, _count, before=_commit) for table in states],
        Figure.of(_each(lambda: lance.dataset(merged.uri).count_rows())),
        "Lance's count of the merged table, opened again",
        "of a process that has counted the version before",
    )
    yield _line(
        "first scan of a process",
        [_first_scans(table) for table in states],
        constant(_MS_PER_GENERATION * counts[-1]),
        f"{_MS_PER_GENERATION} ms a generation",
        "keys, tombstones and all columns of every generation",
        rival=Rival.LIMIT,
        target=Target(1.0),
    )
    yield _line(
        "filter on the key",
        [
            _samples(_table(folder / f"r{count}", rows // _BASE_PART, count, count), _find)
            for count in counts
        ],
        Figure.of(_each(lambda: merged.to_table(filter=_KEY))),
        "Lance's of the merged table, by its index",
        "repeated",
        of="regions with a generation each",
    )
    vectors = [
        _table(folder / f"v{count}", rows // _VECTOR_PART, count, make=searches.vector_rows)
        for count in counts
    ]
    merged = _merged(vectors[-1], folder)
    query = searches.queries(rows)[0]
    yield _line(
        "vector search with a filter",
        [_samples(table, lambda t: _search(t, query)) for table in vectors],
        Figure.of(_each(lambda: _search_merged(merged, query))),
        "Lance's of the merged table",
        "from the fourth search on, when vectors and columns of the filter are in memory",
        target=Target(4.0),
    )
    shutil.rmtree(folder)


def _line(
    what: str,
    ours: list[list[float]],
    other: Figure,
    against: str,
    note: str,
    *,
    of: str = "generations",
    rival: Rival = Rival.LANCE,
    target: Target | None = None,
) -> Line:
    few, many = map(Figure.of, ours)
    exponent = math.log(many.median / few.median, _GROWTH)
    return Line(
        name="generations",
        what=f"{what} with {_FEW * _GROWTH} {of}",
        ours=many,
        other=other,
        unit="ms of a processor",
        against=against,
        rival=rival,
        note=f"{few.median:.3g} ms with {_FEW}: grows by the power of {exponent:.2f}; {note}",
        target=target,
    )


def _samples(table: memwal.Table, read: Read, *, before: Read | None = None) -> list[float]:
    for _ in range(_WARM_UP):
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


def _first_scans(table: memwal.Table) -> list[float]:
    task = {"do": "first-scan", "uri": table.uri, "filter": "value < 0"}
    told = [run_child("reading", task) for _ in range(rounds_of(_ROUNDS))]
    return [1e3 * float(child["seconds"]) for child in told]


def _count(table: memwal.Table) -> None:
    table.scan().count_rows()


def _commit(table: memwal.Table) -> None:
    table.build_snapshot()


def _find(table: memwal.Table) -> None:
    table.scan(filter=_KEY).to_table()


def _search(table: memwal.Table, vector: np.ndarray) -> None:
    table.search(vector, filter=_FILTER, columns=["id"]).to_table()


def _search_merged(dataset: lance.LanceDataset, vector: np.ndarray) -> None:
    nearest = {"column": "vector", "q": vector, "k": 10, "refine_factor": 2}
    dataset.to_table(columns=["id", "_distance"], nearest=nearest, filter=_FILTER, prefilter=True)


def _table(
    folder: Path, rows: int, count: int, regions: int = _FEW, make: tables.MakeRows | None = None
) -> memwal.Table:
    """A table with an index on the key and on vectors, and so many generations."""
    uri = str(folder)
    make = make or _rows
    schema = make(np.arange(1), 0).schema
    _index(tables.write_in_pieces(uri, schema, rows, make, piece=rows))
    table = memwal.enable(
        uri,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", regions),
        maintained_indexes=["vector_idx"] if "vector" in schema.names else [],
    )
    each = max(min(_ROWS_EACH, rows // count), 1)
    tables.flush_generations(table, rows, count // regions, each * regions, make)
    return table


def _rows(ids: np.ndarray, seed: int) -> pa.Table:
    del seed
    return tables.narrow_rows(len(ids), 0).set_column(0, tables.NARROW.field("id"), [ids])


def _merged(table: memwal.Table, folder: Path) -> lance.LanceDataset:
    rows = table.scan().to_reader()
    uri = str(folder / f"merged-{rows.schema.names[1]}")
    _index(lance.write_dataset(rows, uri, schema=rows.schema))
    return lance.dataset(uri)


def _index(dataset: lance.LanceDataset) -> None:
    dataset.create_scalar_index("id", "BTREE")
    if "vector" in dataset.schema.names:
        dataset.create_index(
            "vector", "IVF_PQ", name="vector_idx", num_partitions=4, num_sub_vectors=16
        )
