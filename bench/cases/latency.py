"""Small writes: one producer's, and those of many threads into one region."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from common import tables
from common.disk import DurableFolder
from common.measure import Line, Rival, Target, interleaved, milliseconds, rates

import memwal
from memwal.format.paths import wal_dir

_ROUNDS = 20
_THREADS = 32
_THREAD_ROUNDS = 5


def durable_single(folder: Path, rows: int) -> Iterator[Line]:
    """Writes of one row by one producer, beside the disk's own durable create of the same bytes."""
    block = max(rows // 4_000, 1)
    table = tables.create_narrow(folder / "table")
    batches = _single_rows(table, (_ROUNDS + 1) * block)
    disk = DurableFolder(folder / "disk")
    with tables.open_ours(table) as writer:
        writer.upsert(tables.as_stored(tables.narrow_rows(1, 0), table))
        entry = tables.newest_entry(table)
        samples = interleaved(
            {
                "ours": lambda number: writer.upsert(batches[number]),
                "disk": lambda number: disk.create(str(number), entry),
            },
            rounds=_ROUNDS,
            block=block,
        )
    yield Line(
        name="durable-single",
        what="durable upsert of 1 row",
        ours=milliseconds(samples["ours"]),
        other=milliseconds(samples["disk"]),
        unit="ms",
        against="durable create by the disk",
        rival=Rival.DISK,
        target=Target(1.3),
        note=f"{len(entry):,} bytes, {len(samples['ours']):,} samples each",
    )


def single(folder: Path, rows: int) -> Iterator[Line]:
    """Writes of one row by one producer without fsync, beside Lance's own, which never does."""
    block = max(rows // 4_000, 1)
    ours, native = tables.create_narrow(folder / "ours"), tables.create_narrow(folder / "native")
    batches = _single_rows(ours, (_ROUNDS + 1) * block)
    options = memwal.WriterOptions(fsync=False)
    with (
        tables.open_ours(ours, options) as writer,
        tables.open_native(native, max_wal_flush_interval_ms=1) as shard,
    ):
        samples = interleaved(
            {
                "ours": lambda number: writer.upsert(batches[number]),
                "native": lambda number: shard.put(batches[number]),
            },
            rounds=_ROUNDS,
            block=block,
        )
    yield Line(
        name="single",
        what="upsert of 1 row without fsync",
        ours=milliseconds(samples["ours"]),
        other=milliseconds(samples["native"]),
        unit="ms",
        against="ShardWriter",
        target=Target(1.0),
        note=f"max_wal_flush_interval_ms=1, {len(samples['ours']):,} samples each",
    )


def threads(folder: Path, rows: int) -> Iterator[Line]:
    """Writes of one row by many threads into one region, beside the same ones one by one."""
    count = max(rows // 25, _THREADS)
    table = tables.create_narrow(folder / "table")
    batches = _single_rows(table, count)
    with tables.open_ours(table) as writer:
        alone = batches[: max(count // 8, 1)]
        samples = interleaved(
            {
                "alone": lambda _: [writer.upsert(batch) for batch in alone],
                "threads": lambda _: _write_side_by_side(writer, batches),
            },
            rounds=_THREAD_ROUNDS,
        )
        entries = len(list(table.location.store.list(wal_dir(table.region_ids()[0]))))
    entries -= (_THREAD_ROUNDS + 1) * len(alone)
    yield Line(
        name="threads",
        what=f"durable upserts of 1 row by {_THREADS} threads into one region",
        ours=rates(count, samples["threads"]),
        other=rates(len(alone), samples["alone"]),
        unit="writes/s",
        against="one by one",
        rival=Rival.OURS,
        target=Target(4.0, at_least=True),
        note=f"{(_THREAD_ROUNDS + 1) * count / entries:.1f} writes in an entry",
    )


def _write_side_by_side(writer: memwal.Writer, batches: Sequence[pa.Table]) -> None:
    failures: list[BaseException] = []

    def write(part: Sequence[pa.Table]) -> None:
        try:
            for batch in part:
                writer.upsert(batch)
        except BaseException as error:
            failures.append(error)

    workers = [
        threading.Thread(target=write, args=(batches[number::_THREADS],))
        for number in range(_THREADS)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]


def _single_rows(table: memwal.Table, count: int) -> list[pa.Table]:
    return [tables.as_stored(tables.narrow_rows(1, at), table) for at in range(count)]
