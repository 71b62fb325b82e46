"""Second stage of a divided merge: find the rows of the base table that have a key of the run.

Each fragment belongs to one task, which reads its key columns, compares them with the keys that the
first stage stored, and writes a deletion file that no version names yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata

from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.paths import FRAG_REUSE_INDEX_NAME, INDICES_DIR
from memwal.jobs.merge.run_files import KeyFile, read_keys
from memwal.lsm.indexes.trust import doubted_indexes
from memwal.quality.checks import Mask
from memwal.reader.base_indexes import find_index
from memwal.reader.base_rows import Positions, scan_keys
from memwal.reader.key_index import page_hits
from memwal.reader.row_set import RowIds
from memwal.storage.location import TableLocation

if TYPE_CHECKING:
    from lance.lance.indices import IndexSegmentDescription

logger = logging.getLogger(__name__)

_OFFSET_BITS = np.uint64(32)
# An index has the value and the row of each key, and is read in pieces.
_MOST_READ = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchTask:
    """Fragments of one version that one worker compares with the keys of a run."""

    location: TableLocation
    version: int
    fragments: tuple[int, ...]
    keys: tuple[KeyFile, ...]
    key_bytes: int  # keys in memory at a time


@dataclass(frozen=True, slots=True)
class Match:
    """Fragment with rows that the merge replaces or deletes."""

    fragment: int
    changed: FragmentMetadata | None  # with a new deletion file; None if no row is left
    deleted: int  # rows whose key is deleted


def run_match_task(task: MatchTask) -> list[Match]:
    """Write a deletion file for each fragment that has any of the keys.

    Safe to repeat: a repetition writes other files.
    """
    base = open_base(task.location, version=task.version)
    chosen = frozenset(task.fragments)
    fragments = [f for f in base.dataset.get_fragments() if f.fragment_id in chosen]
    # Without stable row ids, a row id is the address of the row.
    addresses, deleted = [np.empty(0, np.uint64)], [np.empty(0, np.bool_)]
    with lance_errors(f"matching keys in {task.location}"):
        for files in _groups(task.keys, task.key_bytes):
            stored = [read_keys(base.location.store, file, base.primary_key) for file in files]
            keys = pa.concat_arrays([keys for keys, _ in stored])
            is_deleted = np.concatenate([deletes for _, deletes in stored])
            rows, positions = _addresses(base, keys, fragments)
            addresses.append(rows)
            deleted.append(is_deleted[positions])
        return _write_deletions(fragments, np.concatenate(addresses), np.concatenate(deleted))


def _write_deletions(
    fragments: Sequence[lance.LanceFragment], addresses: RowIds, deleted: Mask
) -> list[Match]:
    """Write the deletion files of the fragments that have any of the rows."""
    numbers = addresses >> _OFFSET_BITS
    matches = []
    for fragment in fragments:
        number = fragment.fragment_id
        own = numbers == number
        if own.any():
            changed = fragment.delete_rows(addresses[own].astype(np.uint32).tolist())
            matches.append(Match(number, changed, int(deleted[own].sum())))
    return matches


def _addresses(
    base: BaseTable, keys: pa.Array, fragments: Sequence[lance.LanceFragment]
) -> tuple[RowIds, Positions]:
    """Return the address of each row with one of the keys, and the position of its key.

    A segment of an index on the key is asked if that reads less than half of the keys of its
    fragments. The other fragments are scanned.
    """
    found, positions = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    left = {fragment.fragment_id: fragment for fragment in fragments}
    for segment in _segments(base):
        own = {number: left[number] for number in left.keys() & segment.fragment_ids}
        rows = sum(fragment.physical_rows for fragment in own.values())
        folder = f"{INDICES_DIR}/{segment.uuid}"
        try:
            hits = page_hits(base.location, folder, keys, most_rows=int(rows * _MOST_READ))
        except (CorruptDataError, ObjectNotFoundError) as error:
            logger.warning("%s; comparing all keys without it", error)
            continue
        if hits is None:
            continue
        is_live = _is_live(base, hits[0], own)
        found.append(hits[0][is_live])
        positions.append(hits[1][is_live])
        left = {number: fragment for number, fragment in left.items() if number not in own}
    if left:
        scanned = scan_keys(base, keys, list(left.values()))
        found.append(scanned[0])
        positions.append(scanned[1])
    return np.concatenate(found), np.concatenate(positions)


def _segments(base: BaseTable) -> Sequence[IndexSegmentDescription]:
    """Return the segments of the index on the key, if it may be used."""
    if len(base.primary_key) != 1:
        return ()
    (column,) = base.primary_key
    indexes = base.dataset.describe_indices()
    index = find_index(indexes, column, lambda kind: kind.finds_keys)
    if index is None or doubted_indexes(base):
        return ()
    # Its pages have rows where they were before a compaction, although it counts as covering the
    # new fragments: keys would be missed, and be in the table twice.
    if any(other.name == FRAG_REUSE_INDEX_NAME for other in indexes):
        return ()
    return index.segments


def _is_live(
    base: BaseTable, addresses: RowIds, fragments: Mapping[int, lance.LanceFragment]
) -> Mask:
    """Return which addresses are of rows of the fragments that are not deleted."""
    numbers = addresses >> _OFFSET_BITS
    is_live: Mask = np.isin(numbers, np.fromiter(fragments, np.uint64, len(fragments)))
    for number, fragment in fragments.items():
        own = numbers == number
        if fragment.num_deletions and own.any():
            scanner = base.dataset.scanner(columns=[], with_row_address=True, fragments=[fragment])
            live = scanner.to_table().column("_rowaddr").to_numpy()
            is_live[own] = np.isin(addresses[own], live)
    return is_live


def _groups(files: Sequence[KeyFile], most: int) -> Iterator[list[KeyFile]]:
    group: list[KeyFile] = []
    size = 0
    for file in files:
        if group and size + file.bytes > most:
            yield group
            group, size = [], 0
        group.append(file)
        size += file.bytes
    if group:
        yield group
