"""Our scans and merge beside pylance's own, in one run on one disk.

Usage: ``python bench/against_native.py [--rows N] [--folder DIR]``. Prints a table with a ratio per
line; a ratio above 1 means that ours is faster. The writer has a program of its own, ``writer.py``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import _tables as tables
import lance
import pyarrow as pa
from _measure import seconds
from lance.mem_wal import LsmScanner, ShardSnapshot
from rich.console import Console
from rich.table import Table as Screen

import memwal
from memwal.region.discovery import read_manifests

BATCH = 1_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        lines = measure(Path(folder), arguments.rows)
    screen = Screen("what", "ours", "native", "ratio", title=f"{arguments.rows:,} rows")
    for what, ours, native in lines:
        screen.add_row(what, f"{ours:,.3g} s", f"{native:,.3g} s", f"{native / ours:.2f}")
    Console().print(screen)


def measure(folder: Path, rows: int) -> list[tuple[str, float, float]]:
    """Lines of the table: what, and seconds of ours and of native."""
    table = tables.create_narrow(folder / "ours")
    batches = [
        tables.as_stored(tables.narrow_rows(min(BATCH, rows - at), at), table)
        for at in range(0, rows, BATCH)
    ]
    options = memwal.WriterOptions(max_memtable_rows=rows + 1, max_memtable_bytes=1 << 30)
    with tables.open_ours(table, options) as writer:
        for batch in batches:
            writer.upsert(batch)
    unmerged = (
        _best(lambda: table.scan().to_table()),
        _best(lambda: _native_scan(table).to_table()),
    )
    merged = seconds(table.merge)
    plain = lance.write_dataset(table.schema.empty_table(), str(folder / "plain"))
    source = pa.concat_tables(batches)
    upsert = plain.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    return [
        ("scan of one unmerged generation", *unmerged),
        (
            "merge, against merge_insert of the same rows from memory",
            merged,
            seconds(lambda: upsert.use_index(False).execute(source)),
        ),
        (
            "scan of the merged table, against plain Lance",
            _best(lambda: table.scan().to_table()),
            _best(lambda: lance.dataset(table.uri).to_table()),
        ),
    ]


def _native_scan(table: memwal.Table) -> LsmScanner:
    snapshots = []
    for region_id, manifest in read_manifests(table.location.store).items():
        snapshot = ShardSnapshot(str(region_id)).with_spec_id(manifest.spec_id)
        snapshot = snapshot.with_current_generation(manifest.current_generation)
        for flushed in manifest.flushed:
            snapshot = snapshot.with_sstable(flushed.generation, flushed.path)
        snapshots.append(snapshot)
    return LsmScanner.from_snapshots(lance.dataset(table.uri), snapshots)


def _best(call: Callable[[], object]) -> float:
    return min(seconds(call) for _ in range(5))


if __name__ == "__main__":
    main()
