"""Our writer, reader and merge beside pylance's own, in one run on one disk.

Usage: ``python bench/against_native.py [--rows N] [--folder DIR]``. Prints a table with a ratio per
line; a ratio above 1 means that ours is faster. The native writer does not fsync, ours does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
from lance.mem_wal import LsmScanner, ShardSnapshot
from rich.console import Console
from rich.table import Table as Screen

import memwal
from memwal.region.discovery import read_manifests

SCHEMA = pa.schema(
    [pa.field("id", pa.int64()), pa.field("value", pa.float64()), pa.field("text", pa.string())]
)
BATCH = 1_000
SINGLES = 500


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        lines = measure(Path(folder), arguments.rows)
    screen = Screen("what", "ours", "native", "ratio", title=f"{arguments.rows:,} rows")
    for what, ours, native, unit, higher_is_better in lines:
        ratio = ours / native if higher_is_better else native / ours
        screen.add_row(what, f"{ours:,.3g} {unit}", f"{native:,.3g} {unit}", f"{ratio:.2f}")
    Console().print(screen)


def measure(folder: Path, rows: int) -> list[tuple[str, float, float, str, bool]]:
    """Lines of the table: what, ours, native, unit, and whether more is better."""
    ours, native = _table(folder / "ours"), _table(folder / "native")
    stored = native.schema
    singles = [_rows(1, at).cast(stored) for at in range(SINGLES)]
    batches = [_rows(BATCH, at).cast(stored) for at in range(0, rows, BATCH)]
    options = memwal.WriterOptions(max_memtable_rows=rows + BATCH, max_memtable_bytes=1 << 30)
    writer = ours.writer(options=options)
    writer.claim()
    shard = lance.dataset(native.uri).mem_wal_writer(
        str(native.region_ids()[0]), max_wal_flush_interval_ms=1, max_memtable_rows=rows + BATCH
    )
    lines = [
        (
            "durable write of 1 row, median",
            _median_ms(writer.upsert, singles),
            _median_ms(shard.put, singles),
            "ms",
            False,
        ),
        (
            f"writes of {BATCH:,} rows",
            rows / _seconds(lambda: [writer.upsert(batch) for batch in batches]),
            rows / _seconds(lambda: [shard.put(batch) for batch in batches]),
            "rows/s",
            True,
        ),
        ("flush and close", _seconds(writer.close), _seconds(shard.close), "s", False),
        (
            "scan of one unmerged generation",
            _best(lambda: ours.scan().to_table()),
            _best(lambda: _native_scan(ours).to_table()),
            "s",
            False,
        ),
    ]
    merged = _seconds(ours.merge)
    plain = lance.write_dataset(stored.empty_table(), str(folder / "plain"))
    source = pa.concat_tables(batches)
    upsert = plain.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    lines.append(
        (
            "merge, against merge_insert of the same rows from memory",
            merged,
            _seconds(lambda: upsert.use_index(False).execute(source)),
            "s",
            False,
        )
    )
    lines.append(
        (
            "scan of the merged table, against plain Lance",
            _best(lambda: ours.scan().to_table()),
            _best(lambda: lance.dataset(ours.uri).to_table()),
            "s",
            False,
        )
    )
    return lines


def _table(path: Path) -> memwal.Table:
    return memwal.create(
        str(path), SCHEMA, primary_key=["id"], region_spec=memwal.RegionSpec.unsharded()
    )


def _rows(count: int, start: int) -> pa.Table:
    ids = np.arange(start, start + count)
    return pa.table(
        {"id": ids, "value": ids / 7, "text": [f"text {number}" for number in ids]}, schema=SCHEMA
    )


def _native_scan(table: memwal.Table) -> LsmScanner:
    snapshots = []
    for region_id, manifest in read_manifests(table.location.store).items():
        snapshot = ShardSnapshot(str(region_id)).with_spec_id(manifest.spec_id)
        snapshot = snapshot.with_current_generation(manifest.current_generation)
        for flushed in manifest.flushed:
            snapshot = snapshot.with_sstable(flushed.generation, flushed.path)
        snapshots.append(snapshot)
    return LsmScanner.from_snapshots(lance.dataset(table.uri), snapshots)


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _best(call: Callable[[], object]) -> float:
    return min(_seconds(call) for _ in range(5))


def _median_ms(write: Callable[[pa.Table], object], batches: Sequence[pa.Table]) -> float:
    return 1e3 * float(np.median([_seconds(lambda b=batch: write(b)) for batch in batches]))


if __name__ == "__main__":
    main()
