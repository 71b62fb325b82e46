"""Second stage of a divided merge: find the rows of the base table that have a key of the run.

Each fragment belongs to one task, which reads its key columns, compares them with the keys that the
first stage stored, and writes a deletion file that no version names yet.

Where that takes long because every task reads all keys of the backlog, the stage is preceded by
another one: each of its tasks compares some fragments with a part of the keys only, and stores the
rows that it finds in the folder of the run. The tasks of the fragments then read what was stored.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata

from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.paths import INDICES_DIR
from memwal.jobs.merge.kept_ids import MATCHED, KeptIds, store_ids
from memwal.jobs.merge.key_bounds import KeyBounds
from memwal.jobs.merge.run_files import KeyFile, read_keys, read_stored, run_dir, write_stored
from memwal.lsm.indexes.catchup import group_fragments, segment_location
from memwal.reader.base_rows import key_segments, scan_keys
from memwal.reader.latest import ROW_ADDRESS
from memwal.reader.sources.key_index import PageHits, page_hits
from memwal.storage.location import TableLocation
from memwal.util.arrays import Mask, Positions, RowIds
from memwal.util.concurrency import map_parallel

logger = logging.getLogger(__name__)

_OFFSET_BITS = np.uint64(32)
# An index has the value and the row of each key, and is read in pieces.
_MOST_READ = 0.5
# Below it, pages are read faster than Lance joins all keys.
_SMALL_FRACTION = 1 / 8
# Below it, keys are compared in less time than Lance takes to join all.
_POSSIBLE_FRACTION = 1 / 4
# Without an index, Lance joins fewer rows in about the time that it takes to read bounds.
_MANY_ROWS = 1 << 20
# A task with fewer rows to compare takes less time than it takes to start it.
MIN_TASK_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchTask:
    """Fragments of one version that one worker compares with keys of a run."""

    location: TableLocation
    version: int
    run_id: UUID
    number: int
    fragments: tuple[int, ...]
    keys: tuple[KeyFile, ...]
    key_bytes: int  # keys in memory at a time
    # Files with the rows that tasks of an earlier stage found, each by a part of the keys.
    found: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Match:
    """Fragment with rows that the merge replaces or deletes."""

    fragment: int
    changed: FragmentMetadata | None  # with a new deletion file; None if no row is left
    deleted: int  # rows whose key is deleted
    kept: tuple[KeptIds, ...] = ()  # in a table with stable row ids


@dataclass(frozen=True, slots=True)
class TaskMatches:
    """Matches in the fragments of a task, and the bytes that it read and wrote."""

    matches: tuple[Match, ...]
    bytes_read: int
    bytes_written: int


def divide_match(
    fragments: Mapping[int, int], keys: Sequence[KeyFile], *, max_tasks: int, key_bytes: int
) -> tuple[tuple[tuple[int, ...], ...], list[tuple[KeyFile, ...]]]:
    """Divide the fragments and the keys so that the longest task takes least.

    Each part of the fragments is compared with each part of the keys. ``fragments`` has the rows of
    each. A task reads its keys once, and those of its fragments once for each ``key_bytes`` of its
    keys; to read and compare either takes about as long. With one part of the keys, the tasks write
    the deletion files too.
    """
    rows, key_rows = sum(fragments.values()), sum(file.rows for file in keys)
    size = sum(file.bytes for file in keys)

    def parts_of_rows(of_keys: int) -> int:
        return max(min(max_tasks // of_keys, -(-rows // MIN_TASK_ROWS), len(fragments)), 1)

    def longest(of_keys: int) -> float:
        share = -(-len(keys) // of_keys) / max(len(keys), 1)
        passes = max(math.ceil(share * size / key_bytes), 1)
        own = -(-len(fragments) // parts_of_rows(of_keys)) * rows / max(len(fragments), 1)
        # More than one part of the keys takes one stage more.
        return passes * own + share * key_rows + (MIN_TASK_ROWS if of_keys > 1 else 0)

    of_keys = min(range(1, max(min(max_tasks, len(keys)), 1) + 1), key=longest)
    by_number = {file.number: file for file in keys}
    groups = group_fragments([(file.number, file.rows) for file in keys], groups=of_keys)
    return (
        group_fragments(list(fragments.items()), groups=parts_of_rows(of_keys)),
        [tuple(by_number[number] for number in group) for group in groups],
    )


def run_match_task(task: MatchTask) -> TaskMatches:
    """Write a deletion file for each fragment that has any of the keys, or found rows.

    Safe to repeat: a repetition writes other files.
    """
    base = open_base(task.location, version=task.version)
    with lance_errors(f"matching keys in {task.location}"):
        fragments = _fragments(base, task.fragments)
        if task.found:
            parts = [read_stored(base.location.store, path) for path in task.found]
            matched, index_bytes = pa.concat_tables(parts), 0
        else:
            matched, index_bytes = _find(base, task, fragments)
        ids_by_fragment: Mapping[int, tuple[KeptIds, ...]] = {}
        if base.dataset.has_stable_row_ids:
            ids_by_fragment = store_ids(base.location, task.run_id, task.number, fragments, matched)
        matches = write_deletions(fragments, matched, ids_by_fragment)
    counted = base.dataset.io_stats_snapshot()
    return TaskMatches(matches, counted.read_bytes + index_bytes, counted.written_bytes)


def run_find_task(task: MatchTask) -> tuple[str, int]:
    """Store the rows that have any of the keys; return the file, and the bytes that were read.

    Safe to repeat: a repetition stores the same rows.
    """
    base = open_base(task.location, version=task.version)
    with lance_errors(f"matching keys in {task.location}"):
        matched, index_bytes = _find(base, task, _fragments(base, task.fragments))
    path = f"{run_dir(task.run_id)}/matched-{task.number}.arrow"
    write_stored(task.location, path, matched)
    return path, base.dataset.io_stats_snapshot().read_bytes + index_bytes


def _fragments(base: BaseTable, numbers: Sequence[int]) -> list[lance.LanceFragment]:
    chosen = frozenset(numbers)
    return [f for f in base.dataset.get_fragments() if f.fragment_id in chosen]


def _find(
    base: BaseTable, task: MatchTask, fragments: Sequence[lance.LanceFragment]
) -> tuple[pa.Table, int]:
    """Return the rows of fragments that have one of the keys, and the bytes read of indexes."""
    parts = [MATCHED.empty_table()]
    index_bytes = 0
    for files in _groups(task.keys, task.key_bytes):
        stored = map_parallel(
            lambda file: read_keys(base.location.store, file, base.primary_key), files
        )
        keys = pa.concat_arrays([keys for keys, _ in stored])
        rows, at, read = _addresses(base, keys, fragments)
        index_bytes += read
        starts = np.cumsum([0, *(len(keys) for keys, _ in stored)])
        file_of = np.searchsorted(starts, at, side="right") - 1
        numbers = np.array([file.number for file in files])
        deleted = np.concatenate([deletes for _, deletes in stored])
        columns = (rows, numbers[file_of], at - starts[file_of], deleted[at])
        parts.append(pa.Table.from_arrays(list(map(pa.array, columns)), schema=MATCHED))
    return pa.concat_tables(parts), index_bytes


def write_deletions(
    fragments: Sequence[lance.LanceFragment],
    matched: pa.Table,
    ids_by_fragment: Mapping[int, tuple[KeptIds, ...]],
) -> tuple[Match, ...]:
    """Write the deletion files of the fragments that have any of the rows.

    In a table with stable row ids, the stored ids of the rows of each fragment go with them.
    """
    addresses, is_deleted = (matched.column(name).to_numpy() for name in ("address", "deleted"))
    numbers = addresses >> _OFFSET_BITS
    matches = []
    for fragment in fragments:
        own = numbers == fragment.fragment_id
        if own.any():
            changed = fragment.delete_rows(addresses[own].astype(np.uint32).tolist())
            deleted = int(is_deleted[own].sum())
            ids = ids_by_fragment.get(fragment.fragment_id, ())
            matches.append(Match(fragment.fragment_id, changed, deleted, ids))
    return tuple(matches)


def _addresses(
    base: BaseTable, keys: pa.Array, fragments: Sequence[lance.LanceFragment]
) -> tuple[RowIds, Positions, int]:
    """Return the address of each row with one of the keys, and the position of its key.

    Also returns the bytes that were read of indexes. A segment of an index on the key is asked if
    that reads less than half of the keys of its fragments. The other fragments are scanned.
    """
    hits, left = _look_up(base, keys, fragments, _MOST_READ)
    scanned = scan_keys(base, keys, left, by=ROW_ADDRESS) if left else None
    return _joined(hits, scanned)


def find_in_small_part(base: BaseTable, keys: pa.Array) -> tuple[pa.Table, int] | None:
    """Find the rows that have one of the keys if that reads a small part of the base table.

    Returns them with the schema ``MATCHED``, none deleted, and the bytes read of indexes. None if
    the keys lie in too many pages of the index on the key or, where it covers too few fragments,
    in the bounds of too many.
    """
    if base.dataset.has_stable_row_ids:
        # Rows that are replaced keep their ids.
        return None
    fragments = base.dataset.get_fragments()
    hits, left = _look_up(base, keys, fragments, _SMALL_FRACTION)
    rows, left_rows = _rows(fragments), _rows(left)
    if left_rows < rows * _SMALL_FRACTION:
        scanned = scan_keys(base, keys, left, by=ROW_ADDRESS) if left else None
    elif left_rows < _MANY_ROWS or base.index_caveat:
        return None
    else:
        bounds = KeyBounds.read(base, keys.type)
        unknown, possible = bounds.divide(keys, left)
        if _rows(possible) > rows * _POSSIBLE_FRACTION:
            return None
        scanned = bounds.scan(keys, unknown, possible)
    addresses, positions, read = _joined(hits, scanned)
    none = np.zeros(len(addresses), np.int64)
    columns = (addresses, none, positions, none.astype(np.bool_))
    return pa.Table.from_arrays(list(map(pa.array, columns)), schema=MATCHED), read


def _rows(fragments: Sequence[lance.LanceFragment]) -> int:
    """Return the rows of fragments, deleted ones too."""
    return sum(fragment.physical_rows for fragment in fragments)


def _joined(
    hits: PageHits, scanned: tuple[RowIds, Positions] | None
) -> tuple[RowIds, Positions, int]:
    if scanned is None:
        return hits.ids, hits.positions, hits.bytes_read
    ids, positions = scanned
    return (
        np.concatenate([hits.ids, ids]),
        np.concatenate([hits.positions, positions]),
        hits.bytes_read,
    )


def _look_up(
    base: BaseTable, keys: pa.Array, fragments: Sequence[lance.LanceFragment], most: float
) -> tuple[PageHits, list[lance.LanceFragment]]:
    """Find keys by the segments of an index that read at ``most`` this fraction of their rows.

    Returns addresses of live rows, and the fragments that none of these segments covers.
    """
    found, positions = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    left = {fragment.fragment_id: fragment for fragment in fragments}
    read = 0
    for segment in key_segments(base):
        own = {number: left[number] for number in left.keys() & segment.fragment_ids}
        rows = sum(fragment.physical_rows for fragment in own.values())
        folder = f"{INDICES_DIR}/{segment.uuid}"
        try:
            hits = page_hits(
                segment_location(base, segment), folder, keys, most_rows=int(rows * most)
            )
        except (CorruptDataError, ObjectNotFoundError) as error:
            logger.warning("%s; comparing all keys without it", error)
            continue
        if hits is None:
            continue
        is_live = _is_live(base, hits.ids, own)
        found.append(hits.ids[is_live])
        positions.append(hits.positions[is_live])
        read += hits.bytes_read
        left = {number: fragment for number, fragment in left.items() if number not in own}
    hits = PageHits(np.concatenate(found), np.concatenate(positions), read)
    return hits, list(left.values())


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
            live = scanner.to_table().column(ROW_ADDRESS).to_numpy()
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
