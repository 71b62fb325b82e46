"""Fresh reads, which read the logs: scans, requests, and how long until others see a write."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from common import tables
from common.measure import Line, Rival, Target, constant, interleaved, milliseconds
from common.s3 import Gateway, gateway_before, running_emulator

import memwal
from memwal.format.paths import MEM_WAL_DIR

_UNFLUSHED_ROWS = 100_000
_WRITE_ROWS = 1_000
_SCANS = 7
_WRITES = 200
_POLL_SECONDS = 0.005
_READS = 10
_REGIONS = 4


def fresh_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Fresh reads of rows that no writer has flushed."""
    yield from _scan_lines(folder / "scan", min(rows, _UNFLUSHED_ROWS))
    yield from _latency_lines(folder / "latency")
    yield from _request_lines(folder)


def _scan_lines(folder: Path, rows: int) -> Iterator[Line]:
    table = tables.create_narrow(folder)
    reader = memwal.open(table.uri)
    with tables.open_ours(table, memwal.WriterOptions(max_memtable_rows=10 * rows)) as writer:
        for start in range(0, rows, _WRITE_ROWS):
            writer.upsert(tables.narrow_rows(min(_WRITE_ROWS, rows - start), start))
        taken = interleaved(
            {
                "fresh": lambda _: reader.fresh().scan().to_table(),
                "writer": lambda _: writer.scan().to_table(),
            },
            rounds=_SCANS,
        )
        writer.abort()
    yield Line(
        name="fresh",
        what=f"fresh scan of {rows:,} unflushed rows, read before",
        ours=milliseconds(taken["fresh"]),
        other=milliseconds(taken["writer"]),
        unit="ms",
        against="the writer's own scan",
        rival=Rival.OURS,
        target=Target(1.5),
        note=f"{_SCANS} scans each",
    )


def _latency_lines(folder: Path) -> Iterator[Line]:
    """How much later than its poll a reader has a row that another thread wrote."""
    table = tables.create_narrow(folder)
    reader = memwal.open(table.uri)
    waits: list[float] = []
    with tables.open_ours(table) as writer:
        written = [0.0] * _WRITES

        def write() -> None:
            for number in range(_WRITES):
                writer.upsert(tables.narrow_rows(1, number))
                written[number] = time.perf_counter()
                time.sleep(_POLL_SECONDS)

        thread = threading.Thread(target=write)
        thread.start()
        seen = 0
        while seen < _WRITES:
            began = time.perf_counter()
            found = reader.fresh().scan(columns=["id"]).count_rows()
            ended = time.perf_counter()
            # A row that was there before the poll began cost this poll; others came in its midst.
            waits += [ended - began for at in written[seen:found] if at <= began]
            seen = max(seen, found)
            time.sleep(_POLL_SECONDS)
        thread.join()
        writer.abort()
    yield Line(
        name="fresh",
        what="until a fresh read has a row of another writer, beyond its poll",
        ours=milliseconds(waits),
        other=constant(5.0),
        unit="ms",
        against="5 ms",
        rival=Rival.LIMIT,
        target=Target(1.0),
        note=f"{len(waits)} writes of a row, a poll every {1e3 * _POLL_SECONDS:g} ms",
    )


def _request_lines(folder: Path) -> Iterator[Line]:
    """Requests of repeated reads of an idle table, and of one after a write, for each region."""
    counted: dict[str, list[int]] = {"plain": [], "fresh": [], "filtered": [], "after": []}
    with running_emulator(folder) as emulator, gateway_before(emulator.endpoint) as proxy:
        options = {**emulator.storage_options, "aws_endpoint": proxy.endpoint}
        uri = f"s3://{emulator.create_bucket()}/table"
        table = tables.create_narrow(uri, buckets=_REGIONS, storage_options=options)
        with tables.open_ours(table) as writer:
            writer.upsert(tables.narrow_rows(1_000, 0))
            for _ in range(_READS):
                for name, filter in (("plain", None), ("fresh", None), ("filtered", "id = 0")):
                    proxy.taken()
                    reader = table if name == "plain" else table.fresh()
                    reader.count_rows(filter=filter)
                    counted[name].append(_of_regions(proxy))
                writer.upsert(tables.narrow_rows(1, 0))
                proxy.taken()
                table.fresh().lookup(0).to_table()
                counted["after"].append(_of_regions(proxy))
            writer.abort()
    for name, what, regions, limit in (
        ("plain", "requests a region of a repeated read", _REGIONS, 1.0),
        ("fresh", "requests a region of a repeated fresh read", _REGIONS, 2.0),
        ("filtered", "requests of a repeated fresh read whose filter one region passes", 1, 2.0),
        ("after", "requests to the region of a fresh lookup after a write of a row", 1, 3.0),
    ):
        yield Line(
            name="fresh",
            what=what,
            ours=constant(sorted(counted[name])[len(counted[name]) // 2] / regions),
            other=constant(limit),
            unit="requests",
            against="a limit",
            rival=Rival.LIMIT,
            target=Target(1.0),
            note=f"{_READS} reads, without those of the base table and of the list of regions",
        )


def _of_regions(proxy: Gateway) -> int:
    """Count the requests for objects of a region."""
    return sum(f"/{MEM_WAL_DIR}/" in line for line in proxy.taken())
