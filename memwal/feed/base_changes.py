"""Changes of the base table between two of its versions.

The versions are compared one by one. A fragment with the same data files has the same rows; its
deletion files tell which of them were deleted since, or are back after a restore. A fragment with
other files is a new one, and the fragment that had its number is gone: so is one whose column was
rewritten or added with values, whose rows are then all changes.

A compaction replaces fragments by others with the same live rows, in the same order, as its commit
tells. Marks of changed rows move along.

A restore brings fragments back. With a key, their rows are changes. Without a key, they have the
marks that they had in a version that was compared before; TokenExpiredError is raised if none had
them, as their rows may have been returned before the token.

Versions in between may have been cleaned up. The step across them is compared as one commit, of
which nothing is known: rows that a compaction moved in it count as changed, and so do all keys of
the generations that were merged in it, which must be stored.

Costs one request for each version, and one for each deletion file that is compared. No rows are
read, except the keys of deleted rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Final
from uuid import UUID

import lance
import numpy as np
import pyarrow as pa

from memwal.base_table.commit_records import read_transaction
from memwal.base_table.fragments import READ_AHEAD_BYTES
from memwal.base_table.snapshot import (
    BaseTable,
    lance_errors,
    manifest_digest,
    open_base,
    read_table_manifest,
    stored_versions,
)
from memwal.errors import ObjectNotFoundError, TableSetupError, TokenExpiredError
from memwal.feed.token import FeedToken
from memwal.format.lance_files import (
    FragmentState,
    NamedFile,
    deleted_rows,
    fragment_numbers,
    fragment_states,
)
from memwal.format.lance_manifest import Transaction, find_mem_wal_index, manifest_message
from memwal.format.memwal_index import IndexDetails
from memwal.reader.latest import ROW_ADDRESS
from memwal.reader.row_set import ROW_ID, contains, read_rows
from memwal.reader.unreadable_indexes import scan_batches
from memwal.region.manifest_store import read_each
from memwal.storage.location import TableLocation
from memwal.util.arrays import Mask, Numbers, RowIds

# Operations of commits that add, replace or delete rows.
_WRITES: Final = ("append", "update")
# Manifests that are read ahead.
_AHEAD: Final = 32

Generations = tuple[int, int]
"""Numbers of the first and the last of some generations."""
Changed = Mask | bool
"""Marks of the changed rows of a fragment, deleted ones included; True for all, False for none."""


@dataclass(frozen=True, slots=True, eq=False)
class BaseChanges:
    """Changes of the newest version against an older one."""

    rows: Mapping[int, Changed]  # of each fragment with a changed row
    added: frozenset[int]  # fragments with rows that the older version does not have in that place
    # Rows that were deleted or replaced, by the version that is to be read for their keys; None for
    # all rows of a fragment.
    removed: Mapping[int, Mapping[int, Numbers | None]]
    # Merged generations that tell which keys changed: of each, the row of today is a change.
    named: Mapping[UUID, Generations]
    # Other merged generations that the reader of the token has not seen: of a key that was added
    # and deleted in them, the base table has no trace. A reader that died before it stored a newer
    # token may have it.
    unseen: Mapping[UUID, Generations]
    # Merge progress of regions that had more in the older version. Generations that were merged
    # there may have been given up, or are pending again.
    undone: Mapping[UUID, int]


NO_CHANGES: Final = BaseChanges({}, frozenset(), {}, {}, {}, {})


class _Told(Enum):
    """Part of a commit's changes that is read from its generations."""

    NOTHING = auto()
    REMOVED = auto()  # which keys it removed
    ALL = auto()


@dataclass(frozen=True, slots=True, eq=False)
class _Version:
    number: int
    states: Mapping[int, FragmentState]
    rows: Mapping[int, int]  # of each fragment, deleted ones included
    merged: Mapping[UUID, int]
    transaction: Transaction | None


def expired(location: TableLocation, reason: str) -> TokenExpiredError:
    """Return the error for a token from which a feed cannot go on."""
    return TokenExpiredError(
        f"the feed of {location} cannot go on from its token: {reason}. Begin again: read "
        "changes(after=None), and remove what it does not return. A tag on the version of a token "
        "keeps what a feed needs to go on from it"
    )


def changes_since(
    token: FeedToken,
    base: BaseTable,
    seen: Mapping[UUID, int],
    stored: Mapping[UUID, int],
) -> BaseChanges:
    """Compare a version with that of a token.

    The reader of the token has seen the generations of each region up to ``seen``. From ``stored``
    on, its merged generations are still stored. Raises TokenExpiredError if the token's version was
    cleaned up or is one of another table, or generations are needed that were collected or given
    up; and without a key, if the table went back to less merge progress or to rows that no version
    since the token had, or a version in between was cleaned up.
    """
    if token.version == base.version and token.digest == base.digest:
        return NO_CHANGES
    if token.version >= base.version:
        raise expired(base.location, f"version {token.version} is one of a table that was replaced")
    walk: _Walk | None = None
    for before, after in pairwise(_read_versions(token, base)):
        if walk is None:
            is_keyed = bool(base.primary_key)
            walk = _Walk(base.location, token, stored, before, dict(seen), is_keyed)
        walk.step(before, after)
    return NO_CHANGES if walk is None else walk.result(base.details.merged)


def _read_versions(token: FeedToken, base: BaseTable) -> Iterator[_Version]:
    """Read the versions from that of a token on, as far as they are stored."""
    location = base.location
    numbers = range(token.version, base.version + 1)
    try:
        first = read_table_manifest(location, token.version)
    except TableSetupError as error:
        raise expired(location, f"version {token.version} was cleaned up") from error
    if manifest_digest(first) != token.digest:
        raise expired(location, f"version {token.version} is one of a table that was replaced")
    if len(numbers) > 2:
        numbers_stored = stored_versions(location)
        between = [number for number in numbers[1:-1] if number in numbers_stored]
    else:
        between = []
    yield _version(location, token.version, first)
    for start in range(0, len(between), _AHEAD):
        for version in read_each(
            location.store,
            lambda number: _read_version(location, number),
            between[start : start + _AHEAD],
        ):
            if version is not None:
                yield version
    yield _version(location, base.version, base.manifest)


def _read_version(location: TableLocation, number: int) -> _Version | None:
    try:
        return _version(location, number, read_table_manifest(location, number))
    except TableSetupError:
        # Cleaned up since it was listed.
        return None


def _version(location: TableLocation, number: int, manifest: bytes) -> _Version:
    message = manifest_message(manifest)
    entry = find_mem_wal_index(manifest)
    return _Version(
        number,
        fragment_states(message),
        dict(fragment_numbers(message, {})[:, :2].tolist()),
        IndexDetails.decode(entry.details).merged if entry is not None else {},
        read_transaction(location.store, manifest),
    )


@dataclass(slots=True)
class _Walk:
    """Marks of changed rows, from version to version."""

    location: TableLocation
    token: FeedToken
    stored: Mapping[UUID, int]
    first: _Version
    seen: dict[UUID, int]
    is_keyed: bool
    changed: dict[int, Changed] = field(default_factory=dict)
    added: set[int] = field(default_factory=set)
    removed: dict[int, dict[int, list[Numbers] | None]] = field(default_factory=dict)
    # The first version in which the rows of a fragment can be read that are deleted later.
    readable: dict[int, int] = field(default_factory=dict)
    named: dict[UUID, Generations] = field(default_factory=dict)
    unseen: dict[UUID, Generations] = field(default_factory=dict)
    reached: dict[UUID, int] = field(default_factory=dict)  # generations that were merged once
    # Without a key: marks of fragments that were replaced or lost rows, for a restore of them.
    earlier: dict[FragmentState, Changed] = field(default_factory=dict)

    def step(self, before: _Version, after: _Version) -> None:
        """Go on to the next version."""
        if any(after.merged.get(key, 0) < number for key, number in before.merged.items()):
            # The table went back: of generations that are merged from now on, the consumer has seen
            # the rows removed.
            self.seen = {}
            if not self.is_keyed:
                reason = f"version {after.number} is older than the one before, and no key tells"
                raise expired(self.location, f"{reason} which rows were returned before")
        is_next = after.number == before.number + 1
        told = self._told(before, after, is_next=is_next)
        if before.states == after.states:
            return
        if not (is_next or self.is_keyed):
            reason = (
                f"versions {before.number + 1} to {after.number - 1} were cleaned up, and no key"
            )
            raise expired(self.location, f"{reason} tells merged rows from others")
        # A commit of which nothing is known may be a restore.
        is_restore = after.transaction is None or after.transaction.operation == "restore"
        moved, replaced = self._moved(before, after) if is_next else ({}, set())
        changed: dict[int, Changed] = {}
        for number, state in after.states.items():
            earlier = before.states.get(number)
            if earlier == state:
                changed[number] = self.changed.get(number, False)
            elif is_restore and not self.is_keyed:
                changed[number] = self._restored(after.number, state)
            elif earlier is not None and earlier.files == state.files:
                # Rows are only back after the table went back, which no merge does.
                changed[number] = (
                    self._deleted(before, after, number)
                    if told is _Told.NOTHING
                    else self.changed.get(number, False)
                )
            else:
                changed[number] = moved.get(number, told is not _Told.ALL)
                self.added.add(number)
                self.readable[number] = after.number
        # With the versions from before this step.
        for number, state in before.states.items():
            later = after.states.get(number)
            if later != state and not self.is_keyed:
                self.earlier[state] = self.changed.get(number, False)
            is_gone = later is None or later.files != state.files
            if is_gone and told is _Told.NOTHING and number not in replaced:
                self._remove(number, None, before=before.number)
        self.changed = changed

    def result(self, merged: Mapping[UUID, int]) -> BaseChanges:
        """Return the changes until the version that was reached, which has a merge progress."""
        return BaseChanges(
            {n: marks for n, marks in self.changed.items() if marks is True or np.any(marks)},
            frozenset(self.added & self.changed.keys()),
            {
                version: {
                    number: None if rows is None else np.concatenate(rows)
                    for number, rows in fragments.items()
                }
                for version, fragments in self.removed.items()
            },
            self.named,
            self.unseen,
            {
                region_id: merged.get(region_id, 0)
                for region_id, number in self.first.merged.items()
                if merged.get(region_id, 0) < number
            },
        )

    def _told(self, before: _Version, after: _Version, *, is_next: bool) -> _Told:
        """Return the part of a merge commit's changes that its generations tell.

        There are no changes if the consumer has seen all its generations. If some of them, or rows
        of the log that went into one, were not merged yet when the token was made, the generations
        tell the changes: the base table has no trace of a key that such a row added and a later one
        deleted. If none were, and all are stored, their tombstones tell which keys were removed:
        the keys of replaced rows, which lie anywhere in the table, are not read.
        """
        merged = {
            region_id: (before.merged.get(region_id, 0), last)
            for region_id, last in after.merged.items()
            if last > before.merged.get(region_id, 0)
        }
        is_write = after.transaction is not None and after.transaction.operation in _WRITES
        is_mixed = False
        for region_id, (earlier, last) in merged.items():
            region = self.token.regions.get(region_id)
            earlier = max(earlier, self.first.merged.get(region_id, 0))
            is_mixed |= region is not None and earlier < min(last, region.newest)
            reached = max(self.reached.get(region_id, 0), self.first.merged.get(region_id, 0))
            is_gone = is_next and not is_write and before.states == after.states
            if is_gone and reached < last:
                # A reader of the token that died before it stored a newer one may have seen them.
                reason = f"generations up to {last} of region {region_id} were given up"
                raise expired(self.location, reason)
            self.reached[region_id] = max(last, reached)
        unseen = {
            region_id: (max(earlier, self.seen.get(region_id, 0)) + 1, last)
            for region_id, (earlier, last) in merged.items()
            if last > self.seen.get(region_id, 0)
        }
        if not is_next:
            # Of a key that was merged and then deleted directly, the base table has no trace.
            is_mixed = True
            unseen = {key: (earlier + 1, last) for key, (earlier, last) in merged.items()}
        ranges = self.named if is_mixed else self.unseen
        for region_id, (first, last) in unseen.items():
            # They are collected oldest first.
            if is_mixed and self.stored.get(region_id, last + 1) > first:
                reason = f"generation {first} of region {region_id} was collected"
                raise expired(self.location, reason)
            known = ranges.get(region_id, (first, last))
            ranges[region_id] = min(first, known[0]), max(last, known[1])
        if not (merged and is_write and is_next):
            return _Told.NOTHING
        if is_mixed or not unseen:
            return _Told.ALL
        is_stored = all(self.stored.get(key, last + 1) <= n for key, (n, last) in unseen.items())
        return _Told.REMOVED if is_stored else _Told.NOTHING

    def _moved(self, before: _Version, after: _Version) -> tuple[dict[int, Changed], set[int]]:
        """Return the marks of the fragments that a compaction wrote, and the replaced fragments."""
        marks: dict[int, Changed] = {}
        replaced: set[int] = set()
        for old, new in after.transaction.moved if after.transaction is not None else ():
            if not (before.states.keys() >= set(old) and after.states.keys() >= set(new)):
                continue
            earlier = [self.changed.get(number, False) for number in old]
            if all(mark is earlier[0] for mark in earlier) and isinstance(earlier[0], bool):
                marks |= dict.fromkeys(new, earlier[0])
            else:
                live = [
                    self._live_marks(before, number, mark)
                    for number, mark in zip(old, earlier, strict=True)
                ]
                stops = np.cumsum([after.rows[number] for number in new])
                joined = np.concatenate(live)
                if len(joined) != stops[-1]:
                    continue
                marks |= dict(zip(new, np.split(joined, stops[:-1]), strict=True))
            replaced |= set(old)
        return marks, replaced

    def _restored(self, version: int, state: FragmentState) -> Changed:
        """Return the marks that a fragment had in an earlier version of the walk."""
        mark = self.earlier.get(state)
        if mark is None:
            reason = f"version {version} brought rows back, and no key tells"
            raise expired(self.location, f"{reason} which of them were returned before")
        return mark

    def _live_marks(self, version: _Version, number: int, mark: Changed) -> Mask:
        rows = np.ones(version.rows[number], np.bool_)
        rows[self._deletions(version, number)] = False
        return np.full(np.count_nonzero(rows), mark) if isinstance(mark, bool) else mark[rows]

    def _deleted(self, before: _Version, after: _Version, number: int) -> Changed:
        """Note the deleted rows of a fragment; return its marks with rows that are back."""
        earlier, later = (self._deletions(version, number) for version in (before, after))
        gone = np.setdiff1d(later, earlier, assume_unique=True)
        back = np.setdiff1d(earlier, later, assume_unique=True)
        if len(gone):
            self._remove(number, gone, before=before.number)
        mark = self.changed.get(number, False)
        if not len(back):
            return mark
        self.readable[number] = after.number
        self.added.add(number)
        if mark is True:
            return mark
        marks = np.zeros(after.rows[number], np.bool_) if mark is False else mark.copy()
        marks[back] = True
        return marks

    def _deletions(self, version: _Version, number: int) -> Numbers:
        file: NamedFile | None = version.states[number].deletions
        if file is None:
            return np.empty(0, np.int64)
        return deleted_rows(self.location.store.get(file.key), file.kind).astype(np.int64)

    def _remove(self, number: int, rows: Numbers | None, *, before: int) -> None:
        version = min(self.readable.get(number, self.first.number), before)
        fragments = self.removed.setdefault(version, {})
        known = fragments.setdefault(number, [])
        if rows is None or known is None:
            fragments[number] = None
        else:
            known.append(rows)


def read_marked(
    base: BaseTable,
    marks: Mapping[int, Changed],
    columns: Sequence[str],
    *,
    filter: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the live rows among marked ones; whole fragments by a scan, few rows by their ids."""
    dataset = base.dataset
    whole = [dataset.get_fragment(number) for number, mark in marks.items() if mark is True]
    some = {number: mark for number, mark in marks.items() if not isinstance(mark, bool)}
    if whole:
        yield from scan_batches(
            dataset,
            columns=list(columns),
            filter=filter,
            fragments=whole,
            fragment_readahead=1,
            io_buffer_size=READ_AHEAD_BYTES,
            use_scalar_index=False,
        )
    if some:
        fragments = [dataset.get_fragment(number) for number in some]
        yield from read_rows(
            dataset,
            _row_ids(dataset, fragments, some),
            columns=columns,
            filter=filter,
            fragments=fragments,
            use_scalar_index=False,
        )


def removed_keys(base: BaseTable, changes: BaseChanges) -> pa.Table:
    """Read the keys of removed rows from the versions that have them, in the types of ``base``."""
    key = list(base.primary_key)
    schema = pa.schema([base.schema.field(name) for name in key])
    parts = [schema.empty_table()]
    for version, fragments in changes.removed.items():
        try:
            earlier = open_base(base.location, version=version)
        except TableSetupError as error:
            # Since it was compared: a feed that begins again compares those that are left.
            raise ObjectNotFoundError(f"{error}; ask for the feed again") from error
        marks: dict[int, Changed] = {}
        for number, rows in fragments.items():
            marks[number] = True
            if rows is not None:
                mask = np.zeros(int(rows.max(initial=-1)) + 1, np.bool_)
                mask[rows] = True
                marks[number] = mask
        with lance_errors(f"reading version {version} of {base.location}"):
            batches = [batch.select(key) for batch in read_marked(earlier, marks, key)]
        parts.append(pa.Table.from_batches(batches, schema) if batches else parts[0])
    return pa.concat_tables(parts)


def _row_ids(
    dataset: lance.LanceDataset,
    fragments: Sequence[lance.LanceFragment],
    marks: Mapping[int, Mask],
) -> RowIds:
    parts = [
        np.flatnonzero(mark).astype(np.uint64) + np.uint64(n << 32) for n, mark in marks.items()
    ]
    addresses = np.sort(np.concatenate(parts))
    if not dataset.has_stable_row_ids:
        return addresses
    rows = dataset.scanner(
        columns=[], fragments=list(fragments), with_row_id=True, with_row_address=True
    ).to_table()
    found = contains(addresses, rows.column(ROW_ADDRESS).to_numpy())
    row_ids: RowIds = rows.column(ROW_ID).to_numpy()[found]
    return row_ids
