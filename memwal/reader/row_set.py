"""Sets of rows in the form in which Lance's scanner takes them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

RowIds = np.ndarray[Any, np.dtype[np.uint64]]

# The portable form of a roaring bitmap without runs.
_COOKIE = 12346
_MAX_ARRAY = 4096


def encode_row_set(rows: RowIds) -> bytes:
    """Encode row ids as a serialized treemap: one roaring bitmap per upper half of the ids.

    Parameters
    ----------
    rows : numpy.ndarray of uint64
        Row ids in any order.

    Returns
    -------
    bytes
        For ``row_addr_allowlist`` and ``row_addr_blocklist`` of a Lance scanner, which apply
        before anything is ranked.
    """
    ordered = np.unique(np.asarray(rows, np.uint64))
    upper = (ordered >> np.uint64(32)).astype(np.uint32)
    runs = _runs(upper)
    parts = [struct.pack("<I", len(runs))]
    for start, stop in runs:
        bitmap = _bitmap((ordered[start:stop] & np.uint64(0xFFFFFFFF)).astype(np.uint32))
        parts += [struct.pack("<II", int(upper[start]), len(bitmap)), bitmap]
    return b"".join(parts)


def _bitmap(values: np.ndarray[Any, np.dtype[np.uint32]]) -> bytes:
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


def _runs(ordered: np.ndarray[Any, np.dtype[np.integer[Any]]]) -> list[tuple[int, int]]:
    """Where each stretch of equal values begins and ends."""
    if not len(ordered):
        return []
    starts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist()]
    return list(zip(starts, [*starts[1:], len(ordered)], strict=True))


def _container(values: np.ndarray[Any, np.dtype[np.uint16]]) -> bytes:
    if len(values) <= _MAX_ARRAY:
        return values.tobytes()
    bits = np.zeros(1 << 16, np.uint8)
    bits[values] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def contains(ordered: RowIds, rows: RowIds) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each of some rows is in an ascending array."""
    if not len(ordered):
        return np.zeros(len(rows), np.bool_)
    at = np.minimum(np.searchsorted(ordered, rows), len(ordered) - 1)
    found: np.ndarray[Any, np.dtype[np.bool_]] = ordered[at] == rows
    return found
