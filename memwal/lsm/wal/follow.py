"""Follow the log of a region without claiming it: the rows that no flushed generation has yet.

A follower reads the entries that a claim would replay, by the same rules: entries behind the
manifest's ``replay_after``, without sentinels, in the generations that a flush would make of them.
It changes nothing: torn entries at the tip, which a claim replaces, are read again with each call.

Entries never change, so each is read once. Changes that a follower may meet, and its reactions:

* a flush: the manifest names another ``replay_after`` or generation. The cached tail is dropped,
  and the log behind the new position is read;
* a collection of entries that were flushed since the manifest was read: an entry is missing. Then
  the manifest has changed, and the caller reads it again (ObjectNotFoundError). If it has not
  changed, the entry is lost, which is the error of a claim;
* a claim: its sentinel is skipped, and entries behind it have a higher epoch. A follower has no
  epoch of its own, and reads them all;
* a table that was restored from a backup, or made anew, has other entries at the same positions.
  Every five seconds a call compares the newest cached entry with the stored one, and lists the
  log, which also tells of entries that are lost.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
import pyarrow as pa

from memwal.errors import BackPressureError, CorruptDataError, ObjectNotFoundError
from memwal.format.paths import MAX_COUNTER, wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.lsm.memtable.indexes import MemTableIndexes, UnflushedRows
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.log import (
    LogSurvey,
    find_tip,
    gap_error,
    is_free,
    lost_log_error,
    needs_replay,
    read_log,
    survey_log,
)
from memwal.lsm.wal.logged_rows import convert_entry
from memwal.lsm.wal.replay import place
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectStore
from memwal.util.arrays import Numbers
from memwal.util.clock import boot_seconds

_COMPARED_BYTES = 16 << 10
# So long the cached tail is believed to be the stored one.
_BELIEVED_SECONDS = 5.0
# New entries up to this number are read one by one: fewer requests than to search for the tip.
_PROBED_ENTRIES = 3


@dataclass(frozen=True, slots=True)
class UnflushedLog:
    """The part of a region's log that no generation of a manifest has."""

    region_id: UUID
    after: int  # position up to which the log is flushed
    generation: int  # that the region writes
    hint: int = field(compare=False)  # a position that the log had; 0 if none is known
    last: int | None = None  # newest entry that belongs to it; None for all that the log has

    @classmethod
    def behind(cls, manifest: RegionManifest) -> UnflushedLog:
        """Return the part behind a manifest."""
        return cls(
            manifest.region_id,
            manifest.replay_after,
            manifest.current_generation,
            manifest.wal_last_seen,
        )

    def is_behind(self, manifest: RegionManifest | None) -> bool:
        """Return whether no row of the log was flushed by the time of a manifest."""
        return (
            manifest is not None
            and manifest.replay_after == self.after
            and manifest.current_generation == self.generation
        )


@dataclass(frozen=True, slots=True)
class Followed:
    """Unflushed rows of a region."""

    rows: tuple[UnflushedRows, ...]
    last_position: int  # up to which the log is flushed or read
    # For each of ``rows``, shape (entries, 2): positions of entries, numbers of their first rows.
    entries: tuple[Numbers, ...] = ()


class LogFollower:
    """Unflushed rows of one region, as its log has them. Safe to use from many threads."""

    def __init__(self, store: ObjectStore, region_id: UUID) -> None:
        self._store = store
        self._region_id = region_id
        self._lock = threading.Lock()
        self._cached: _CachedTail | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the cached rows, and of their indexes."""
        tail = self._cached
        return 0 if tail is None else tail.nbytes

    def follow(
        self, log: UnflushedLog, row_schema: RowSchema, *, max_bytes: int, listed: bool = False
    ) -> Followed:
        """Return every row of this part of the log, oldest first.

        The cached tail is extended by requests for the next positions. They cannot tell an entry
        that was not written yet from one that is lost, or was flushed and collected: the caller has
        to make sure that the manifest is still the newest afterwards, or asks for a log that is
        ``listed``. The first call lists it, and one every five seconds.

        Raises
        ------
        ObjectNotFoundError
            It was flushed during the read, and entries were collected since.
        CorruptDataError
            A claim would fail as well: an entry is missing or damaged, or does not fit the table.
        BackPressureError
            The rows take more than ``max_bytes`` in memory.
        """
        with self._lock:
            tail, self._cached = self._cached, None
            if tail is not None and not tail.fits(log, row_schema):
                tail = None
            listed = listed or tail is None or tail.is_due()
            if tail is None or (listed and not self._is_same(tail)):
                tail = _CachedTail(log, row_schema, log.after + 1)
            try:
                self._extend(tail, max_bytes, listed=listed)
            except CorruptDataError as error:
                latest = RegionManifestStore(self._store, self._region_id).read_latest()
                if not log.is_behind(latest):
                    raise ObjectNotFoundError(
                        f"the log of region {self._region_id} was flushed meanwhile: {error}"
                    ) from error
                raise
            self._cached = tail
            return Followed(
                tuple(UnflushedRows(run.generation, run.rows.snapshot()) for run in tail.runs),
                tail.next_position - 1,
                tuple(np.array(run.entries, np.int64).reshape(-1, 2) for run in tail.runs),
            )

    def _is_same(self, tail: _CachedTail) -> bool:
        """Return whether the newest cached entry is the stored one."""
        if tail.newest is None:
            return True
        try:
            return tail.newest == _fingerprint(self._beginning(tail.next_position - 1))
        except ObjectNotFoundError:
            return False

    def _beginning(self, position: int) -> bytes:
        key = wal_key(self._region_id, position)
        return self._store.get_range(key, start=0, length=_COMPARED_BYTES)

    def _probe(self, first: int) -> tuple[LogSurvey, dict[int, bytes]]:
        """Find the tip from a position on; also return the entries before it that were read."""
        read: dict[int, bytes] = {}
        unlisted = np.empty(0, dtype=[("position", np.uint64), ("size", np.uint64)])
        tip = first
        while tip < first + _PROBED_ENTRIES:
            try:
                read[tip] = self._store.get(wal_key(self._region_id, tip))
            except ObjectNotFoundError:
                if is_free(self._store, self._region_id, tip):
                    return LogSurvey(first - 1, unlisted, tip, None), read
            else:
                tip += 1
        tip = find_tip(self._store, self._region_id, start=tip)
        return LogSurvey(first - 1, unlisted, tip, None), read

    def _extend(self, tail: _CachedTail, max_bytes: int, *, listed: bool) -> None:
        """Add the entries that were appended since."""
        log, first = tail.log, tail.next_position
        read: dict[int, bytes] = {}
        if listed:
            survey = survey_log(self._store, self._region_id, after=log.after, hint=log.hint)
            if survey.missing is not None and survey.missing < first:
                # This process has its rows, but no claim and no other process will.
                raise gap_error(self._region_id, survey.missing, newest=survey.tip - 1)
            lost = lost_log_error(
                self._store, self._region_id, max(log.after, log.hint), newest=survey.newest
            )
            if lost is not None:
                raise lost
            tail.listed_at = boot_seconds()
        else:
            survey, read = self._probe(first)
        entries = read_log(
            self._store,
            self._region_id,
            after=first - 1,
            before=None if log.last is None else log.last + 1,
            epoch=MAX_COUNTER,
            survey=survey,
            contents=read,
        )
        size = tail.nbytes
        for position, entry in entries:
            # Sentinels behind a torn entry are read again with it.
            if position == tail.next_position:
                tail.next_position = position + 1
            if not needs_replay(entry, current_generation=log.generation):
                continue
            run = place(tail.runs, entry.generation, first=log.generation, new=tail.new_run)
            run.entries.append((position, run.rows.rows))
            for batch in convert_entry(tail.row_schema, self._region_id, position, entry):
                run.rows.append(batch)
                size += batch.nbytes
            if size > max_bytes:
                raise BackPressureError(
                    f"the log of region {self._region_id} has more than {max_bytes} bytes of rows "
                    "that no writer has flushed, too many to read them fresh; flush them by "
                    "memwal recover TABLE if no writer lives, or read without fresh"
                )
        if tail.next_position > first:
            newest = tail.next_position - 1
            tail.newest = _fingerprint(read[newest] if newest in read else self._beginning(newest))


def _fingerprint(data: bytes) -> bytes:
    """Return a hash of the beginning of an entry, which has the id and epoch of its writer."""
    return hashlib.blake2b(data[:_COMPARED_BYTES], digest_size=16).digest()


@dataclass(slots=True, eq=False)
class _FollowedRun:
    """Rows of entries that go into one generation."""

    generation: int
    rows: MemTableIndexes
    entries: list[tuple[int, int]] = field(default_factory=list)  # positions, and first rows

    def join(self, later: _FollowedRun) -> None:
        """Append the rows of the next run."""
        self.entries += [(position, self.rows.rows + row) for position, row in later.entries]
        for batch in later.rows.snapshot().view.batches:
            self.rows.append(batch)


@dataclass(slots=True, eq=False)
class _CachedTail:
    """Rows of a part of a log, as far as it was read."""

    log: UnflushedLog
    row_schema: RowSchema
    next_position: int  # the first entry that was not read, or is torn
    runs: list[_FollowedRun] = field(default_factory=list)
    newest: bytes | None = None  # fingerprint of the entry before ``next_position``
    listed_at: float = 0.0

    @property
    def nbytes(self) -> int:
        """Memory of the rows, and of their indexes."""
        return sum(run.rows.nbytes for run in self.runs)

    def is_due(self) -> bool:
        """Return whether to compare the entries with the store, and to list the log."""
        return boot_seconds() - self.listed_at >= _BELIEVED_SECONDS

    def fits(self, log: UnflushedLog, row_schema: RowSchema) -> bool:
        """Return whether this is the beginning of a part of the log."""
        schema: pa.Schema = self.row_schema.schema
        return self.log == log and bool(schema.equals(row_schema.schema, check_metadata=True))

    def new_run(self, generation: int) -> _FollowedRun:
        """Return a run without rows."""
        indexes = MemTableIndexes(self.row_schema.schema, self.row_schema.primary_key)
        return _FollowedRun(generation, indexes)
