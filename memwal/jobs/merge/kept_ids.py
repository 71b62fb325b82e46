"""Stable row ids in a divided merge: a row that is replaced keeps its id.

In a table with stable row ids, the rows can be written only after their keys were matched. So the
first stage stores the keys alone; the second one tells which row has which key, and stores the ids
of these rows beside the keys; and a stage of its own writes the rows: those that replace others
first, with the ids of those, then the new ones, which get theirs in the commit.

Each file of ids belongs to the keys of one task of the first stage. The matches of each fragment
have a checksum of the ids. If a commit of somebody else changes fragments and they are matched
again, rows are written again only for keys whose checksum changed: a compaction changes none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata, RowIdSequence

from memwal.jobs.merge.run_files import read_stored, run_dir, write_stored
from memwal.lsm.key_hashes import hash_rows
from memwal.reader.latest import ROW_ADDRESS
from memwal.reader.row_set import ROW_ID
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore
from memwal.util.arrays import Mask, RowIds, distinct

_SCHEMA = pa.schema([("fragment", pa.uint32()), ("position", pa.int64()), ("row_id", pa.uint64())])
MATCHED = pa.schema(
    [
        ("address", pa.uint64()),
        ("keys", pa.int64()),
        ("position", pa.int64()),
        ("deleted", pa.bool_()),
    ]
)
"""Rows of the base table that have one of the keys of a merge.

``keys`` is the number of the task that has the key, ``position`` its place among those of the task,
and ``deleted`` tells whether the key is deleted.
"""


@dataclass(frozen=True, slots=True)
class KeptIds:
    """Ids of the rows of one fragment that have keys of one task."""

    keys: int  # number of the task
    fragment: int
    path: str  # of a file that may have other fragments as well
    checksum: int  # equal for the same ids of the same keys, whatever fragment they are in


def store_ids(
    location: TableLocation,
    run_id: UUID,
    number: int,
    fragments: Sequence[lance.LanceFragment],
    matched: pa.Table,
) -> dict[int, tuple[KeptIds, ...]]:
    """Store the ids of matched rows, and return the stored files of each fragment.

    ``number`` is that of the match task. A repetition of the task replaces its files.
    """
    addresses, positions, task_of = (
        matched.column(name).to_numpy() for name in ("address", "position", "keys")
    )
    numbers = (addresses >> np.uint64(32)).astype(np.uint32)
    ids = _stable_ids(fragments, addresses, numbers)
    ids_by_fragment: dict[int, tuple[KeptIds, ...]] = {}
    for keys in distinct(task_of).tolist():
        own = np.flatnonzero(task_of == keys)
        columns = [pa.array(part[own]) for part in (numbers, positions, ids)]
        path = f"{run_dir(run_id)}/ids-{keys}-{number}.arrow"
        write_stored(location, path, pa.Table.from_arrays(columns, schema=_SCHEMA))
        hashes = hash_rows(columns[1:])
        for fragment in distinct(numbers[own]).tolist():
            checksum = int(hashes[numbers[own] == fragment].sum())
            part = KeptIds(keys, fragment, path, checksum)
            ids_by_fragment[fragment] = (*ids_by_fragment.get(fragment, ()), part)
    return ids_by_fragment


def read_ids(store: ObjectStore, kept: Sequence[KeptIds], count: int) -> tuple[RowIds, Mask]:
    """Return the row id of each of the ``count`` keys of a task, and which keys have one."""
    ids = np.zeros(count, np.uint64)
    is_kept = np.zeros(count, np.bool_)
    fragments = defaultdict(list)
    for part in kept:
        fragments[part.path].append(part.fragment)
    for path, numbers in fragments.items():
        table = read_stored(store, path)
        own = table.filter(pc.is_in(table.column("fragment"), pa.array(numbers, pa.uint32())))
        positions = own.column("position").to_numpy()
        ids[positions] = own.column("row_id").to_numpy()
        is_kept[positions] = True
    return ids, is_kept


def with_ids(fragments: Sequence[FragmentMetadata], ids: RowIds) -> list[FragmentMetadata]:
    """Return new fragments whose first rows, over all of them, have these ids.

    The commit gives the other rows ids of their own.
    """
    identified = []
    start = 0
    for fragment in fragments:
        own = ids[start : start + fragment.physical_rows]
        start += fragment.physical_rows
        # Without any id, it is a fragment of new rows.
        meta = RowIdSequence(pa.array(own)).to_inline_metadata() if len(own) else None
        identified.append(replace(fragment, row_id_meta=meta))
    return identified


def _stable_ids(
    fragments: Sequence[lance.LanceFragment], addresses: RowIds, numbers: npt.NDArray[np.uint32]
) -> RowIds:
    ids = np.zeros(len(addresses), np.uint64)
    for fragment in fragments:
        own = np.flatnonzero(numbers == fragment.fragment_id)
        if not len(own):
            continue
        rows = fragment.scanner(columns=[], with_row_id=True, with_row_address=True).to_table()
        stored = rows.column(ROW_ADDRESS).to_numpy()
        order = np.argsort(stored)
        at = order[np.searchsorted(stored, addresses[own], sorter=order)]
        ids[own] = rows.column(ROW_ID).to_numpy()[at]
    return ids
