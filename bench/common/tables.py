"""Tables and rows of the benchmarks, and the writers of both sides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.mem_wal import ShardSnapshot, ShardWriter

import memwal
from memwal.format.paths import wal_dir
from memwal.region.manifest_store import read_manifests

DIMENSIONS = 128
NARROW = pa.schema(
    [pa.field("id", pa.int64()), pa.field("value", pa.float64()), pa.field("text", pa.string())]
)
WIDE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("vector", pa.list_(pa.float32(), DIMENSIONS)),
        pa.field("text", pa.string()),
    ]
)
SEARCHED = ("vector_idx", "text_idx")
MAINTAINED = ("id_idx", *SEARCHED)

MakeRows = Callable[[np.ndarray, int], pa.Table]
"""Makes rows of some keys, and of a seed."""

_WORDS = 20_000
_WORDS_PER_TEXT = 8
_PARTITIONS = 16
_SUB_VECTORS = 16
# A product quantizer is trained with at least 256 rows; more train it better.
_TRAINING_ROWS = 5_000


def create_narrow(
    path: Path | str,
    *,
    buckets: int | None = None,
    primary_key: str | None = "id",
    **options: Any,
) -> memwal.Table:
    """Make a table without indexes, of one region or of several buckets."""
    spec = (
        memwal.RegionSpec.unsharded()
        if buckets is None
        else memwal.RegionSpec.bucket("id", buckets)
    )
    return memwal.create(str(path), NARROW, primary_key=primary_key, region_spec=spec, **options)


def create_wide(path: Path | str, *, indexed: bool) -> memwal.Table:
    """Make a table with vectors and text; with a BTREE, an IVF_PQ and a text index if asked."""
    dataset = lance.write_dataset(wide_rows(_TRAINING_ROWS, -_TRAINING_ROWS), str(path))
    if indexed:
        index(dataset)
    return memwal.enable(
        str(path),
        region_spec=memwal.RegionSpec.unsharded(),
        primary_key=["id"],
        maintained_indexes=list(MAINTAINED) if indexed else [],
    )


def index(dataset: lance.LanceDataset) -> None:
    """Give a data set the indexes of :data:`MAINTAINED`."""
    dataset.create_scalar_index("id", "BTREE", name="id_idx")
    dataset.create_index(
        "vector",
        "IVF_PQ",
        name="vector_idx",
        num_partitions=_PARTITIONS,
        num_sub_vectors=_SUB_VECTORS,
    )
    dataset.create_scalar_index("text", "INVERTED", name="text_idx")


def write_in_pieces(
    uri: str, schema: pa.Schema, rows: int, make: MakeRows, *, piece: int
) -> lance.LanceDataset:
    """Write a data set with the keys from 0 on, so many rows in memory at a time."""
    starts = range(0, rows, piece)
    made = (make(np.arange(start, min(start + piece, rows)), start) for start in starts)
    batches = (batch for part in made for batch in part.to_batches())
    return lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches), uri)


def flush_generations(
    table: memwal.Table, rows: int, generations: int, fresh: int, make: MakeRows
) -> None:
    """Flush so many generations, half updates of the base table's ``rows`` and half new rows."""
    options = memwal.WriterOptions(max_memtable_rows=1 << 24, max_memtable_bytes=1 << 32)
    random = np.random.default_rng(1)
    with table.writer(options=options) as writer:
        for number in range(generations):
            first = rows + number * fresh
            ids = np.arange(first, first + fresh)
            updates = min(fresh // 2, rows)
            ids[:updates] = random.choice(rows, updates, replace=False)
            writer.upsert(make(ids, first))
            writer.flush()


def narrow_rows(count: int, start: int, *, padding: int = 0) -> pa.Table:
    """Rows with consecutive keys; ``padding`` makes their text longer."""
    ids = np.arange(start, start + count)
    pad = "." * padding
    text = [f"text {number}{pad}" for number in ids]
    return pa.table({"id": ids, "value": ids / 7, "text": text}, schema=NARROW)


def wide_rows(count: int, start: int) -> pa.Table:
    """Rows with consecutive keys, random vectors and texts of random words."""
    random = np.random.default_rng(start + _TRAINING_ROWS)
    vectors = random.random(count * DIMENSIONS, dtype=np.float32)
    # Squared, so that some words are frequent and most are rare, as in language.
    numbers = (random.random((count, _WORDS_PER_TEXT)) ** 2 * _WORDS).astype(np.int64)
    text = [" ".join(f"word{number}" for number in row) for row in numbers]
    return pa.table(
        {
            "id": np.arange(start, start + count),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIMENSIONS),
            "text": text,
        },
        schema=WIDE,
    )


def as_stored(rows: pa.Table, table: memwal.Table) -> pa.Table:
    """Rows in the very schema of the table, which Lance's writer asks for."""
    return rows.cast(table.schema)


def open_ours(table: memwal.Table, options: memwal.WriterOptions | None = None) -> Any:
    """Our writer, with its regions claimed already."""
    writer = table.writer(options=options)
    writer.claim()
    return writer


def open_native(table: memwal.Table, **options: Any) -> ShardWriter:
    """Lance's writer of the table's only region."""
    return lance.dataset(table.uri).mem_wal_writer(str(table.region_ids()[0]), **options)


def newest_entry(table: memwal.Table) -> bytes:
    """The bytes of the entry that the log of the table's only region got last."""
    store = table.location.store
    entries = list(store.list(wal_dir(table.region_ids()[0])))
    return store.get(max(entries, key=lambda entry: entry.modified).key)


def native_snapshots(table: memwal.Table) -> list[ShardSnapshot]:
    """What Lance's readers are told about a table's regions."""
    found = []
    for region_id, manifest in read_manifests(table.location.store).items():
        snapshot = ShardSnapshot(str(region_id)).with_spec_id(manifest.spec_id)
        snapshot = snapshot.with_current_generation(manifest.current_generation)
        for flushed in manifest.flushed:
            snapshot = snapshot.with_sstable(flushed.generation, flushed.path)
        found.append(snapshot)
    return found
