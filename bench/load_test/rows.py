"""Rows that tell by themselves whether they are whole, and states of keys that only grow.

The vector and the text of a row follow from its key and from how often the key was written. The
state of a key is twice that count, and one more when the newest write deleted it: whatever happens,
states grow, so that two of them say what a reader may find between them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

import memwal
from memwal.region.router import Router

DIMENSIONS = 64
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("count", pa.int64()),
        pa.field("written", pa.float64()),
        pa.field("vector", pa.list_(pa.float32(), DIMENSIONS)),
        pa.field("text", pa.string()),
    ]
)
FIRST_STATE = 2
"""Of a key that was written once."""
ABSENT = -1
"""Stands for the count of a key that a reader did not find."""

_WORDS_PER_TEXT = 6
_BITS = 10
_POOL = np.random.default_rng(0).random((1 << _BITS, DIMENSIONS), dtype=np.float32)
# As many as the square of a choice reaches: some words are frequent and most are rare.
_WORDS = pa.array([f"word{number}" for number in range(1 << 12)])

Counts = NDArray[np.int64]


def rows_of(keys: Counts, counts: Counts, *, written: float) -> pa.Table:
    """The rows of these keys after so many writes, the last of them at this time."""
    mixed = _mixed(keys, counts)
    chosen = [_choice(mixed, number) for number in range(_WORDS_PER_TEXT)]
    words = [_WORDS.take(pa.array((choice * choice) >> 8)) for choice in chosen]
    vectors = _POOL[chosen[0]] + _POOL[chosen[-1]]
    return pa.table(
        {
            "id": keys,
            "count": counts,
            "written": np.full(len(keys), written),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSIONS),
            "text": pc.binary_join_element_wise(*words, " "),
        },
        schema=SCHEMA,
    )


def torn(rows: pa.Table) -> Counts:
    """Keys of rows whose vector or text is not that of their key and count."""
    keys, counts = rows["id"].to_numpy(), rows["count"].to_numpy()
    if not len(keys):
        return keys
    right = rows_of(keys, counts, written=0.0)
    texts = pc.fill_null(pc.equal(rows["text"], right["text"]), False).to_numpy()
    same = (_vectors(rows) == _vectors(right)).all(axis=1)
    return keys[~(same & texts)]


def impossible(
    found: Counts, low: Counts, high: Counts, *, absent_counts: bool = True
) -> NDArray[np.bool_]:
    """Which keys a reader must not find like this.

    Parameters
    ----------
    found : array
        Count of each key, or ``ABSENT``.
    low, high : array
        State that the key had for certain before the read, and the last one that was tried for
        when it was over.
    absent_counts : bool
        False where keys are left out for other reasons than that they are deleted.
    """
    present = found != ABSENT
    wrong = present & ((2 * found < low) | (2 * found > high))
    if absent_counts:
        wrong |= ~present & (high < _least_deleted(low))
    return wrong


def seen(found: Counts, low: Counts, *, absent_counts: bool = True) -> Counts:
    """Least state that the keys of a read have from now on; ``low`` as of :func:`impossible`."""
    gone = _least_deleted(low) if absent_counts else low
    return np.where(found != ABSENT, np.maximum(2 * found, low), gone)


def regions_of(table: memwal.Table, keys: int) -> tuple[list[object], Counts]:
    """The regions, and the position of the one of each key from 0 on."""
    _, spec = table.region_spec()
    router = Router(spec, table.schema)
    ids = [assignment.region_id for assignment in router.assignments() or ()]
    found = np.zeros(keys, dtype=np.int64)
    for assignment, part in router.route(pa.table({"id": np.arange(keys)})):
        found[part["id"].to_numpy()] = ids.index(assignment.region_id)
    return list(ids), found


def _least_deleted(low: Counts) -> Counts:
    """The first deleted state that is not below; the write that made ``low`` was no other one."""
    return np.where(low % 2 == 1, low, low + 3)


def _vectors(rows: pa.Table) -> NDArray[np.float32]:
    column = rows["vector"].combine_chunks()
    return column.flatten().to_numpy().reshape(-1, DIMENSIONS)


def _choice(mixed: NDArray[np.uint64], number: int) -> Counts:
    """A number of so many bits for each row."""
    mask = np.uint64((1 << _BITS) - 1)
    return ((mixed >> np.uint64(_BITS * number)) & mask).astype(np.int64)


def _mixed(keys: Counts, counts: Counts) -> NDArray[np.uint64]:
    """Bits that look random, of a key and a count."""
    bits = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits += counts.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))
