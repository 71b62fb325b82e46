"""Index coverage of base-table rows, and the generations that answer for uncovered rows.

Rows that were merged after an index was built are in no segment of the index. As long as the
generations that they came from are stored, the indexes of those generations find these rows (spec:
Indexed Read Plan). Fragments are traced to merges through the commits that wrote them, compactions
included: a fragment counts only if all of its rows came from merges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.commit_records import REWRITE, commit_operation
from memwal.base_table.snapshot import BaseTable, data_files, open_base
from memwal.errors import ObjectNotFoundError, TableSetupError
from memwal.format.region_manifest import FlushedGeneration
from memwal.lsm.indexes.catchup import caught_up, covered_fragments
from memwal.lsm.indexes.kinds import Family, IndexKind, kind_of
from memwal.lsm.indexes.unusable import unusable_indexes
from memwal.reader.latest import ROW_ADDRESS, find_newest
from memwal.reader.sources.cache import LruCache, VersionTag, version_key
from memwal.reader.sources.generation import GenerationSource, ReadSources, open_generation
from memwal.reader.unreadable_indexes import is_readable
from memwal.region.rows import key_column
from memwal.util.arrays import RowIds, nbytes_of

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

# A commit that is not cached costs a few requests. The rows of older fragments are compared one by
# one, like rows that were not merged.
_MAX_TRACED_COMMITS: Final = 64


@dataclass(frozen=True, slots=True)
class _VersionChanges:
    """Changes of a version to the fragments of its predecessor."""

    version: int  # Of the predecessor, as is its cache key.
    key: VersionTag
    written: frozenset[int]  # Fragments that were added or got other files.
    is_merge: bool  # Merge progress advanced, and went back for no region.
    # Fragments whose rows were only moved to the written ones; None if rows were not only
    # moved.
    sources: frozenset[int] | None


def merged_fragments(base: BaseTable, candidates: Collection[int]) -> frozenset[int]:
    """Return the fragments among ``candidates`` that merges wrote, as far as versions show."""
    untraced = set(candidates)
    history: list[_VersionChanges] = []
    later: BaseTable | None = base
    version, key = base.version, version_key(base)
    while untraced and len(history) < _MAX_TRACED_COMMITS:
        changes = _changes.use(key)
        if changes is None:
            try:
                later = later or open_base(base.location, version=version)
                earlier = open_base(base.location, version=version - 1)
            except TableSetupError:
                break
            changes = _compare(earlier, later)
            _changes.put(key, changes)
            later = earlier
        else:
            later = None
        history.append(changes)
        if changes.written & untraced and changes.sources is not None:
            untraced |= changes.sources
        untraced -= changes.written
        version, key = changes.version, changes.key
    merged: set[int] = set()
    for changes in reversed(history):
        is_moved = changes.sources is not None and changes.sources <= merged
        if changes.is_merge or is_moved:
            merged |= changes.written
        else:
            # Includes an update in place, which writes other values into an existing fragment.
            merged -= changes.written
    return frozenset(merged.intersection(candidates))


def _compare(earlier: BaseTable, later: BaseTable) -> _VersionChanges:
    before, after = _fragment_files(earlier), _fragment_files(later)
    written = frozenset(number for number, files in after.items() if before.get(number) != files)
    old, new = earlier.details.merged, later.details.merged
    is_merge = old != new and all(new.get(region, 0) >= number for region, number in old.items())
    sources = None
    if written and not is_merge and commit_operation(later, later.version) == REWRITE:
        sources = frozenset(before.keys() - after.keys())
    return _VersionChanges(earlier.version, version_key(earlier), written, is_merge, sources)


def _fragment_files(base: BaseTable) -> dict[int, tuple[str, ...]]:
    return {
        int(fragment.fragment_id): tuple(file.path for file in data_files(fragment.metadata))
        for fragment in base.dataset.get_fragments()
    }


_changes: LruCache[_VersionChanges] = LruCache(1_024, never_stale=True)


@dataclass(frozen=True, slots=True)
class Bridge:
    """Rows of the base table that the indexes of the generation they came from answer for."""

    source: GenerationSource
    addresses: RowIds  # Addresses of the rows in the generation, ascending.
    rows: RowIds  # Row ids of the same rows in the base table.
    keys: pa.Array


@dataclass(frozen=True, slots=True)
class Gap:
    """Rows of the base table that an index does not cover."""

    fragments: tuple[int, ...]  # Uncovered fragments.
    bridges: tuple[Bridge, ...]  # Rows that came from generations that are still stored.
    unbridged: RowIds  # Row ids of the others, ascending: a search compares them one by one.
    unbridged_keys: pa.Array
    key: tuple[Hashable, ...]  # Permanent cache key of these rows.


def find_index(
    descriptions: Sequence[IndexDescription],
    column: str,
    accepts: Callable[[IndexKind], bool],
    *,
    preferred: Sequence[str] = (),
) -> IndexDescription | None:
    """Find an index over exactly one column, of a kind that ``accepts`` returns True for.

    Of several, the first by its place in ``preferred`` is taken, then by name. The maintained
    indexes of a table are such a list. An unreadable index is taken only if there is no other.
    """
    ranks = {name: rank for rank, name in reversed(list(enumerate(preferred)))}
    candidates = (
        description
        for description in descriptions
        if list(description.field_names) == [column] and accepts(kind_of(description))
    )
    return min(
        candidates,
        key=lambda index: (
            not is_readable(index),
            ranks.get(index.name, len(ranks)),
            index.name,
        ),
        default=None,
    )


def uncovered_fragments(base: BaseTable, names: Sequence[str]) -> tuple[int, ...]:
    """Return the fragments that an index on one of the columns does not cover; none without one."""
    if unusable_indexes(base):
        return ()
    uncovered: set[int] = set()
    every = set(base.dataset.fragment_ids())
    for index in base.dataset.describe_indices():
        if (
            not set(names).isdisjoint(index.field_names)
            and kind_of(index).family is Family.SCALAR
            and is_readable(index)
        ):
            uncovered |= every - covered_fragments(index)
    return tuple(sorted(uncovered)) if uncovered != every else ()


def find_gap(sources: ReadSources, index: IndexDescription) -> Gap | None:
    """Find the rows of the base table that an index does not cover; None if it covers all."""
    base = sources.base
    covered = covered_fragments(index)
    fragments = tuple(sorted(set(base.dataset.fragment_ids()) - covered))
    if not fragments:
        return None
    progress = caught_up(base, index.name)
    uncovered = [m for m in sources.plan.merged if m.generation > progress.get(m.region_id, 0)]
    merged = tuple(sorted(uncovered, key=lambda m: m.generation))
    segments = tuple(segment.uuid for segment in index.segments)
    key = (version_key(base), options_key(base), segments, merged)
    return _gaps.get(key, lambda: _find_gap(base, merged, fragments, key))


def options_key(base: BaseTable) -> Hashable:
    """Return a cache key that differs for data sets opened with different credentials."""
    return tuple(sorted(base.location.storage_options.items()))


def _find_gap(
    base: BaseTable,
    merged: Sequence[FlushedGeneration],
    fragments: tuple[int, ...],
    key: tuple[Hashable, ...],
) -> Gap:
    rows = base.dataset.scanner(
        columns=list(base.primary_key),
        with_row_id=True,
        with_row_address=True,
        fragments=[base.dataset.get_fragment(fragment) for fragment in fragments],
    ).to_table()
    keys = key_column(rows, base.primary_key)
    row_ids = rows.column("_rowid").to_numpy()
    generations = []
    for stored in merged:
        # A generation that the collector has deleted during the read: its rows are compared one by
        # one.
        with suppress(ObjectNotFoundError):
            generations.append(
                open_generation(base, stored.region_id, stored.generation, stored.path)
            )
    newest = find_newest(generations, base.primary_key, keys.type)
    positions = pc.index_in(keys, value_set=newest.keys)
    is_bridged = positions.is_valid().to_numpy(zero_copy_only=False)
    if is_bridged.any():
        fragment_of_row = rows.column(ROW_ADDRESS).to_numpy() >> np.uint64(32)
        is_bridged &= np.isin(fragment_of_row, sorted(merged_fragments(base, fragments)))
    newest_positions = pc.fill_null(positions, 0).to_numpy()
    if len(newest.keys):
        is_bridged &= ~newest.deleted[newest_positions]
    bridges = []
    for number, source in enumerate(generations):
        own = np.flatnonzero(is_bridged)
        own = own[newest.source[newest_positions[own]] == number]
        if not len(own):
            continue
        addresses = newest.addresses[newest_positions[own]]
        order = np.argsort(addresses)
        own = own[order]
        bridges.append(Bridge(source, addresses[order], row_ids[own], keys.take(pa.array(own))))
    rest = np.flatnonzero(~is_bridged)
    rest = rest[np.argsort(row_ids[rest])]
    return Gap(fragments, tuple(bridges), row_ids[rest], keys.take(pa.array(rest)), key)


_gaps: LruCache[Gap] = LruCache(128 << 20, nbytes_of)
