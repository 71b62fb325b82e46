"""Applied steps of a region, as its log records them (see docs/design/0008).

Every log entry that is a step carries the newest step of each source, so reading the newest such
entry is enough. Before the garbage collector deletes log entries, it stores their steps in a
*book*: an immutable object that covers the log up to the position in its name and holds the newest
step of each source up to there. A region without a book never had a step: its first step writes an
empty book before its entry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from uuid import UUID

from memwal.base_table.required_regions import read_regions
from memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    SourceRestartedError,
)
from memwal.format.paths import applied_dir, applied_key, parse_applied_name, wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_entry import TornEntryError
from memwal.format.wal_layout import (
    MAX_U64,
    AppliedSteps,
    NewestStep,
    decode_applied,
    encode_applied,
    newest_steps,
)
from memwal.lsm.wal.abandon import read_abandoned
from memwal.lsm.wal.appender import LogAppender
from memwal.lsm.wal.log import damaged_entry_error, find_tip, read_head
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore, create_settled

_MAX_ATTEMPTS = 5

MAX_SOURCE_BYTES = 512
"""Maximum length of the name of a source or an incarnation: every entry of a step has them."""

_MAX_REPLACED = 32


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a source."""

    source: str  # name of the sequence of steps: a query, a replication slot, a topic's partition
    version: int  # increases from each step of the source to the next; an unsigned 64-bit integer
    # Identity of the numbering, for example of a checkpoint; another one may count from 0 again.
    incarnation: str = ""
    replaces: Collection[str] = ()  # incarnations whose steps are over

    def __post_init__(self) -> None:
        for name, least in (
            (self.source, 1),
            *((name, 0) for name in (self.incarnation, *self.replaces)),
        ):
            if not least <= len(name.encode()) <= MAX_SOURCE_BYTES:
                raise InvalidInputError(
                    f"the name of a source has 1 to {MAX_SOURCE_BYTES} bytes, that of an "
                    f"incarnation 0 to {MAX_SOURCE_BYTES}; got {len(name.encode())}"
                )
        if self.incarnation in self.replaces:
            raise InvalidInputError(f"incarnation {self.incarnation!r} replaces itself")
        if not 0 <= self.version <= MAX_U64:
            raise InvalidInputError(
                f"version {self.version} of {self.source!r} is not an unsigned 64-bit integer"
            )

    def after(self, newest: NewestStep | None) -> NewestStep | None:
        """Return the record of this step in a region after its newest step of the source.

        None if the region has the step. A region whose newest step has no incarnation takes a
        higher version of any. Raises SourceRestartedError if its newest step is of an incarnation
        that this step does not replace, or of one that replaced this step's.
        """
        newest = newest or NewestStep(-1, self.incarnation)
        if newest.incarnation == self.incarnation:
            if newest.version >= self.version:
                return None
            replaced = newest.replaced
        elif self.incarnation not in newest.replaced and (
            newest.incarnation in self.replaces
            or (not newest.incarnation and newest.version < self.version)
        ):
            replaced = (*newest.replaced, newest.incarnation)
        else:
            raise SourceRestartedError(
                f"version {self.version} of {self.source!r} is of incarnation "
                f"{self.incarnation!r}, but the newest step here is version {newest.version} of "
                f"incarnation {newest.incarnation!r}; if that one is over, name it in replaces"
            )
        replaced = tuple(dict.fromkeys((*replaced, *self.replaces)))[-_MAX_REPLACED:]
        return NewestStep(self.version, self.incarnation, replaced)


@dataclass(frozen=True, slots=True)
class AppliedStep:
    """Result of a step, which is durable in all of these regions."""

    written: tuple[UUID, ...] = ()  # regions that wrote their rows now
    # Regions that had this step or a later one of the source before, and wrote nothing.
    skipped: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class RegionSteps:
    """Newest steps that a region has applied."""

    steps: AppliedSteps  # version of the newest step of each source
    position: int = 0  # of the newest entry that is a step; 0 if the steps are from a book
    epoch: int = 0  # of that entry


def read_steps_of(location: TableLocation, source: str) -> dict[UUID, NewestStep]:
    """Read the newest step of a source, by region, without regions that never had one.

    Raises RegionLostError if a region is not found, whose steps would be applied again.
    """
    newest = {}
    for region_id, manifest in read_regions(location).manifests.items():
        applied = _read_newest_steps(location.store, manifest)
        if applied is not None and source in applied.steps:
            newest[region_id] = applied.steps[source]
    return newest


def _read_newest_steps(store: ObjectStore, manifest: RegionManifest) -> RegionSteps | None:
    """Read the newest steps of a region, without a claim; None if it never had a step."""
    seen = manifest.last_logged
    tip = find_tip(store, manifest.region_id, start=seen + 1)
    return read_steps(store, manifest.region_id, tip=tip)


def is_step_visible(store: ObjectStore, region_id: UUID, step: Step) -> bool:
    """Return whether a region has a step and its rows become visible without a further claim.

    Either the rows are flushed, or another writer has claimed the region since and replayed them.
    Raises SourceRestartedError as :meth:`Step.after`.
    """
    manifest = RegionManifestStore(store, region_id).read_latest()
    if manifest is None:
        return False
    newest = _read_newest_steps(store, manifest)
    if newest is None or step.after(newest.steps.get(step.source)) is not None:
        return False
    return newest.position <= manifest.replay_after or newest.epoch < manifest.writer_epoch


def read_steps(store: ObjectStore, region_id: UUID, *, tip: int) -> RegionSteps | None:
    """Read the newest step of each source from the log before ``tip``, or from the newest book.

    Returns None if the region has no book, and therefore never had a step. Raises CorruptDataError
    if an entry that may be a step is missing or damaged, and was not abandoned.
    """
    for _ in range(_MAX_ATTEMPTS):
        book = _newest_book(store, region_id)
        if book is None:
            return None
        try:
            steps = _newest_in_log(store, region_id, after=book, before=tip)
            if steps is not None:
                return steps
            key = applied_key(region_id, book)
            return RegionSteps(decode_applied(store.get(key), name=key))
        except ObjectNotFoundError:
            # The garbage collector wrote a newer book and deleted the older one, or entries
            # that this read needs.
            if _newest_book(store, region_id) == book:
                raise
    raise OutcomeUnknownError(
        f"the log of region {region_id} is collected faster than it is read; try again"
    )


def write_empty_book(store: ObjectStore, region_id: UUID, *, tip: int) -> None:
    """Write an empty book, which a region needs before its first step.

    ``tip`` is the position behind all entries of the log. Steps before it are forgotten.
    """
    write_book(store, region_id, tip - 1, {})


def find_book_for_copy(
    store: ObjectStore, region_id: UUID, log: range
) -> tuple[int, AppliedSteps] | None:
    """Return the position and the steps of the book that a copy of a region needs.

    ``log`` are the positions of the entries that are copied: all of the log from its start on, when
    it was listed. Returns None if the region had no step then. Raises CorruptDataError if the
    newest book is damaged.
    """
    # A first step writes the book before its entry: without a book, no entry of ``log`` is a step.
    book = _newest_book(store, region_id)
    if book is None:
        return None
    try:
        applied = read_steps(store, region_id, tip=log.start)
    except CorruptDataError:
        # An entry between the book and ``log`` is lost or damaged. It is missing at the copy, which
        # therefore refuses steps with the same error, until a later entry is a step.
        key = applied_key(region_id, book)
        return book, decode_applied(store.get(key), name=key)
    # A book behind ``log`` is an empty one, of a first step since: those of collectors end before
    # the entries that a tag keeps. At the copy, it must not hide the entries behind ``log``.
    position = min(max(book, log.start - 1), log.stop - 1)
    return position, {} if applied is None else applied.steps


def write_book_before_delete(store: ObjectStore, region_id: UUID, *, until: int) -> None:
    """Store the steps of the entries up to a position in a book, before the entries are deleted.

    Deletes older books. For a region that never had a step, this only lists its books. Raises
    CorruptDataError as :func:`read_steps`; nothing may be deleted then.
    """
    book = _newest_book(store, region_id)
    if book is None:
        return
    if book < until:
        applied = read_steps(store, region_id, tip=until + 1)
        write_book(store, region_id, until, {} if applied is None else applied.steps)
    store.delete_many(applied_key(region_id, old) for old in _book_positions(store, region_id)[:-1])


class StepSequencer:
    """Runs the steps of one region one after another, and remembers the newest of each source.

    ``log`` provides the tip of the log and the steps of foreign entries. ``verify`` raises
    RegionFencedError if another writer has claimed the region.
    """

    def __init__(
        self,
        store: ObjectStore,
        region_id: UUID,
        log: LogAppender,
        *,
        verify: Callable[[], None],
    ) -> None:
        self._store = store
        self._region_id = region_id
        self._log = log
        self._verify = verify
        self._lock = threading.Lock()
        self._applied: AppliedSteps | None = None

    def begin(self, step: Step) -> AppliedSteps | None:
        """Start a step unless the region has it, and return the steps that its entry records.

        Waits for the lock, which is then held until :meth:`end`. Returns None, without the lock, if
        the region has the step. Raises SourceRestartedError as :meth:`Step.after`.
        """
        self._lock.acquire()
        try:
            applied = self._newest_steps()
            newest = step.after(applied.get(step.source))
            if newest is not None:
                return {**applied, step.source: newest}
        except BaseException:
            self._lock.release()
            raise
        self._lock.release()
        return None

    def check(self, step: Step) -> None:
        """Raise SourceRestartedError if the region refuses a step, see :meth:`Step.after`."""
        with self._lock:
            step.after(self._newest_steps().get(step.source))

    def end(self, applied: AppliedSteps | None) -> None:
        """Release the lock.

        ``applied`` is the result of :meth:`begin` if the step is in the log. None if that is
        unknown: the next step then reads the log.
        """
        self._applied = None if applied is None else dict(applied)
        self._lock.release()

    def _newest_steps(self) -> AppliedSteps:
        return newest_steps(self._read_applied(), self._log.foreign_steps)

    def _read_applied(self) -> AppliedSteps:
        if self._applied is None:
            # Entries behind the tip are not this writer's: an entry that was stored in spite of an
            # error is taken over, and counts, when the next entry finds it at its position.
            tip = self._log.next_position
            newest = read_steps(self._store, self._region_id, tip=tip)
            if newest is None:
                write_empty_book(self._store, self._region_id, tip=tip)
                # A writer that was paused before this may find its position in the log free, since
                # a garbage collector that saw no book may have deleted the sentinel that fenced
                # the writer. Its entry would be a step that no writer replays. From here on, the
                # collector sees the book.
                self._verify()
            self._applied = {} if newest is None else dict(newest.steps)
        return self._applied


def _newest_in_log(
    store: ObjectStore, region_id: UUID, *, after: int, before: int
) -> RegionSteps | None:
    """Return the steps of the newest entry between two positions that is a step."""
    rows_at: int | None = None
    for position in range(before - 1, after, -1):
        try:
            head = read_head(store, region_id, position)
        except TornEntryError as error:
            # As in a replay: a torn entry without rows behind it was lost before it was durable.
            if rows_at is None or _is_abandoned(store, region_id, position):
                continue
            raise damaged_entry_error(region_id, position, behind=rows_at) from error
        except ObjectNotFoundError:
            if _is_abandoned(store, region_id, position):
                continue
            if _newest_book(store, region_id) != after:
                raise
            raise _missing_entry_error(region_id, position, tip=before) from None
        if head.applied:
            return RegionSteps(head.applied, position, head.writer_epoch)
        if not head.is_sentinel and rows_at is None:
            rows_at = position
    return None


def _missing_entry_error(region_id: UUID, position: int, *, tip: int) -> CorruptDataError:
    return CorruptDataError(
        f"{wal_key(region_id, position)} is missing, and may have recorded which steps region "
        f"{region_id} has: a repeated step could be written twice. Restore the entry. If no source "
        "will repeat a step from before now, forget all earlier steps instead: "
        f"memwal.lsm.wal.applied_steps.write_empty_book(table.location.store, region_id, tip={tip})"
    )


def _is_abandoned(store: ObjectStore, region_id: UUID, position: int) -> bool:
    return any(
        record.first_position <= position <= record.last_position
        for record in read_abandoned(store, region_id)
    )


def write_book(store: ObjectStore, region_id: UUID, position: int, applied: AppliedSteps) -> None:
    """Write a book of the steps that the log has up to a position.

    Raises CorruptDataError if there is a book with other steps at this position.
    """
    data = encode_applied(applied)
    # Two books of the same position have the same content.
    other = create_settled(store, applied_key(region_id, position), data)
    if other is not None:
        raise CorruptDataError(
            f"{applied_key(region_id, position)} contains {other[:100]!r}, but the log contains "
            f"{data[:100]!r}; keep both and call a human"
        )


def _newest_book(store: ObjectStore, region_id: UUID) -> int | None:
    books = _book_positions(store, region_id)
    return books[-1] if books else None


def _book_positions(store: ObjectStore, region_id: UUID) -> list[int]:
    """Return the positions up to which books cover the log, ascending."""
    names = (info.key.rpartition("/")[2] for info in store.list(applied_dir(region_id)))
    return sorted(p for name in names if (p := parse_applied_name(name)) is not None)
