"""Batches of a scan: joined, thinned out, or of rows that are known by their ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from memwal.reader.row_set import RowIds, contains, encode_row_set

if TYPE_CHECKING:
    import lance

ROW_ID: Final = "_rowid"

# Reading a row by its id takes as long as passing over some 70 rows of half a kilobyte, and
# over more rows that are smaller.
_ROWS_PER_ID = 32


def gathered(
    batches: Iterable[pa.RecordBatch], *, rows: int, max_bytes: int
) -> Iterator[list[pa.RecordBatch]]:
    """Batches in lists that have so many rows, or so many bytes, together; empty ones go."""
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= rows or size >= max_bytes:
            yield held
            held, count, size = [], 0, 0
    if held:
        yield held


def without_rows(batch: pa.RecordBatch, column: str, unwanted: RowIds) -> pa.RecordBatch:
    """The rows of a batch that are not among others.

    Parameters
    ----------
    column : str
        Has the row ids of the batch.
    unwanted : numpy.ndarray of uint64
        Ascending.
    """
    rows = batch.column(column).to_numpy()
    if not len(rows):
        return batch
    # A batch mostly is a short stretch of the table: few of all unwanted rows lie in it.
    first = np.searchsorted(unwanted, rows.min())
    last = np.searchsorted(unwanted, rows.max(), side="right")
    if first == last:
        return batch
    return batch.filter(pa.array(~contains(unwanted[first:last], rows)))


def read_rows(
    dataset: lance.LanceDataset,
    rows: RowIds,
    *,
    columns: Sequence[str],
    filter: str | None = None,
    with_row_address: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Rows by their ids, as a stream; by passing over all rows where many of them are wanted.

    Parameters
    ----------
    rows : numpy.ndarray of uint64
        Row ids in any order, which is not kept.
    filter : str, optional
        SQL predicate that they have to pass as well.
    """
    if not len(rows):
        return
    few = len(rows) * _ROWS_PER_ID <= dataset.count_rows()
    wanted = np.sort(rows)
    scanner = dataset.scanner(
        columns=list(columns),
        filter=filter,
        with_row_id=True,
        with_row_address=with_row_address,
        row_addr_allowlist=encode_row_set(wanted) if few else None,
    )
    for batch in scanner.to_batches():
        if few:
            yield batch
            continue
        kept = contains(wanted, batch.column(ROW_ID).to_numpy())
        yield batch if kept.all() else batch.filter(pa.array(kept))
