"""Rows of a feed: the changed ones of each source, as a stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.errors import InvalidInputError, TableSetupError
from memwal.feed.base_changes import (
    BaseChanges,
    Changed,
    Generations,
    changes_since,
    expired,
    read_marked,
    removed_keys,
)
from memwal.feed.log_rows import LoggedPart, LogRange, check_logged, read_logged
from memwal.feed.state import FeedState
from memwal.feed.token import FeedToken
from memwal.format.paths import MAX_COUNTER, TOMBSTONE
from memwal.format.region_manifest import FlushedGeneration
from memwal.lsm.key_matches import keys_among, newest_row_positions
from memwal.lsm.wal.follow import Followed
from memwal.reader.base_rows import rows_of_keys
from memwal.reader.hits import Hits, fetch_rows
from memwal.reader.latest import (
    ROW_ADDRESS,
    NewestRows,
    SourceRows,
    find_newest,
    newest_of,
    read_all_keys,
    read_keys,
)
from memwal.reader.merged_scan import MergedScan, without_keys
from memwal.reader.row_set import read_rows
from memwal.reader.scan import output_schema, scan_errors
from memwal.reader.sources.generation import (
    GenerationSource,
    ReadSources,
    open_all,
)
from memwal.reader.sources.narrow_columns import read_columns
from memwal.region.manifest_store import parallel_scans
from memwal.region.rows import key_column
from memwal.util.arrays import Numbers
from memwal.util.concurrency import map_parallel

UPSERT: Final = "upsert"
DELETE: Final = "delete"

_EXTRA: Final = (
    pa.field("_change", pa.string(), nullable=False),
    pa.field("_gen", pa.uint64(), nullable=False),
    pa.field("_region", pa.string()),
    pa.field("_position", pa.uint64()),
)
CHANGE_COLUMNS: Final = tuple(field.name for field in _EXTRA)
"""Columns of a feed that are none of the table."""


def changes_schema(base: BaseTable, columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns of a feed of a table: these, by default all, the key and the feed's own.

    InvalidInputError names a column that is unknown, or has the name of one of the feed.
    """
    names = base.schema.names if columns is None else list(columns)
    names = [*(name for name in base.primary_key if name not in names), *names]
    for name in sorted(set(CHANGE_COLUMNS).intersection(names)):
        if name in base.schema.names:
            raise InvalidInputError(
                f"{base.location} has a column {name}, as a feed has; name others (columns)"
            )
        raise InvalidInputError(f"every feed has the column {name}: leave it out of columns")
    fields = [
        field if field.name in base.primary_key else field.with_nullable(True)
        for field in output_schema(base, names)
    ]
    return pa.schema([*fields, *_EXTRA])


@dataclass(frozen=True, slots=True)
class Since:
    """Generations that a token covers, and the changes of the base table since."""

    after: FeedToken
    seen: Mapping[UUID, int]  # newest generation of each region that the reader has seen whole
    base: BaseChanges
    named: tuple[FlushedGeneration, ...]  # of ``base.named``
    unseen: tuple[FlushedGeneration, ...]  # of ``base.unseen``, as far as they are stored

    @classmethod
    def of(cls, after: FeedToken, state: FeedState, *, logged: bool) -> Since:
        """Compare a state with that of a token; arguments and errors as :func:`changes_since`."""
        base, seen = state.plan.base, state.seen(after)
        if logged:
            seen = dict.fromkeys(base.details.merged, MAX_COUNTER)
        elif not base.primary_key:
            raise TableSetupError(f"{base.location} has no primary key: only its logs tell changes")
        changes = changes_since(after, base, seen, state.stored)
        if changes.undone and logged:
            region_id, number = next(iter(changes.undone.items()))
            reason = f"a restore took back what was merged of region {region_id} after {number}"
            raise expired(base.location, reason)
        # Generations behind that progress may have been given up when the token was made.
        seen = {key: min(number, changes.undone.get(key, number)) for key, number in seen.items()}

        def within(ranges: Mapping[UUID, Generations]) -> tuple[FlushedGeneration, ...]:
            found = []
            for stored in state.plan.merged:
                first, last = ranges.get(stored.region_id, (1, 0))
                if first <= stored.generation <= last:
                    found.append(stored)
            return tuple(found)

        return cls(after, seen, changes, within(changes.named), within(changes.unseen))


@dataclass(frozen=True, slots=True)
class Reading:
    """One pass over the changes of a snapshot, or over a part of them."""

    sources: ReadSources
    logs: Mapping[UUID, Followed]
    since: Since | None  # None for a feed from the beginning
    schema: pa.Schema
    filter: str | None

    def batches(
        self, generations: Collection[int], marks: Mapping[int, Changed], *, removed: bool
    ) -> Iterator[pa.RecordBatch]:
        """Read the changes of some generations and logs, by position, and of marked base rows.

        With ``removed``, also the keys that were removed from the base table.
        """
        with scan_errors(self.sources.base, self.filter):
            yield from self._unmerged(generations)
            if self.since is None or not self.sources.base.primary_key:
                yield from self._merged(marks)
                return
            named = self._keys_of(self.since.named)
            yield from self._merged(marks, named)
            if removed:
                yield from self._removed(self.since, named)

    def versions(self, logs: Sequence[LogRange]) -> Iterator[pa.RecordBatch]:
        """Read all versions in some logs; TokenExpiredError before the first if one is gone."""
        base = self.sources.base
        surveys = [check_logged(base.location, log) for log in logs]
        with scan_errors(base, self.filter):
            for log, survey in zip(logs, surveys, strict=True):
                for part in read_logged(base, log, survey):
                    yield from self._versions(part)

    @property
    def _stored(self) -> pa.Schema:
        """Columns of the table in the result."""
        names = self.schema.names[: -len(_EXTRA)]
        return output_schema(self.sources.base, names)

    def _unmerged(self, generations: Collection[int]) -> Iterator[pa.RecordBatch]:
        """Read the changed rows and tombstones of generations and logs."""
        if not generations:
            return
        newest = self._newest_changed()
        for at in generations:
            source = self.sources.generations[at]
            extra = [] if self._entries(at) is None else [ROW_ADDRESS]
            scan = MergedScan(self.sources, newest, self._stored, self.filter, extra)
            position = self._position_of(at)
            for batch in scan.generation(at):
                yield self._output(
                    batch, UPSERT, source.generation, source.region_id, position(batch)
                )
            own = newest.of(at)
            addresses = own.addresses[own.deleted]
            if self.since is not None and len(addresses):
                hits = Hits.of(at, addresses, np.zeros(len(addresses)))
                keys = fetch_rows(self.sources, hits, self._key, [])
                keys = keys.append_column(ROW_ADDRESS, pa.array(addresses))
                (batch,) = keys.combine_chunks().to_batches()
                yield self._output(
                    batch, DELETE, source.generation, source.region_id, position(batch)
                )

    def _versions(self, part: LoggedPart) -> Iterator[pa.RecordBatch]:
        """Read the rows and the tombstones of a part of a log, in order."""
        sources = replace(self.sources, generations=(part.source,))
        count = len(part.deleted)
        addresses = np.arange(count, dtype=np.uint64)
        newest = NewestRows(pa.nulls(0), (SourceRows(0, addresses, part.deleted),))
        scan = MergedScan(sources, newest, self._stored, self.filter, [ROW_ADDRESS])
        found = [(batch, UPSERT) for batch in scan.generation(0)]
        if part.deleted.any():
            hits = Hits.of(0, addresses[part.deleted], np.zeros(np.count_nonzero(part.deleted)))
            keys = fetch_rows(sources, hits, self._key, [])
            keys = keys.append_column(ROW_ADDRESS, pa.array(hits.rows))
            found += [(batch, DELETE) for batch in keys.combine_chunks().to_batches()]
        outputs = []
        for batch, change in found:
            rows = batch.column(ROW_ADDRESS).to_numpy()
            at = np.searchsorted(part.entries[:, 2], rows.astype(np.int64), side="right") - 1
            position, generation = (
                pa.array(part.entries[at, n].astype(np.uint64)) for n in range(2)
            )
            outputs.append(self._output(batch, change, generation, part.source.region_id, position))
        if not part.deleted.any():
            yield from outputs
            return
        rows = np.concatenate([batch.column(ROW_ADDRESS).to_numpy() for batch, _ in found])
        ordered = pa.Table.from_batches(outputs).take(pa.array(np.argsort(rows)))
        yield from ordered.combine_chunks().to_batches()

    def _newest_changed(self) -> NewestRows:
        """Find the newest row of each key that changed.

        Rows that the token's reader has seen are older than all changes in their region.
        """
        key = self.sources.base.primary_key
        firsts = {
            at: first
            for at in range(len(self.sources.generations))
            if (first := self._first_changed(at)) is not None
        }
        keys = read_all_keys([self.sources.generations[at] for at in firsts], key)
        parts = {
            at: own.since(first) for (at, first), own in zip(firsts.items(), keys, strict=True)
        }
        return newest_of(parts, self._key_type)

    def _first_changed(self, at: int) -> int | None:
        """Return the first row of a source that is a change, as all later ones; None if none is."""
        if self.since is None:
            return 0
        source = self.sources.generations[at]
        entries = self._entries(at)
        if entries is None:
            return 0 if source.generation > self.since.seen.get(source.region_id, 0) else None
        region = self.since.after.regions.get(source.region_id)
        if region is None or source.region_id in self.since.base.undone:
            # Of a generation that is told again, older rows must not cover the rows of the log.
            return 0
        later = entries[entries[:, 0] > region.position]
        return int(later[0, 1]) if len(later) else None

    def _entries(self, at: int) -> Numbers | None:
        """Return the log entries of a source, None for a flushed generation."""
        source = self.sources.generations[at]
        if source.is_flushed:
            return None
        followed = self.logs[source.region_id]
        number = [rows.generation for rows in followed.rows].index(source.generation)
        return followed.entries[number]

    def _position_of(self, at: int) -> Callable[[pa.RecordBatch], pa.Array | None]:
        """Return a function that tells the log entries of some rows of a source."""
        entries = self._entries(at)

        def position(batch: pa.RecordBatch) -> pa.Array | None:
            if entries is None:
                return None
            rows = batch.column(ROW_ADDRESS).to_numpy().astype(np.int64)
            at = np.searchsorted(entries[:, 1], rows, side="right") - 1
            return pa.array(entries[at, 0].astype(np.uint64))

        return position

    def _keys_of(self, generations: Sequence[FlushedGeneration]) -> pa.Table:
        """Read the keys of flushed generations, each as often as it is there."""
        parts = [
            read_columns(source, self._key.names)
            for source in open_all(self.sources.base, generations)
        ]
        tables = [pa.Table.from_arrays(part.columns, schema=self._key) for part in parts]
        return pa.concat_tables([self._key.empty_table(), *tables])

    def _merged(
        self, marks: Mapping[int, Changed], named: pa.Table | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the changed rows of the base table: marked ones, without those of named keys."""
        base = self.sources.base

        def others() -> pa.Array:
            newer = find_newest(self.sources.generations, base.primary_key, self._key_type).keys
            if named is None:
                return newer
            return pa.concat_arrays([newer, key_column(named, base.primary_key)])

        found = read_marked(base, marks, self._stored.names, filter=self.filter)
        for batch in without_keys(found, base.primary_key, others):
            yield self._output(batch, UPSERT)

    def _tombstones_of(self, generations: Sequence[FlushedGeneration]) -> pa.Table:
        """Read the keys that flushed generations delete."""
        key = self._key

        def read(source: GenerationSource) -> pa.Table:
            with lance_errors(f"reading {source.identity}"):
                found = source.dataset.to_table(columns=key.names, filter=TOMBSTONE)
            return pa.Table.from_arrays(found.columns, schema=key)

        opened = open_all(self.sources.base, generations)
        threads = parallel_scans(is_local=self.sources.base.location.store.is_local)
        return pa.concat_tables([key.empty_table(), *map_parallel(read, opened, threads=threads)])

    def _removed(self, since: Since, named: pa.Table) -> Iterator[pa.RecordBatch]:
        """Read the rows of named keys; named and removed keys without a row were deleted.

        The row of a named key is a new one, unless the quality gate kept out all its merged rows:
        then the table still has an older row, or never had one.
        """
        base = self.sources.base
        named_keys = key_column(named, base.primary_key)
        deleted = self._tombstones_of(since.unseen)
        rows = pa.concat_tables([removed_keys(base, since.base), named, deleted])
        if not rows.num_rows:
            return
        keys = key_column(rows, base.primary_key)
        rows = rows.take(pa.array(newest_row_positions(keys)))
        keys = key_column(rows, base.primary_key)
        # Keys that a generation or a log has are told by those.
        newer = (read_keys(s, base.primary_key).keys for s in self.sources.generations)
        others = pa.array(~keys_among(keys, newer))
        rows, keys = rows.filter(others), keys.filter(others)
        is_named = keys_among(keys, [named_keys])
        # A key that is still there has its row where there was none before.
        fragments = [base.dataset.get_fragment(number) for number in sorted(since.base.added)]
        row_ids, found = rows_of_keys(base, keys, fragments)
        rows_in = [(row_ids[is_named[found]], fragments)]
        gone = np.ones(len(keys), np.bool_)
        gone[found] = False
        kept = np.flatnonzero(gone & is_named)
        if len(kept):
            # A tombstone always enters the table.
            deleted = key_column(self._tombstones_of(since.named), base.primary_key)
            kept = kept[~keys_among(keys.take(pa.array(kept)), [deleted])]
            row_ids, found = rows_of_keys(base, keys.take(pa.array(kept)))
            rows_in.append((row_ids, base.dataset.get_fragments()))
            gone[kept[found]] = False
        for row_ids, fragments in rows_in:
            for batch in read_rows(
                base.dataset,
                row_ids,
                columns=self._stored.names,
                filter=self.filter,
                fragments=fragments,
                use_scalar_index=False,
            ):
                yield self._output(batch, UPSERT)
        for batch in rows.filter(pa.array(gone)).to_batches():
            yield self._output(batch, DELETE)

    @property
    def _key_type(self) -> pa.DataType:
        return key_column(self._key.empty_table(), self._key.names).type

    @property
    def _key(self) -> pa.Schema:
        return pa.schema([self._stored.field(name) for name in self.sources.base.primary_key])

    def _output(
        self,
        batch: pa.RecordBatch,
        change: str,
        generation: int | pa.Array = 0,
        region_id: UUID | None = None,
        position: pa.Array | None = None,
    ) -> pa.RecordBatch:
        count, names = batch.num_rows, batch.schema.names
        if isinstance(generation, int):
            generation = _repeated(generation, pa.uint64(), count)
        columns = [
            batch.column(field.name) if field.name in names else pa.nulls(count, field.type)
            for field in list(self.schema)[: -len(_EXTRA)]
        ]
        region = None if region_id is None else str(region_id)
        columns += [
            _repeated(change, pa.string(), count),
            generation,
            _repeated(region, pa.string(), count),
            _repeated(None, pa.uint64(), count) if position is None else position,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _repeated(value: str | int | None, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array of one value: a slice of one that all batches of a source share."""
    return _longest(value, kind, 1 << max(count - 1, 0).bit_length()).slice(0, count)


@lru_cache(maxsize=16)
def _longest(value: str | int | None, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)
