"""Processor time of flushes of many regions, and of replays of many entries."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from common import tables
from common.measure import Figure, Line, Rival, Target, exponent, processor_seconds, rounds_of

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
# A key of 1 MB at the default size of the benchmarks.
_KEY_BYTES_PER_ROW = 10
_BUCKETS = 8
_FEW_ROWS = 16
_GROWTH = 16


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
            taken = {"ours": processor_seconds(writer.flush)}
            copies = folder / str(round_)
            taken["lance"] = processor_seconds(lambda c=copies: _write_all(c, parts))
            shutil.rmtree(copies)
            for name, seconds in taken.items():
                samples[name] += [seconds] * bool(round_)
    yield from _small_flushes(folder / "small", rows)
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


def _small_flushes(folder: Path, rows: int) -> Iterator[Line]:
    """A flush of few rows, and of 16 times as many, with B-trees maintained and without."""
    few = max(min(rows // 100, _FEW_ROWS), 1)
    for indexes in ((), ("id_idx", "value_idx")):
        path = folder / f"{len(indexes)}"
        dataset = lance.write_dataset(tables.narrow_rows(min(rows, 10_000), 0), str(path))
        for name in indexes:
            dataset.create_scalar_index(name.removesuffix("_idx"), "BTREE", name=name)
        table = memwal.enable(
            str(path),
            region_spec=memwal.RegionSpec.unsharded(),
            primary_key="id",
            maintained_indexes=list(indexes),
        )
        found: dict[int, dict[str, Figure]] = {}
        with tables.open_ours(table) as writer:
            for count in (few, few * _GROWTH):
                samples: dict[str, list[float]] = {"ours": [], "lance": []}
                for number in range(rounds_of(4 * _ROUNDS) + 1):
                    part = tables.narrow_rows(count, number * count)
                    writer.upsert(part)
                    copy = str(folder / f"{len(indexes)}-{count}-{number}")
                    taken = {
                        "ours": processor_seconds(writer.flush),
                        "lance": processor_seconds(
                            lambda c=copy, p=part: lance.write_dataset(p, c)
                        ),
                    }
                    for name, seconds in taken.items():
                        samples[name] += [1e3 * seconds] * bool(number)
                found[count] = {name: Figure.of(times) for name, times in samples.items()}
        power = exponent(found[few * _GROWTH]["ours"], found[few]["ours"], _GROWTH)
        yield Line(
            name="flush-cpu",
            what=f"flush of {few} rows, {len(indexes) or 'no'} B-trees maintained",
            ours=found[few]["ours"],
            other=found[few]["lance"],
            unit="ms of a processor",
            against="write_dataset of the same rows",
            target=Target(3.0),
            note=f"from these to {few * _GROWTH} rows it grows with the exponent {power:.2f}",
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

                samples[name] += [processor_seconds(write_all)] * bool(round_)
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


def upserts(folder: Path, rows: int) -> Iterator[Line]:
    """Durable upserts of many rows, beside an Arrow stream of the same rows that is synced."""
    for count in (max(rows // 100, 1), max(rows // 10, 1)):
        samples: dict[str, list[float]] = {"ours": [], "arrow": []}
        files = folder / f"files-{count}"
        files.mkdir()
        options = memwal.WriterOptions(max_memtable_rows=1 << 24, max_memtable_bytes=1 << 32)
        table = tables.create_narrow(folder / f"{count}")
        with tables.open_ours(table, options) as writer:
            for number in range(rounds_of(4 * _ROUNDS) + 1):
                part = tables.narrow_rows(count, number * count)
                taken = {
                    "ours": processor_seconds(lambda p=part: writer.upsert(p)),
                    "arrow": processor_seconds(lambda p=part, f=files: _write_synced(f, p)),
                }
                for name, seconds in taken.items():
                    samples[name] += [1e3 * seconds] * bool(number)
        yield Line(
            name="upsert-cpu",
            what=f"durable upsert of {count:,} rows",
            ours=Figure.of(samples["ours"]),
            other=Figure.of(samples["arrow"]),
            unit="ms of a processor",
            against="an Arrow stream in a new file, synced",
            rival=Rival.LIMIT,
            target=Target(2.0),
            note="one region; with checks, routing, checksum, MemTable and a synced folder",
        )


def _write_synced(folder: Path, rows: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    with (folder / f"{time.monotonic_ns()}").open("wb") as file:
        file.write(sink.getvalue())
        file.flush()
        os.fsync(file.fileno())


def wide_keys(folder: Path, rows: int) -> Iterator[Line]:
    """Upserts of one row with a wide text key by bucket, beside Lance's own into one region."""
    schema = pa.schema([pa.field("key", pa.string(), nullable=False), ("value", pa.int64())])
    width = rows * _KEY_BYTES_PER_ROW
    taken: dict[int, dict[str, Figure]] = {}
    for bytes_ in (width // _GROWTH, width):
        ours, native = (
            memwal.create(
                str(folder / f"{name}-{bytes_}"), schema, primary_key=["key"], region_spec=spec
            )
            for name, spec in (
                ("ours", memwal.RegionSpec.bucket("key", _BUCKETS)),
                ("native", memwal.RegionSpec.unsharded()),
            )
        )
        samples: dict[str, list[float]] = {"ours": [], "native": []}
        with tables.open_ours(ours) as writer, tables.open_native(native) as shard:
            for number in range(rounds_of(_ROUNDS) + 1):
                row = pa.table({"key": [f"{number:0{bytes_}}"], "value": [number]}, schema=schema)
                for name, write in (("ours", writer.upsert), ("native", shard.put)):
                    taken_ = 1e3 * processor_seconds(lambda w=write, r=row: w(r))
                    samples[name] += [taken_] * bool(number)
        taken[bytes_] = {name: Figure.of(times) for name, times in samples.items()}
    powers = {
        name: exponent(taken[width][name], taken[width // _GROWTH][name], _GROWTH)
        for name in ("ours", "native")
    }
    yield Line(
        name="wide-keys",
        what=f"upsert of 1 row with a text key of {width:,} bytes into {_BUCKETS} buckets",
        ours=taken[width]["ours"],
        other=taken[width]["native"],
        unit="ms of a processor",
        against="ShardWriter, one region",
        note=f"from a key of {width // _GROWTH:,} bytes on it grows with the exponent "
        f"{powers['ours']:.2f}, the other's with {powers['native']:.2f}",
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
            samples[name] += [processor_seconds(call)] * bool(round_)
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
