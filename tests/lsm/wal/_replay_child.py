"""Writes a log and replays it in a process of its own; prints how far its memory grew, and rows."""

import os
import sys
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa

from memwal.format.paths import wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_encoder import EntryEncoder
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.claim import claim_region
from memwal.lsm.wal.replay import replay
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.open import open_store

REGION = UUID(int=1)
BUDGET = 8 << 20
WIDTH = 400
SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), pa.field("data", pa.binary(WIDTH))]
)


def main(folder: Path, rows: int, rows_per_entry: int, generations: int) -> None:
    row_schema = RowSchema(SCHEMA, ["id"])
    store = open_store(folder, durable=False)
    if os.fork() == 0:
        write(folder, row_schema, rows, rows_per_entry, generations)
        os._exit(0)
    _, status = os.wait()
    if status:
        raise SystemExit("the log was not written")
    claim = claim_region(store, REGION)
    before = peak()
    seen = 0
    for found in replay(store, claim, row_schema=row_schema, max_bytes=BUDGET):
        keys = found.contents.keys()
        passed = sum(batch.num_rows for batch in found.contents.batches())
        if not len(keys) == passed == found.rows:
            raise SystemExit(f"{len(keys)} keys, {passed} rows, {found.rows} expected")
        seen += passed
        del keys, found
    print(peak() - before, seen)


def write(
    folder: Path, row_schema: RowSchema, rows: int, rows_per_entry: int, generations: int
) -> None:
    store = open_store(folder, durable=False)
    RegionManifestStore(store, REGION).commit(
        RegionManifest(region_id=REGION, version=1, writer_epoch=1)
    )
    entries = rows // rows_per_entry
    encoder = EntryEncoder(row_schema.schema, writer_epoch=1, writer_id="other")
    for number in range(entries):
        first = number * rows_per_entry
        data = np.random.default_rng(number).bytes(WIDTH * rows_per_entry)
        table = pa.table(
            {
                "id": [f"key-{key:012}" for key in range(first, first + rows_per_entry)],
                "data": pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(WIDTH), rows_per_entry, [None, pa.py_buffer(data)]
                ),
            },
            SCHEMA,
        )
        generation = 1 + number * generations // entries
        entry = encoder.encode(row_schema.convert_upserts(table), generation=generation)
        store.create(wal_key(REGION, number + 1), memoryview(entry.data))


def peak() -> int:
    """Not getrusage: its peak is that of the process that started this one."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
