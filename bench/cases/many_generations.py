"""Lookups in a table with ever more unmerged generations."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
from common import tables
from common.measure import Line, Rival, Target, interleaved, milliseconds

import memwal
from memwal.reader.sources.cache import cached_bytes

# Each flush adds a generation to each region.
_REGIONS = 10
_FLUSHES = (1, 10, 100, 1_000)
_ROWS_OF_ALL_FLUSHES = 2_000_000
_FLUSHED_ROWS = 100
_BASE_PART = 10
_ROUNDS = 3
_BLOCK = 40
_MIB = 1 << 20


def growth_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Lookups of one key, of a base row or a newer one, with up to 10,000 generations.

    Parameters
    ----------
    folder : Path
        Where the tables are made; they are removed again.
    rows : int
        The base table has a tenth of it; with fewer than two million there are fewer generations.
    """
    states = list(_states(folder, rows))
    base_rows = max(rows // _BASE_PART, 1)
    keys = np.random.default_rng(0).integers(0, base_rows, (_ROUNDS + 1) * _BLOCK)
    for table, _ in states:
        # The filters of all generations are read once.
        for key in (*keys[:_BLOCK], *range(-_BLOCK, 0)):
            table.lookup(int(key)).to_table()
    taken = interleaved(
        {
            str(number): lambda n, t=table: _found(t, int(keys[n]))
            for number, (table, _) in enumerate(states)
        },
        rounds=_ROUNDS,
        block=_BLOCK,
    )
    few = states[0][1]
    for number, (_, generations) in enumerate(states[1:], 1):
        yield Line(
            name="lookup-growth",
            what=f"lookup of one key with {generations:,} generations",
            ours=milliseconds(taken[str(number)]),
            other=milliseconds(taken["0"]),
            unit="ms",
            against=f"with {few:,}",
            rival=Rival.OURS,
            target=Target(4.0),
            note=f"{_REGIONS} regions; read caches of all tables {cached_bytes() / _MIB:.0f} MiB",
        )
    shutil.rmtree(folder)


def _states(folder: Path, rows: int) -> Iterator[tuple[memwal.Table, int]]:
    """Tables with more and more generations, and how many they have."""
    uri = folder / "growing"
    base_rows = max(rows // _BASE_PART, 1)
    table = tables.create_narrow(uri, buckets=_REGIONS)
    with table.writer() as writer:
        writer.upsert(tables.narrow_rows(base_rows, 0))
    table.merge()
    lance.dataset(table.uri).create_scalar_index("id", "BTREE", name="id_idx")
    random = np.random.default_rng(1)
    done = 0
    for number, flushes in enumerate(_FLUSHES):
        wanted = max(flushes * rows // _ROWS_OF_ALL_FLUSHES, 1)
        with table.writer() as writer:
            for flush in range(done, wanted):
                fresh = tables.narrow_rows(_FLUSHED_ROWS, base_rows + flush * _FLUSHED_ROWS)
                ids = fresh["id"].to_numpy().copy()
                ids[::2] = random.integers(0, base_rows, len(ids[::2]))
                writer.upsert(fresh.set_column(0, "id", pa.array(ids)))
                writer.flush()
        done = max(done, wanted)
        if number < len(_FLUSHES) - 1:
            shutil.copytree(uri, folder / str(number))
            yield memwal.open(str(folder / str(number))), _REGIONS * done
    yield table, _REGIONS * done


def _found(table: memwal.Table, key: int) -> None:
    if table.lookup(key).to_table().num_rows != 1:
        raise SystemExit(f"key {key} was not found")
