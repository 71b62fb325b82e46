"""Plans of the changes between two tokens, made in the driver, in units.

A unit is a flushed or unflushed generation of a region, a block of rows of a fragment of the base
table, or the keys that were removed from the base table. Units and their order depend on the second
token alone, so that a batch may end behind any of them, and be planned again after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import numpy as np

from memwal.base_table.refs import ReadTag
from memwal.feed.base_changes import BaseChanges, Changed
from memwal.feed.change_rows import Since
from memwal.feed.state import FeedState
from memwal.feed.token import FeedToken
from memwal.format.region_manifest import FlushedGeneration
from memwal.lsm.region_places import RegionPlaces
from memwal.lsm.wal.follow import UnflushedLog
from memwal.spark.source.scan_plan import (
    DEFAULT_ROW_BYTES,
    ReadOptions,
    balance_partitions,
    fragment_bytes,
    generation_bytes,
)

BLOCK_ROWS: Final = 1 << 16
"""Rows of a fragment, deleted ones included, that a batch takes whole."""

_KEY_BYTES: Final = 64

PackedMarks = bool | tuple[int, bytes]
"""Marks of the rows of a fragment: True for all, or their number and the marks as bits."""


@dataclass(frozen=True, slots=True)
class ReadUnit:
    """The smallest part of the changes."""

    rows: int  # that may be changes; superseded rows of a generation included
    nbytes: int
    generation: tuple[UUID, int] | None = None
    block: tuple[int, int, int] | None = None  # fragment, first row, row behind the last
    # Neither: the keys that were removed.


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesSnapshot:
    """State of a table, and the rows that the reader of a token has seen, as every task gets it.

    It holds no storage options, no rows and no keys.
    """

    version: int  # of the base table
    digest: bytes
    generations: tuple[FlushedGeneration, ...]  # oldest first within each region
    logs: tuple[UnflushedLog, ...]
    after: FeedToken | None
    seen: Mapping[UUID, int]
    stored: Mapping[UUID, int]
    named: tuple[FlushedGeneration, ...]
    unseen: tuple[FlushedGeneration, ...]
    undone: Mapping[UUID, int]
    columns: tuple[str, ...]  # of the table, in this order
    filter: str | None  # in parentheses
    tags: tuple[ReadTag, ...]  # that keep the snapshot stored
    # Whether several regions may have rows of the same keys, so that one task reads all of them.
    is_one_group: bool


@dataclass(frozen=True, slots=True)
class ChangesPart:
    """Part of the changes that one Spark task reads."""

    snapshot: ChangesSnapshot
    generations: frozenset[tuple[UUID, int]]  # all of a region or none, unless a batch ends there
    marks: Mapping[int, PackedMarks]  # of fragments of the base table
    removed: bool

    def unpacked_marks(self) -> dict[int, Changed]:
        """Return the marks."""
        return {
            number: packed
            if isinstance(packed, bool)
            else np.unpackbits(np.frombuffer(packed[1], np.uint8), count=packed[0]).astype(np.bool_)
            for number, packed in self.marks.items()
        }


def _pack(marks: Changed) -> PackedMarks:
    return marks if isinstance(marks, bool) else (len(marks), np.packbits(marks).tobytes())


@dataclass(frozen=True, slots=True)
class ChangesPlan:
    """Changes after a token until another one."""

    snapshot: ChangesSnapshot
    units: Sequence[ReadUnit]
    base: BaseChanges | None  # None for a feed from the beginning
    fragment_rows: Mapping[int, int]

    def end(self, first: int, *, max_rows: int) -> int:
        """Return behind which unit a batch ends that begins with unit ``first``.

        It has at most ``max_rows`` rows, or one unit.
        """
        rows = np.cumsum([unit.rows for unit in self.units[first:]])
        fitting = int(np.searchsorted(rows, max_rows, side="right"))
        with_rows = int(np.searchsorted(rows, 0, side="right")) + 1
        return min(first + max(fitting, with_rows), len(self.units))

    def parts(self, options: ReadOptions, first: int, last: int | None) -> list[ChangesPart]:
        """Divide the units from ``first`` to before ``last`` into partitions."""
        chosen = [unit for unit in self.units[first:last] if unit.rows]
        groups: dict[UUID | None, list[ReadUnit]] = {}
        blocks: dict[int, list[ReadUnit]] = {}
        for unit in chosen:
            if unit.block is not None:
                blocks.setdefault(unit.block[0], []).append(unit)
            else:
                region_id = unit.generation and unit.generation[0]
                is_joined = self.snapshot.is_one_group and region_id is not None
                groups.setdefault(UUID(int=0) if is_joined else region_id, []).append(unit)
        items = [(sum(u.nbytes for u in units), True, n) for n, units in blocks.items()]
        of_groups = list(groups.values())
        items += [(sum(u.nbytes for u in units), False, n) for n, units in enumerate(of_groups)]
        if not items:
            return []
        divided = balance_partitions(
            items, partitions=options.partitions, target_bytes=options.target_partition_bytes
        )
        parts = []
        for part in divided:
            units = [unit for number in part.generations for unit in of_groups[number]]
            generations = frozenset(u.generation for u in units if u.generation is not None)
            marks = {n: _pack(self._marks(n, blocks[n])) for n in part.fragments}
            removed = any(unit.generation is None for unit in units)
            parts.append(ChangesPart(self.snapshot, generations, marks, removed))
        return parts

    def _marks(self, fragment: int, blocks: Sequence[ReadUnit]) -> Changed:
        """Return the marks of some blocks of a fragment; True if they are all of its rows."""
        marks = True if self.base is None else self.base.rows[fragment]
        rows = self.fragment_rows[fragment]
        within = np.zeros(rows, np.bool_)
        for unit in blocks:
            if unit.block is not None:
                within[unit.block[1] : unit.block[2]] = True
        if isinstance(marks, bool):
            return True if within.all() else within
        return marks & within


def plan_changes(
    state: FeedState,
    after: FeedToken | None,
    until: FeedToken,
    *,
    columns: tuple[str, ...],
    filter: str | None,
    tags: tuple[ReadTag, ...],
) -> ChangesPlan:
    """Plan the changes after a token until that of a state; errors as of :meth:`Since.of`."""
    since = None if after is None else Since.of(after, state, logged=False)
    base = state.plan.base
    manifests = state.plan.snapshot.manifests
    logs = [
        replace(UnflushedLog.behind(manifests[region_id]), last=followed.last_position)
        for region_id, followed in state.logs.items()
        if followed.rows
    ]
    regions = {stored.region_id for stored in state.plan.generations}
    regions.update(log.region_id for log in logs)
    snapshot = ChangesSnapshot(
        version=base.version,
        digest=base.digest,
        generations=state.plan.generations,
        logs=tuple(logs),
        after=after,
        seen={} if since is None else since.seen,
        stored=state.stored,
        named=() if since is None else since.named,
        unseen=() if since is None else since.unseen,
        undone={} if since is None else since.base.undone,
        columns=columns,
        filter=filter,
        tags=tags,
        is_one_group=bool(RegionPlaces(base).rivals(manifests[key] for key in regions)),
    )
    return ChangesPlan(
        snapshot,
        _units(state, since, until),
        None if since is None else since.base,
        {int(part.fragment_id): int(part.physical_rows) for part in base.dataset.get_fragments()},
    )


def _units(state: FeedState, since: Since | None, until: FeedToken) -> list[ReadUnit]:
    base, plan = state.plan.base, state.plan
    found: dict[tuple[UUID, int], tuple[int, int]] = {}
    for stored in plan.generations:
        rows = 1 if stored.rows is None else stored.rows
        found[stored.region_id, stored.generation] = rows, generation_bytes(stored)
    for region_id, memtable in plan.memtables:
        rows = memtable.snapshot.view.rows
        found[region_id, memtable.generation] = rows, rows * DEFAULT_ROW_BYTES
    units = []
    for region_id, region in sorted(until.regions.items()):
        seen = 0 if since is None else since.seen.get(region_id, 0)
        merged = base.details.merged.get(region_id, 0)
        for generation in range(merged + 1, region.newest + 1):
            rows, nbytes = found.get((region_id, generation), (0, 0))
            rows = rows if generation > seen else 0
            units.append(ReadUnit(rows, nbytes, generation=(region_id, generation)))
    fragments = {int(part.fragment_id): part for part in base.dataset.get_fragments()}
    for number, fragment in sorted(fragments.items()):
        marks = True if since is None else since.base.rows.get(number, False)
        physical = int(fragment.physical_rows)
        for start in range(0, physical, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, physical)
            if isinstance(marks, bool):
                rows = stop - start if marks else 0
            else:
                rows = int(np.count_nonzero(marks[start:stop]))
            nbytes = fragment_bytes(fragment) * rows // physical
            units.append(ReadUnit(rows, nbytes, block=(number, start, stop)))
    units.append(_removed(since))
    return units


def _removed(since: Since | None) -> ReadUnit:
    if since is None:
        return ReadUnit(0, 0)
    rows = sum(stored.rows or 1 for stored in (*since.named, *since.unseen))
    for fragments in since.base.removed.values():
        rows += sum(1 if some is None else len(some) for some in fragments.values())
    return ReadUnit(rows, rows * _KEY_BYTES)
