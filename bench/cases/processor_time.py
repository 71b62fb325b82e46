"""Processor time of flushes of many regions, and of replays of many entries."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from common import tables
from common.measure import Figure, Line, Rival, Target, rounds_of

import memwal
from memwal.format.paths import wal_dir

# As many at the default size of the benchmarks.
_ROWS = 100_000
_REGIONS = 256
_ROWS_PER_REGION = 160
_ENTRIES = 10_000
_ROWS_PER_ENTRY = 10
_ROUNDS = 5
_BATCH = 1_000


def flushes(folder: Path, rows: int) -> Iterator[Line]:
    """A flush of few rows in each of many regions, beside as many data sets of the same rows."""
    regions = max(min(rows * _REGIONS // _ROWS, _REGIONS), 2)
    table = tables.create_narrow(folder / "table", buckets=regions)
    written = tables.narrow_rows(regions * _ROWS_PER_REGION, 0)
    parts = [
        written.slice(start, _ROWS_PER_REGION) for start in range(0, len(written), _ROWS_PER_REGION)
    ]
    samples: dict[str, list[float]] = {"ours": [], "lance": []}
    with tables.open_ours(table) as writer:
        for round_ in range(rounds_of(_ROUNDS) + 1):
            writer.upsert(written)
            taken = {"ours": _processor_seconds(writer.flush)}
            copies = folder / str(round_)
            taken["lance"] = _processor_seconds(lambda c=copies: _write_all(c, parts))
            shutil.rmtree(copies)
            for name, seconds in taken.items():
                samples[name] += [seconds] * bool(round_)
    yield Line(
        name="flush-cpu",
        what=f"flush of {regions} regions of {_ROWS_PER_REGION} rows",
        ours=Figure.of(samples["ours"]),
        other=Figure.of(samples["lance"]),
        unit="s of a processor",
        against=f"write_dataset of {regions} data sets of the same rows",
        rival=Rival.LANCE,
        target=Target(4.0),
        note="with key index, Bloom filter, manifest and checks of the files; synced",
    )


def appends(folder: Path, rows: int) -> Iterator[Line]:
    """Appends of 1,000 rows without a key, and their flush, beside upserts of the same rows."""
    batch = min(_BATCH, rows)
    calls = max(rows // batch // _ROUNDS, 1)
    batches = [tables.narrow_rows(batch, number * batch) for number in range(calls)]
    samples: dict[str, list[float]] = {"append": [], "upsert": []}
    with (
        tables.open_ours(tables.create_narrow(folder / "none", primary_key=None)) as plain,
        tables.open_ours(tables.create_narrow(folder / "keyed")) as keyed,
    ):
        writes = {"append": (plain, plain.append), "upsert": (keyed, keyed.upsert)}
        for round_ in range(rounds_of(_ROUNDS) + 1):
            for name, (writer, write) in writes.items():

                def write_all(writer: Any = writer, write: Any = write) -> None:
                    for rows_ in batches:
                        write(rows_)
                    writer.flush()

                samples[name] += [_processor_seconds(write_all)] * bool(round_)
    yield Line(
        name="append-cpu",
        what=f"{calls} appends of {batch:,} rows without a primary key, and their flush",
        ours=Figure.of(samples["append"]),
        other=Figure.of(samples["upsert"]),
        unit="s of a processor",
        against="upserts of the same rows",
        rival=Rival.OURS,
        target=Target(1.0),
        note="durable, one region",
    )


def replays(folder: Path, rows: int) -> Iterator[Line]:
    """A claim that replays many entries, beside reading the same files by pyarrow."""
    entries = max(min(rows * _ENTRIES // _ROWS, _ENTRIES), 10)
    table = tables.create_narrow(folder / "table")
    # Nothing is flushed, so that each claim replays all.
    options = memwal.WriterOptions(
        fsync=False,
        max_memtable_rows=1 << 40,
        max_memtable_batches=1 << 40,
        max_memtable_bytes=1 << 40,
        max_memtable_age=3_600,
    )
    with table.writer(options=options) as writer:
        for number in range(entries):
            writer.upsert(tables.narrow_rows(_ROWS_PER_ENTRY, number * _ROWS_PER_ENTRY))
        writer.abort()
    (region,) = table.region_ids()
    files = sorted((folder / "table" / wal_dir(region)).iterdir())

    def read_all() -> None:
        for file in files:
            pa.ipc.open_stream(file.read_bytes()).read_all()

    def claim() -> None:
        writer = table.writer(options=options)
        writer.claim()
        writer.abort()

    samples: dict[str, list[float]] = {"ours": [], "pyarrow": []}
    for round_ in range(rounds_of(_ROUNDS) + 1):
        for name, call in (("ours", claim), ("pyarrow", read_all)):
            samples[name] += [_processor_seconds(call)] * bool(round_)
    if table.scan().count_rows():
        raise SystemExit("rows were flushed, and not replayed by each claim")
    yield Line(
        name="replay-cpu",
        what=f"replay of {entries:,} entries of {_ROWS_PER_ENTRY} rows",
        ours=Figure.of(samples["ours"]),
        other=Figure.of(samples["pyarrow"]),
        unit="s of a processor",
        against="reading the files by pyarrow",
        rival=Rival.LIMIT,
        target=Target(3.0),
        note="with the claim, checksums and the index over the keys",
    )


def _write_all(folder: Path, parts: list[pa.Table]) -> None:
    for number, part in enumerate(parts):
        lance.write_dataset(part, str(folder / str(number)))


def _processor_seconds(call: Callable[[], object]) -> float:
    """Processor time of a call, of all threads of this process."""
    started = time.process_time()
    call()
    return time.process_time() - started
