"""Tables whose size grows along one axis: base rows, regions, generations or bytes of a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import memwal
from memwal.region.hashing import bucket

DIMENSIONS = 8
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), DIMENSIONS)),
        pa.field("content", pa.binary()),
    ]
)

_PIECE_BYTES = 64 << 20
_ROWS_PER_WORD = 10
_ROWS_PER_PARTITION = 10_000
_SUB_VECTORS = 2
# What the columns beside the content take.
_NARROW_BYTES = 52
_CHANGED = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows of the base table, regions, unmerged generations of one region, and bytes of a row."""

    rows: int
    regions: int = 1
    generations: int = 1
    width: int = 100


def make(folder: Path, shape: Shape) -> None:
    """Make a table with three maintained indexes, all of it merged but one region's generations.

    Every region was written to before. A generation has 16 rows, half of them updates.
    """
    uri = str(folder)
    piece = max(min(_PIECE_BYTES // shape.width, shape.rows), 1)
    pieces = (
        np.arange(start, min(start + piece, shape.rows)) for start in range(0, shape.rows, piece)
    )
    reader = pa.RecordBatchReader.from_batches(SCHEMA, _batches(pieces, shape))
    _index(lance.write_dataset(reader, uri), shape)
    table = memwal.enable(
        uri,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", shape.regions),
        maintained_indexes=["id_idx", "vector_idx", "text_idx"],
    )
    with table.writer() as writer:
        writer.upsert(_rows(_one_of_each_bucket(shape), shape.rows, shape.width))
    table.merge()
    table.build_indexes()
    with table.writer() as writer:
        for number in range(shape.generations):
            writer.upsert(changed_rows(table, shape.regions, first=(number + 1) * _CHANGED))
            writer.flush()


def changed_rows(table: memwal.Table, regions: int, *, first: int) -> pa.Table:
    """Rows of the first bucket: half of them are in the base table, as wide as others there."""
    stored = lance.dataset(table.uri)
    count = stored.count_rows()
    (one,) = stored.take([0], columns=["content"])["content"].to_pylist()
    last = (first + _CHANGED) // 2
    ids = [_of_first_bucket(start, regions, last)[first // 2 :] for start in (0, 2 * count)]
    return _rows(np.concatenate(ids), count, len(one) + _NARROW_BYTES)


def _of_first_bucket(start: int, regions: int, count: int) -> np.ndarray:
    ids = np.arange(start, start + 4 * (count + _CHANGED) * regions)
    return ids[bucket(pa.array(ids), regions) == 0][:count]


def _one_of_each_bucket(shape: Shape) -> np.ndarray:
    ids = np.arange(shape.rows, shape.rows + 20 * shape.regions)
    _, first = np.unique(bucket(pa.array(ids), shape.regions), return_index=True)
    return ids[first]


def _batches(pieces: Iterator[np.ndarray], shape: Shape) -> Iterator[pa.RecordBatch]:
    for ids in pieces:
        yield from _rows(ids, shape.rows, shape.width).to_batches()


def _rows(ids: np.ndarray, rows: int, width: int) -> pa.Table:
    """Rows of some keys in a base table of so many rows; a word is in ten of them."""
    random = np.random.default_rng(int(ids[0]))
    vectors = random.random(len(ids) * DIMENSIONS, dtype=np.float32)
    words = pa.array(ids % max(rows // _ROWS_PER_WORD, 1)).cast(pa.string())
    bytes_ = max(width - _NARROW_BYTES, 1)
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * np.int32(bytes_)
    content = pa.py_buffer(random.bytes(len(ids) * bytes_))
    return pa.table(
        [
            pa.array(ids),
            pc.binary_join_element_wise("word", words, ""),
            pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIMENSIONS),
            pa.Array.from_buffers(pa.binary(), len(ids), [None, pa.py_buffer(offsets), content]),
        ],
        schema=SCHEMA,
    )


def _index(dataset: lance.LanceDataset, shape: Shape) -> None:
    dataset.create_scalar_index("id", "BTREE", name="id_idx")
    dataset.create_index(
        "vector",
        "IVF_PQ",
        name="vector_idx",
        num_partitions=max(shape.rows // _ROWS_PER_PARTITION, 1),
        num_sub_vectors=_SUB_VECTORS,
    )
    dataset.create_scalar_index("text", "INVERTED", name="text_idx", with_position=False)
