"""Sets of row ids as Lance's scanner takes them, and batches filtered or read by row id."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.reader.unreadable_indexes import scan_batches
from memwal.util.arrays import Mask, RowIds, distinct

# Portable roaring format without run containers.
_COOKIE = 12346
_MAX_ARRAY = 4096
# Rows are marked if their range is at most this many times their number.
_MOST_MARKS = 16


def encode_row_set(rows: RowIds) -> bytes:
    """Encode row ids as a roaring treemap, for allow and block lists of a Lance scanner."""
    ordered = distinct(np.asarray(rows, np.uint64))
    upper = (ordered >> np.uint64(32)).astype(np.uint32)
    runs = _runs(upper)
    parts = [struct.pack("<I", len(runs))]
    for start, stop in runs:
        bitmap = _bitmap((ordered[start:stop] & np.uint64(0xFFFFFFFF)).astype(np.uint32))
        parts += [struct.pack("<II", int(upper[start]), len(bitmap)), bitmap]
    return b"".join(parts)


def _bitmap(values: npt.NDArray[np.uint32]) -> bytes:
    chunk = values >> 16
    runs = _runs(chunk)
    headers, bodies = [], []
    for start, stop in runs:
        headers.append(struct.pack("<HH", int(chunk[start]), stop - start - 1))
        bodies.append(_container((values[start:stop] & 0xFFFF).astype("<u2")))
    first = 8 + 8 * len(runs)
    offsets = np.cumsum([first, *(len(body) for body in bodies[:-1])]).astype("<u4")
    head = struct.pack("<II", _COOKIE, len(runs))
    return b"".join([head, *headers, offsets.tobytes(), *bodies])


def _runs(ordered: npt.NDArray[np.integer]) -> list[tuple[int, int]]:
    """Return start and end of each run of equal values."""
    if not len(ordered):
        return []
    starts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist()]
    return list(zip(starts, [*starts[1:], len(ordered)], strict=True))


def _container(values: npt.NDArray[np.uint16]) -> bytes:
    if len(values) <= _MAX_ARRAY:
        return values.tobytes()
    bits = np.zeros(1 << 16, np.uint8)
    bits[values] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def contains(ordered: RowIds, rows: RowIds) -> Mask:
    """Return for each of ``rows`` whether it is in the ascending array ``ordered``."""
    if not len(ordered) or not len(rows):
        return np.zeros(len(rows), np.bool_)
    # A batch mostly covers a short range of the table: few of all ordered rows lie in it.
    low, high = rows.min(), rows.max()
    inside = ordered[np.searchsorted(ordered, low) : np.searchsorted(ordered, high, side="right")]
    if not len(inside):
        return np.zeros(len(rows), np.bool_)
    span = int(high) - int(low) + 1
    if span <= len(rows) * _MOST_MARKS:
        # To mark them by their distance takes a fraction of the time of a search.
        marks = np.zeros(span, np.bool_)
        marks[(inside - low).view(np.int64)] = True
        mask: Mask = marks[(rows - low).view(np.int64)]
    else:
        mask = inside[np.minimum(np.searchsorted(inside, rows), len(inside) - 1)] == rows
    return mask


ROW_ID: Final = "_rowid"

# Reading a row by its id takes as long as scanning some 70 rows of half a kilobyte, or more rows
# that are smaller.
_ROWS_PER_ID = 32


def group_batches(
    batches: Iterable[pa.RecordBatch], *, rows: int, max_bytes: int
) -> Iterator[list[pa.RecordBatch]]:
    """Group batches into lists with ``rows`` rows or ``max_bytes`` bytes; drop empty batches."""
    group: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        group.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= rows or size >= max_bytes:
            yield group
            group, count, size = [], 0, 0
    if group:
        yield group


def without_rows(batch: pa.RecordBatch, column: str, excluded: RowIds) -> pa.RecordBatch:
    """Drop the rows of a batch whose id in ``column`` is in ``excluded``, which is ascending."""
    found = contains(excluded, batch.column(column).to_numpy())
    return batch.filter(pa.array(~found)) if found.any() else batch


def read_rows(
    dataset: lance.LanceDataset,
    rows: RowIds,
    *,
    columns: Sequence[str],
    filter: str | None = None,
    with_row_address: bool = False,
    use_scalar_index: bool = True,
    **options: object,
) -> Iterator[pa.RecordBatch]:
    """Read rows by ids that pass ``filter``, in any order; many rows by a scan of all rows."""
    if not len(rows):
        return
    by_id = len(rows) * _ROWS_PER_ID <= dataset.count_rows()
    ordered = np.sort(rows)
    for batch in scan_batches(
        dataset,
        columns=list(columns),
        filter=filter,
        with_row_id=True,
        with_row_address=with_row_address,
        row_addr_allowlist=encode_row_set(ordered) if by_id else None,
        use_scalar_index=use_scalar_index,
        **options,
    ):
        if by_id:
            yield batch
            continue
        mask = contains(ordered, batch.column(ROW_ID).to_numpy())
        yield batch if mask.all() else batch.filter(pa.array(mask))
