"""Types of NumPy arrays, and operations on them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.generic)

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64]
"""Positions of rows, keys or entries."""
Hashes = npt.NDArray[np.uint64]
RowIds = npt.NDArray[np.uint64]
"""Lance's row ids, or addresses where a table has no stable ids."""
Addresses = npt.NDArray[np.uint64]
"""Row addresses: the fragment in the upper 32 bits, the row in it in the lower ones."""


def nbytes_of(record: object) -> int:
    """Return the memory of an array, or of all arrays of a dataclass or a tuple, in bytes."""
    if isinstance(record, tuple):
        return sum(map(nbytes_of, record))
    if is_dataclass(record):
        return sum(nbytes_of(getattr(record, field.name)) for field in fields(record))
    return int(getattr(record, "nbytes", 0))


def distinct(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the distinct values of an array of one dimension, ascending.

    NumPy's ``unique`` hashes integers before it sorts them, which takes 50 times as long for a
    million of them (NumPy 2.4).
    """
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]
