"""Large writes: plain, with indexes maintained, and over several regions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from common import tables
from common.disk import DurableFolder
from common.measure import Figure, Line, Rival, Target, interleaved, milliseconds, rates, seconds

import memwal
from memwal.format.paths import generation_dir
from memwal.lsm.indexes.maintained import FEW_ROWS
from memwal.region.manifest_store import read_manifests

_BATCH = 1_000
_ROUNDS = 5
_ROUTED_BATCH = 10_000
_ROUTED_BLOCK = 5
_BUCKETS = 8
# Without indexes a put of Lance's waits for the next tick; with indexes a longer one can be better.
_FLUSH_INTERVALS_MS = (1, 10, 100)
_ROOM = 1 << 31


def bulk(folder: Path, rows: int) -> Iterator[Line]:
    """Writes of 1,000 rows without maintained indexes, until the last one is acknowledged."""
    settings, tried = _best_native_settings(
        lambda name: tables.create_narrow(folder / name), tables.narrow_rows, max(rows // 5, 1)
    )
    batch = min(_BATCH, rows)
    block = max(rows // batch // _ROUNDS, 1)
    ours = {name: tables.create_narrow(folder / name) for name in ("fsync", "no-fsync", "buffered")}
    native = {name: tables.create_narrow(folder / f"native-{name}") for name in ("put", "buffered")}
    batches = [
        tables.as_stored(tables.narrow_rows(batch, number * batch), ours["fsync"])
        for number in range((_ROUNDS + 1) * block)
    ]
    room = {"max_memtable_rows": len(batches) * batch + 1, "max_memtable_batches": len(batches) + 1}

    def open_ours(name: str, **options: Any) -> Any:
        options = {**options, **room, "max_memtable_bytes": _ROOM}
        return tables.open_ours(ours[name], memwal.WriterOptions(**options))

    def writes(write: Callable[[pa.Table], object]) -> Callable[[int], None]:
        return lambda number: _each(write, batches[number * block : (number + 1) * block])

    with (
        open_ours("fsync") as synced,
        open_ours("no-fsync", fsync=False) as unsynced,
        open_ours("buffered", durable=False) as buffered,
        tables.open_native(native["put"], **settings, **room) as shard,
        tables.open_native(native["buffered"], durable_write=False, **room) as loose,
    ):
        samples = interleaved(
            {
                "fsync": writes(synced.upsert),
                "native": writes(shard.put),
                "no-fsync": writes(unsynced.upsert),
                "buffered": writes(buffered.upsert),
                "native-buffered": writes(loose.put),
            },
            rounds=_ROUNDS,
        )
    figures = {name: rates(block * batch, times) for name, times in samples.items()}
    line = _LineOf("bulk", "rows/s", "ShardWriter")
    note = f"its best: {tried}"
    size = f"upserts of {batch:,} rows"
    yield line(
        f"durable {size}", figures["fsync"], figures["native"], Target(1.0, at_least=True), note
    )
    yield line(
        f"{size} without fsync",
        figures["no-fsync"],
        figures["native"],
        Target(2.0, at_least=True),
        note,
    )
    yield line(
        f"{size}, buffered, until the last call returns",
        figures["buffered"],
        figures["native-buffered"],
        None,
        "durable_write=False",
    )


def indexed(folder: Path, rows: int) -> Iterator[Line]:
    """Writes of 1,000 rows with BTREE, IVF_PQ and text maintained, until all is flushed."""
    template = tables.create_wide(folder / "template", indexed=True)
    settings, tried = _best_native_settings(
        lambda name: _copy(template, folder / name), tables.wide_rows, max(rows // 10, 1)
    )
    batch = min(_BATCH, rows)
    batches = [
        tables.as_stored(tables.wide_rows(batch, at), template) for at in range(0, rows, batch)
    ]
    samples: dict[str, list[float]] = {"ours": [], "native": []}
    # Lance's takes many times as long: one of it stands between two of ours.
    for number, side in enumerate(("ours", "native", "ours")):
        table = _copy(template, folder / f"{side}-{number}")
        write = _write_ours if side == "ours" else partial(_write_native, settings)
        samples[side].append(seconds(partial(write, table, batches)))
        _check_indexes(table)
    line = _LineOf("indexed", "rows/s", "ShardWriter")
    yield line(
        f"durable upserts of {batch:,} rows with BTREE, IVF_PQ and text, until flushed",
        rates(rows, samples["ours"]),
        rates(rows, samples["native"]),
        Target(8.0, at_least=True),
        f"{tables.DIMENSIONS} floats a row; its best: {tried}",
    )


def routing(folder: Path, rows: int) -> Iterator[Line]:
    """Writes of 10,000 rows into 8 regions, beside one region."""
    count = min(_ROUTED_BATCH, rows)
    rounds = max(rows // count, 2)
    one = tables.create_narrow(folder / "one")
    many = tables.create_narrow(folder / "many", buckets=_BUCKETS)
    batches = [
        tables.as_stored(tables.narrow_rows(count, number * count), one)
        for number in range((rounds + 1) * _ROUTED_BLOCK)
    ]
    options: dict[str, Any] = {
        "max_memtable_rows": 2 * len(batches) * count + 1,
        "max_memtable_bytes": _ROOM,
    }
    line = _LineOf("routing", "ms", "1 region", Rival.OURS)
    for fsync in (True, False):
        chosen = memwal.WriterOptions(fsync=fsync, **options)
        with tables.open_ours(one, chosen) as single, tables.open_ours(many, chosen) as divided:
            samples = interleaved(
                {
                    "one": lambda number, w=single: w.upsert(batches[number]),
                    "many": lambda number, w=divided: w.upsert(batches[number]),
                },
                rounds=rounds,
                block=_ROUTED_BLOCK,
            )
        yield line(
            f"upsert of {count:,} rows into {_BUCKETS} regions" + ("" if fsync else ", no fsync"),
            milliseconds(samples["many"]),
            milliseconds(samples["one"]),
            Target(1.5) if fsync else None,
            f"{len(samples['one'])} samples each",
        )
    yield _disk_limit(folder, rounds, len(tables.newest_entry(one)))


def _disk_limit(folder: Path, rounds: int, size: int) -> Line:
    """The disk's own durable creates: the same bytes in as many folders at once, and in one."""
    folders = [DurableFolder(folder / f"disk-{number}") for number in range(_BUCKETS)]
    data = os.urandom(size)
    part = data[: max(size // _BUCKETS, 1)]
    with ThreadPoolExecutor(_BUCKETS) as pool:
        samples = interleaved(
            {
                "one": lambda number: folders[0].create(f"one-{number}", data),
                "many": lambda number: list(
                    pool.map(lambda disk: disk.create(f"many-{number}", part), folders)
                ),
            },
            rounds=rounds,
            block=_ROUTED_BLOCK,
        )
    return Line(
        name="routing",
        what=f"{_BUCKETS} durable creates by the disk side by side",
        ours=milliseconds(samples["many"]),
        other=milliseconds(samples["one"]),
        unit="ms",
        against="1 durable create of the same bytes",
        rival=Rival.DISK,
        note="what the disk itself allows",
    )


class _LineOf:
    """Makes the lines of a benchmark."""

    def __init__(self, name: str, unit: str, against: str, rival: Rival = Rival.LANCE) -> None:
        self._shared: dict[str, Any] = {
            "name": name,
            "unit": unit,
            "against": against,
            "rival": rival,
        }

    def __call__(
        self, what: str, ours: Figure, other: Figure, target: Target | None, note: str
    ) -> Line:
        return Line(what=what, ours=ours, other=other, target=target, note=note, **self._shared)


def _best_native_settings(
    make_table: Callable[[str], memwal.Table],
    make_rows: Callable[[int, int], pa.Table],
    rows: int,
) -> tuple[dict[str, Any], str]:
    """Lance's fastest setting for puts that it acknowledges when they are in the log."""
    batch = min(_BATCH, rows)
    rate: dict[int, float] = {}
    for interval in _FLUSH_INTERVALS_MS:
        table = make_table(f"setting-{interval}")
        batches = [tables.as_stored(make_rows(batch, at), table) for at in range(0, rows, batch)]
        with tables.open_native(table, max_wal_flush_interval_ms=interval) as shard:
            rate[interval] = rows / seconds(lambda s=shard, b=batches: _each(s.put, b))
    best = max(rate, key=rate.__getitem__)
    tried = ", ".join(f"{rate[interval]:,.0f} at {interval}" for interval in rate)
    return {"max_wal_flush_interval_ms": best}, f"max_wal_flush_interval_ms={best} ({tried})"


def _copy(table: memwal.Table, path: Path) -> memwal.Table:
    shutil.copytree(table.uri, path)
    return memwal.open(str(path))


def _check_indexes(table: memwal.Table) -> None:
    """Raise unless every generation carries the maintained indexes: else nothing was compared.

    Generations of few rows carry no BTREE.
    """
    for region_id, manifest in read_manifests(table.location.store).items():
        for flushed in manifest.flushed:
            generation = generation_dir(region_id, flushed.path)
            dataset = lance.dataset(table.location.child(generation))
            few = dataset.count_rows() <= FEW_ROWS
            wanted = tables.SEARCHED if few else tables.MAINTAINED
            missing = set(wanted) - {i.name for i in dataset.describe_indices()}
            if missing:
                raise RuntimeError(f"{generation} of {table} lacks {', '.join(sorted(missing))}")


def _write_ours(table: memwal.Table, batches: Sequence[pa.Table]) -> None:
    with tables.open_ours(table) as writer:
        _each(writer.upsert, batches)


def _write_native(
    settings: Mapping[str, Any], table: memwal.Table, batches: Sequence[pa.Table]
) -> None:
    with tables.open_native(table, **settings) as shard:
        _each(shard.put, batches)


def _each(write: Callable[[pa.Table], object], batches: Sequence[pa.Table]) -> None:
    for batch in batches:
        write(batch)
