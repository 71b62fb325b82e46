"""Find the newest row of each key.

The rows write their positions into a table, each into the slot of its key's hash, in the order of
age: the last one stays. A row that is not there any more is replaced if the one that is has the
same key; otherwise another key has the slot, and the row has another try with other bits of the
hash. pyarrow's ``dictionary_encode``, which decides about what is left after that, takes several
times as long, for text most of all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.format.values import is_binary, is_text
from memwal.lsm.key_hashes import ROUNDS, hash_ends, hash_tails, mixed, slots
from memwal.util.arrays import Mask, Positions

Rows = npt.NDArray[np.int32]

# pyarrow decides about fewer rows as quickly.
_MIN_ROWS = 1 << 12
_MAX_ROWS = (1 << 31) - 1


def newest_row_positions(keys: pa.Array) -> Positions:
    """Return the positions of the last occurrence of each key, ascending.

    ``keys`` are those that :func:`memwal.region.rows.key_column` returns.
    """
    is_number = pa.types.is_integer(keys.type)
    is_hashed = is_number or is_text(keys.type) or is_binary(keys.type)
    if not is_hashed or keys.null_count or not _MIN_ROWS <= len(keys) <= _MAX_ROWS:
        return _by_dictionary(keys)
    hashes = hash_tails(keys) if is_number else hash_ends(keys)
    left = np.arange(len(keys), dtype=np.int32)
    newest = []
    for factor in ROUNDS:
        table = np.empty(2 << len(left).bit_length(), np.int32)
        at = slots(mixed(hashes[left], factor), table)
        # Positions are assigned in order, so the last position of each slot stays. All rows of a
        # key have the same slot.
        table[at] = left
        last = table[at]
        is_last = last == left
        newest.append(left[is_last])
        left, last = left[~is_last], last[~is_last]
        is_replaced = hashes[left] == hashes[last]
        if not is_number:
            is_replaced[is_replaced] = _are_equal(keys, left[is_replaced], last[is_replaced])
        left = left[~is_replaced]
    if len(left):
        newest.append(left[_by_dictionary(keys.take(pa.array(left)))])
    return np.sort(np.concatenate(newest)).astype(np.int64)


def _are_equal(keys: pa.Array, some: Rows, others: Rows) -> Mask:
    same = pc.equal(keys.take(pa.array(some)), keys.take(pa.array(others)))
    mask: Mask = same.to_numpy(zero_copy_only=False)
    return mask


def _by_dictionary(keys: pa.Array) -> Positions:
    encoded = keys.dictionary_encode()
    distinct = len(encoded.dictionary)
    if distinct == len(keys):
        return np.arange(len(keys), dtype=np.int64)
    newest = np.empty(distinct, dtype=np.int64)
    # Positions are assigned in order, so the last position of each key stays.
    newest[encoded.indices.to_numpy(zero_copy_only=False)] = np.arange(len(keys), dtype=np.int64)
    newest.sort()
    return newest
