"""Speed of scans and lookups, each figure beside Lance's own reader and a merged table, in one run.

Usage: ``python bench/reader.py [--rows N] [--folder DIR] [--json]``. The base table has that many
rows, and eight regions hold four generations of an eightieth of them each, half of whose rows are
updates. Every side reads the same state and is open already; ours still asks storage for it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _tables as tables
import lance
import numpy as np
import pyarrow as pa
from _measure import Line, Target, interleaved, machine, milliseconds, rates, show
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner, ShardSnapshot

import memwal
from memwal.reader.lookup import look_up
from memwal.reader.sources import collect_sources
from memwal.region.discovery import read_manifests

_REGIONS = 8
_GENERATIONS = 4
_PIECE = 50_000
_SCANS = 5
_LOOKUPS = 40
_MANY = 1_000


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        where = machine(Path(scratch))
        lines = list(measured(Path(scratch), arguments.rows))
    if arguments.json:
        described = [line.as_dict() for line in lines]
        print(json.dumps({"machine": where, "rows": arguments.rows, "lines": described}, indent=2))
    else:
        show(lines, title=f"{arguments.rows:,} rows, {where}")


def measured(folder: Path, rows: int) -> Iterator[Line]:
    """Lines of the table."""
    table, plain = _tables(folder, rows)
    native = lance.dataset(table.uri)
    snapshots = _snapshots(table)
    yield from _scans(table, native, snapshots, plain, ["id", "vector", "text"], "all columns")
    yield from _scans(table, native, snapshots, plain, ["id"], "the key")
    yield from _lookups(table, native, snapshots, rows)


def _scans(
    table: memwal.Table,
    native: lance.LanceDataset,
    snapshots: list[ShardSnapshot],
    plain: lance.LanceDataset,
    columns: list[str],
    what: str,
) -> Iterator[Line]:
    expected = table.scan().count_rows()

    def count(batches: Any) -> None:
        found = sum(batch.num_rows for batch in batches)
        if found != expected:
            raise SystemExit(f"{found} rows were read instead of {expected}")

    taken = interleaved(
        {
            "ours": lambda _: count(table.scan(columns=columns).to_batches()),
            "native": lambda _: count(
                LsmScanner.from_snapshots(native, snapshots).project(columns).to_batches()
            ),
            "merged": lambda _: count(plain.scanner(columns=columns).to_batches()),
        },
        rounds=_SCANS,
    )
    for other, target in (("native", Target(0.9, at_least=True)), ("merged", None)):
        yield Line(
            name="scan",
            what=f"scan of {what}",
            ours=rates(expected, taken["ours"]),
            other=rates(expected, taken[other]),
            unit="rows/s",
            against=other,
            target=target,
        )


def _lookups(
    table: memwal.Table, native: lance.LanceDataset, snapshots: list[ShardSnapshot], rows: int
) -> Iterator[Line]:
    random = np.random.default_rng(0)
    wanted = random.integers(0, rows, (_LOOKUPS * 2, 1))
    many = random.choice(rows, min(_MANY, rows), replace=False)
    planner = LsmPointLookupPlanner(native, snapshots, pk_columns=["id"])

    def ours(keys: Any) -> None:
        found = look_up(collect_sources(table.location), pa.table({"id": pa.array(keys)}))
        if found.num_rows != len(keys):
            raise SystemExit(f"{found.num_rows} rows were found instead of {len(keys)}")

    def other(keys: Any) -> None:
        for key in keys:
            if planner.plan_lookup(pa.array([key])).to_table().num_rows != 1:
                raise SystemExit(f"key {key} was not found")

    taken = interleaved(
        {"ours": lambda n: ours(wanted[n]), "native": lambda n: other(wanted[n])},
        rounds=1,
        block=_LOOKUPS,
    )
    yield Line(
        name="lookup",
        what="lookup of one key",
        ours=milliseconds(taken["ours"]),
        other=milliseconds(taken["native"]),
        unit="ms",
        against="native",
        target=Target(1.2),
        note="ours with the collection of the sources",
    )
    taken = interleaved({"ours": lambda _: ours(many), "native": lambda _: other(many)}, rounds=2)
    yield Line(
        name="lookup",
        what=f"lookup of {len(many):,} keys",
        ours=milliseconds(taken["ours"]),
        other=milliseconds(taken["native"]),
        unit="ms",
        against="native, one by one",
        target=Target(1 / 20),
    )


def _tables(folder: Path, rows: int) -> tuple[memwal.Table, lance.LanceDataset]:
    """A table with a backlog, and its rows in one plain table."""
    uri = str(folder / "table")
    pieces = range(0, rows, _PIECE)
    made = (tables.wide_rows(min(_PIECE, rows - start), start) for start in pieces)
    base = lance.write_dataset(_batches(made), uri, schema=tables.WIDE)
    base.create_scalar_index("id", "BTREE")
    table = memwal.enable(
        uri, region_spec=memwal.RegionSpec.bucket("id", _REGIONS), primary_key=["id"]
    )
    fresh = max(rows // 80, 1) * _REGIONS
    options = memwal.WriterOptions(max_memtable_rows=1 << 24, max_memtable_bytes=1 << 32)
    random = np.random.default_rng(1)
    with table.writer(options=options) as writer:
        for number in range(_GENERATIONS):
            data = tables.wide_rows(fresh, rows + number * fresh)
            old = random.choice(rows, fresh // 2, replace=False)
            ids = np.concatenate([old, data["id"].to_numpy()[fresh // 2 :]])
            writer.upsert(data.set_column(0, tables.WIDE.field("id"), pa.array(ids)))
            writer.flush()
    merged = table.scan().to_reader()
    return table, lance.write_dataset(merged, str(folder / "merged"), schema=merged.schema)


def _batches(made: Iterator[pa.Table]) -> pa.RecordBatchReader:
    batches = (batch for rows in made for batch in rows.to_batches())
    return pa.RecordBatchReader.from_batches(tables.WIDE, batches)


def _snapshots(table: memwal.Table) -> list[ShardSnapshot]:
    found = []
    for region_id, manifest in read_manifests(table.location.store).items():
        snapshot = ShardSnapshot(str(region_id)).with_spec_id(manifest.spec_id)
        snapshot = snapshot.with_current_generation(manifest.current_generation)
        for flushed in manifest.flushed:
            snapshot = snapshot.with_sstable(flushed.generation, flushed.path)
        found.append(snapshot)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the base table")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
