"""Key index of a generation: the newest row of each key, in key order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileWriter

from memwal.storage.location import TableLocation
from memwal.util.arrays import Positions

PAGE_ROWS = 8192

PAGES: Final = "page_data.lance"
DIRECTORY: Final = "page_lookup.lance"

_FILE_VERSION = "2.0"


@dataclass(frozen=True, slots=True, eq=False)
class NewestKeys:
    """Newest row of each key, found by one sort."""

    positions: Positions  # of the newest rows among all rows, ascending: the rows of the generation
    keys: pa.Array  # each key once, ascending
    rows: Positions  # number of the generation's row that has each key

    @classmethod
    def of(cls, keys: pa.Array) -> NewestKeys:
        """Find the newest row of each key, given one key per row, oldest row first.

        Of a table without a primary key, whose keys are nulls, these are all rows.
        """
        if pa.types.is_null(keys.type):
            every = np.arange(len(keys), dtype=np.int64)
            return cls(every, keys, every)
        # The sort is stable: among equal keys the newest comes last.
        order = pc.sort_indices(keys)
        ordered = keys.take(order)
        sorted_positions = order.to_numpy().astype(np.int64)
        is_newest = np.ones(len(keys), np.bool_)
        if len(keys) > 1:
            is_newest[:-1] = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
        if is_newest.all():
            return cls(np.arange(len(keys), dtype=np.int64), ordered, sorted_positions)
        sorted_positions = sorted_positions[is_newest]
        is_written = np.zeros(len(keys), np.bool_)
        is_written[sorted_positions] = True
        row_of = np.cumsum(is_written) - 1
        return cls(
            np.flatnonzero(is_written),
            ordered.filter(pa.array(is_newest)),
            row_of[sorted_positions],
        )


def write_key_index(
    location: TableLocation, folder: str, newest: NewestKeys
) -> dict[str, int | None]:
    """Write the key index of a generation, a BTREE from key to row number.

    Returns the bytes of each of its files by name. Raises OSError and ValueError of pylance.
    """
    keys = newest.keys
    data_schema = pa.schema(
        [pa.field("values", keys.type), pa.field("ids", pa.uint64(), nullable=False)]
    )
    first = np.arange(0, len(keys), PAGE_ROWS)
    rows = pa.array(newest.rows.view(np.uint64))
    pages = pa.RecordBatch.from_arrays([keys, rows], schema=data_schema)
    with _open_file(location, f"{folder}/{PAGES}", data_schema) as page_file:
        for start in first.tolist():
            page_file.write_batch(pages.slice(start, PAGE_ROWS))
    lookup_schema = pa.schema(
        [
            pa.field("min", keys.type),
            pa.field("max", keys.type),
            pa.field("null_count", pa.uint32(), nullable=False),
            pa.field("page_idx", pa.uint32(), nullable=False),
        ]
    )
    last = np.minimum(first + PAGE_ROWS, len(keys)) - 1
    bounds = keys.take(pa.array(np.concatenate([first, last])))
    lookup = pa.RecordBatch.from_arrays(
        [
            bounds.slice(0, len(first)),
            bounds.slice(len(first)),
            pa.array(np.zeros(len(first), dtype=np.uint32)),
            pa.array(np.arange(len(first), dtype=np.uint32)),
        ],
        schema=lookup_schema,
    )
    with _open_file(location, f"{folder}/{DIRECTORY}", lookup_schema) as directory:
        directory.add_schema_metadata("batch_size", str(PAGE_ROWS))
        directory.add_schema_metadata("range_partitioned", "false")
        directory.write_batch(lookup)
    return {PAGES: page_file.size_bytes, DIRECTORY: directory.size_bytes}


def _open_file(location: TableLocation, path: str, schema: pa.Schema) -> LanceFileWriter:
    return LanceFileWriter(
        location.child(path),
        schema,
        version=_FILE_VERSION,
        **location.lance_arguments(),
    )
