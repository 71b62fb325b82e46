"""Keys as one column, and the newest row of each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.format.keys import encode_composite_keys


def key_column(rows: pa.RecordBatch | pa.Table, primary_key: Sequence[str]) -> pa.Array:
    """One comparable value per row for its primary key, however many columns that has.

    A single key column is returned as it is; several become their order-preserving encoding.
    """
    columns = [_one_chunk(rows.column(name)) for name in primary_key]
    return columns[0] if len(columns) == 1 else encode_composite_keys(columns)


def newest_rows(keys: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Positions of the last occurrence of each key, ascending.

    Parameters
    ----------
    keys : pyarrow.Array
        One key per row, oldest row first.

    Returns
    -------
    numpy.ndarray of int64
        One position per distinct key.
    """
    encoded = keys.dictionary_encode()
    distinct = len(encoded.dictionary)
    if distinct == len(keys):
        return np.arange(len(keys), dtype=np.int64)
    newest = np.empty(distinct, dtype=np.int64)
    # Assignment in index order leaves the last position of each key in place.
    newest[encoded.indices.to_numpy(zero_copy_only=False)] = np.arange(len(keys), dtype=np.int64)
    newest.sort()
    return newest


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        combined = column.combine_chunks()
        return (
            pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
        )
    return column
