"""Index coverage of base-table rows, and the generations that answer for uncovered rows.

Rows that were merged after an index was built are in no segment of the index. As long as the
generations that brought them are stored, their own indexes find these rows (spec: Indexed Read
Plan). For this, fragments are traced to merges through the commits that wrote them, compactions
included: a fragment counts only if all of its rows were brought by merges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.commit import REWRITE, commit_kind
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import ObjectNotFoundError, TableSetupError
from memwal.reader.cache.keys import VersionTag, version_key
from memwal.reader.cache.lru import LruCache
from memwal.reader.latest import ROW_ADDRESS, find_newest, keys_of
from memwal.reader.row_set import RowIds
from memwal.reader.sources.collect import ReadSources
from memwal.reader.sources.generation import GenerationSource, open_generation
from memwal.reader.sources.plan import StoredGeneration

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

_KNOWN_COMMITS: Final = 1_024
# Each costs a few requests when it is seen for the first time. The rows of fragments that are older
# are looked at one by one, as those are that nobody merged.
_MOST_COMMITS: Final = 64


@dataclass(frozen=True, slots=True)
class _Commit:
    """What a version did to the fragments of the one before.

    Attributes
    ----------
    version : int
        The one before.
    key : Version
        Names the one before.
    written : frozenset of int
        Fragments that were not there, or had other files.
    is_merge : bool
        Whether merge progress went on, and nowhere back.
    sources : frozenset of int or None
        Fragments whose rows were only moved to those that were written; None when that is not so.
    """

    version: int
    key: VersionTag
    written: frozenset[int]
    is_merge: bool
    sources: frozenset[int] | None


def merged_fragments(base: BaseTable, asked: Collection[int]) -> frozenset[int]:
    """Those of some fragments that merges wrote, be it that their rows were compacted since.

    Versions are compared, from this one back to where the fragments came from. Of a fragment that
    came in a version which is no longer stored it cannot be told, and it is left out.
    """
    open_ones = set(asked)
    commits: list[_Commit] = []
    later: BaseTable | None = base
    version, key = base.version, version_key(base)
    while open_ones and len(commits) < _MOST_COMMITS:
        commit = _commits.peek(key)
        if commit is None:
            try:
                later = later or open_base(base.location, version=version)
                earlier = open_base(base.location, version=version - 1)
            except TableSetupError:
                break
            commit = _commit(earlier, later)
            _commits.put(key, commit)
            later = earlier
        else:
            later = None
        commits.append(commit)
        if commit.written & open_ones and commit.sources is not None:
            open_ones |= commit.sources
        open_ones -= commit.written
        version, key = commit.version, commit.key
    merged: set[int] = set()
    for commit in reversed(commits):
        moved = commit.sources is not None and commit.sources <= merged
        if commit.is_merge or moved:
            merged |= commit.written
        else:
            # Also where somebody wrote other values into a fragment that stays.
            merged -= commit.written
    return frozenset(merged.intersection(asked))


def _commit(earlier: BaseTable, later: BaseTable) -> _Commit:
    before, after = _files(earlier), _files(later)
    written = frozenset(number for number, files in after.items() if before.get(number) != files)
    old, new = earlier.details.merged, later.details.merged
    is_merge = old != new and all(new.get(region, 0) >= number for region, number in old.items())
    sources = None
    if written and not is_merge and commit_kind(later, later.version) == REWRITE:
        sources = frozenset(before.keys() - after.keys())
    return _Commit(earlier.version, version_key(earlier), written, is_merge, sources)


def _files(base: BaseTable) -> dict[int, tuple[str, ...]]:
    return {
        int(fragment.fragment_id): tuple(file.path for file in fragment.data_files())
        for fragment in base.dataset.get_fragments()
    }


_commits: LruCache[_Commit] = LruCache(_KNOWN_COMMITS, never_stale=True)


_GAP_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Bridge:
    """Rows of the base table that a generation's indexes answer for.

    Attributes
    ----------
    source : GenerationSource
        The generation that brought them.
    addresses : numpy.ndarray of uint64
        Their rows there, ascending.
    rows : numpy.ndarray of uint64
        The same rows in the base table.
    keys : pyarrow.Array
        Their keys.
    """

    source: GenerationSource
    addresses: RowIds
    rows: RowIds
    keys: pa.Array


@dataclass(frozen=True, slots=True)
class Gap:
    """The base table's rows that an index does not cover.

    Attributes
    ----------
    fragments : tuple of int
        Where they are.
    bridges : tuple of Bridge
        Those that came from generations that are still stored.
    rest : numpy.ndarray of uint64
        Row ids of the others, ascending: they have to be looked at one by one.
    rest_keys : pyarrow.Array
        Their keys.
    key : tuple
        Names these rows for ever.
    """

    fragments: tuple[int, ...]
    bridges: tuple[Bridge, ...]
    rest: RowIds
    rest_keys: pa.Array
    key: tuple[Hashable, ...]

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        bridged = sum(
            bridge.addresses.nbytes + bridge.rows.nbytes + bridge.keys.nbytes
            for bridge in self.bridges
        )
        return int(bridged + self.rest.nbytes + self.rest_keys.nbytes)


def find_indexes(
    descriptions: Sequence[IndexDescription], column: str, kind: Callable[[str], bool]
) -> list[IndexDescription]:
    """The indexes over exactly one column whose kind is wanted."""
    return [
        description
        for description in descriptions
        if list(description.field_names) == [column] and kind(description.index_type)
    ]


def find_index(
    descriptions: Sequence[IndexDescription],
    column: str,
    kind: Callable[[str], bool],
    *,
    preferred: Sequence[str] = (),
) -> IndexDescription | None:
    """The index over exactly one column whose kind is wanted, if there is one.

    Parameters
    ----------
    preferred : sequence of str
        Where there are several: the first of these names, else the first by name. The maintained
        indexes of a table are such a list.
    """
    found = find_indexes(descriptions, column, kind)
    ranks = {name: rank for rank, name in reversed(list(enumerate(preferred)))}
    return min(
        found, key=lambda index: (ranks.get(index.name, len(ranks)), index.name), default=None
    )


def covered_fragments(index: IndexDescription) -> set[int]:
    """Fragments that the segments of an index cover."""
    return {fragment for segment in index.segments for fragment in segment.fragment_ids}


def find_gap(sources: ReadSources, index: IndexDescription) -> Gap | None:
    """Rows of the base table that an index does not cover, None when it covers all.

    A row that a merge wrote belongs to the newest of the stored generations that has its key: the
    one that brought it. Rows that somebody appended or updated beside are in ``rest``. The answer
    is kept for later calls, since it never changes for a version.
    """
    base = sources.base
    covered = covered_fragments(index)
    fragments = tuple(sorted(set(base.dataset.fragment_ids()) - covered))
    if not fragments:
        return None
    wanted = _catching_up(base, sources.plan.merged, index.name)
    segments = tuple(segment.uuid for segment in index.segments)
    key = (version_key(base), options_key(base), segments, wanted)
    return _gaps.get(key, lambda: _find_gap(base, wanted, fragments, key))


def options_key(base: BaseTable) -> Hashable:
    """What tells data sets apart that were opened with other credentials."""
    return tuple(sorted(base.location.storage_options.items()))


def _catching_up(
    base: BaseTable, merged: Sequence[StoredGeneration], index: str
) -> tuple[StoredGeneration, ...]:
    caught_up = base.details.catchup.get(index, {})
    return tuple(
        sorted(
            (m for m in merged if m.generation > caught_up.get(m.region_id, 0)),
            key=lambda m: m.generation,
        )
    )


def _find_gap(
    base: BaseTable,
    merged: Sequence[StoredGeneration],
    fragments: tuple[int, ...],
    key: tuple[Hashable, ...],
) -> Gap:
    rows = base.dataset.scanner(
        columns=list(base.primary_key),
        with_row_id=True,
        with_row_address=True,
        fragments=[base.dataset.get_fragment(fragment) for fragment in fragments],
    ).to_table()
    keys = keys_of(rows, base.primary_key)
    row_ids = rows.column("_rowid").to_numpy()
    opened = _open(base, merged)
    newest = find_newest(opened, base.primary_key, keys.type)
    at = pc.index_in(keys, value_set=newest.keys)
    known = at.is_valid().to_numpy(zero_copy_only=False)
    if known.any():
        inside = rows.column(ROW_ADDRESS).to_numpy() >> np.uint64(32)
        known &= np.isin(inside, sorted(merged_fragments(base, fragments)))
    where = pc.fill_null(at, 0).to_numpy()
    if len(newest.keys):
        known &= ~newest.deleted[where]
    bridges = []
    for number, source in enumerate(opened):
        mine = np.flatnonzero(known)
        mine = mine[newest.source[where[mine]] == number]
        if not len(mine):
            continue
        addresses = newest.addresses[where[mine]]
        order = np.argsort(addresses)
        mine = mine[order]
        bridges.append(Bridge(source, addresses[order], row_ids[mine], keys.take(pa.array(mine))))
    rest = np.flatnonzero(~known)
    rest = rest[np.argsort(row_ids[rest])]
    return Gap(fragments, tuple(bridges), row_ids[rest], keys.take(pa.array(rest)), key)


def _open(base: BaseTable, merged: Sequence[StoredGeneration]) -> list[GenerationSource]:
    found = []
    for generation in merged:
        try:
            found.append(
                open_generation(base, generation.region_id, generation.generation, generation.path)
            )
        except ObjectNotFoundError:
            # Collected meanwhile; its rows are looked at one by one.
            continue
    return found


_gaps: LruCache[Gap] = LruCache(_GAP_BYTES, lambda gap: gap.nbytes)
