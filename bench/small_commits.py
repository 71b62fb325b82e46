"""What small upserts cost a Lance table, one commit each and through MemWAL.

    python bench/small_commits.py                   # 1,000 upserts of 10 rows: a minute
    python bench/small_commits.py --upserts 200 --json

Both begin with the same table, whose key has an index, and take the same upserts from one thread:
the plain one by ``merge_insert``, the other by a durable writer, and then one checkpoint.
Lance does not fsync; the writer does.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import memwal

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("delay", pa.float64())]
)
BASE_ROWS = 100_000
ROWS = 10
WINDOWS = 20


def rows(ids: np.ndarray) -> pa.Table:
    """Rows with these keys."""
    return pa.table(
        {"id": ids, "city": ["EWR"] * len(ids), "delay": ids.astype("float64")}, schema=SCHEMA
    )


def base(uri: str) -> lance.LanceDataset:
    """The table that both begin with."""
    dataset = lance.write_dataset(rows(np.arange(BASE_ROWS)), uri)
    dataset.create_scalar_index("id", "BTREE", name="id_idx")
    return dataset


def timed(upserts: int, write: Callable[[pa.Table], object]) -> list[float]:
    """Seconds of each upsert; half of the keys are new."""
    random = np.random.default_rng(0)
    seconds = []
    for _ in range(upserts):
        batch = rows(np.unique(random.integers(0, 2 * BASE_ROWS, ROWS)))
        started = time.perf_counter()
        write(batch)
        seconds.append(time.perf_counter() - started)
    return seconds


def plain(folder: Path, upserts: int) -> dict[str, Any]:
    """One commit for each upsert."""
    uri = str(folder / "plain.lance")
    dataset = base(uri)

    def write(batch: pa.Table) -> None:
        merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(batch)

    return {**summary(timed(upserts, write)), **stored(uri)}


def through_memwal(folder: Path, upserts: int) -> dict[str, Any]:
    """The log for each upsert, and one checkpoint."""
    uri = str(folder / "memwal.lance")
    base(uri)
    table = memwal.enable(
        uri,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.unsharded(),
        maintained_indexes=["id_idx"],
    )
    with table.writer() as writer:
        found = summary(timed(upserts, writer.upsert))
    started = time.perf_counter()
    table.checkpoint()
    found["checkpoint_seconds"] = time.perf_counter() - started
    return {**found, **stored(uri)}


def summary(seconds: list[float]) -> dict[str, Any]:
    """Medians, all in all and in windows one after another."""
    windows = np.array_split(np.array(seconds), min(WINDOWS, len(seconds)))
    return {
        "seconds": sum(seconds),
        "median_ms": 1e3 * float(np.median(seconds)),
        "windows_ms": [1e3 * float(np.median(window)) for window in windows],
    }


def stored(uri: str) -> dict[str, Any]:
    """What the table consists of, and how long it takes to read it."""
    files = [Path(at, name) for at, _, names in os.walk(uri) for name in names]
    dataset = lance.dataset(uri)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        lance.dataset(uri).to_table()
        times.append(time.perf_counter() - started)
    return {
        "versions": len(dataset.versions()),
        "fragments": len(dataset.get_fragments()),
        "files": len(files),
        "version_bytes": sum(f.stat().st_size for f in files if f.suffix == ".manifest"),
        "scan_ms": 1e3 * float(np.median(times)),
        "rows": dataset.count_rows(),
    }


def main() -> None:
    """Measure both, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--upserts", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        found: dict[str, Any] = {
            "upserts": options.upserts,
            "plain": plain(Path(scratch), options.upserts),
            "memwal": through_memwal(Path(scratch), options.upserts),
        }
    if found["plain"]["rows"] != found["memwal"]["rows"]:
        raise SystemExit(f"the tables differ: {found}")
    if options.json:
        print(json.dumps(found, indent=1))
        return
    names = [name for name in found["memwal"] if name != "windows_ms"]
    for name in names:
        shown = [found[side].get(name) for side in ("plain", "memwal")]
        print(
            f"{name:20}",
            *(f"{value:>14,.4g}" if value is not None else " " * 14 for value in shown),
        )


if __name__ == "__main__":
    main()
