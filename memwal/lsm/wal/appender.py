"""Append to the write-ahead log of one region under one writer's epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from memwal.base_table.blobs import is_blob_v2
from memwal.errors import MemWalError, OutcomeUnknownError, StoreError, StoreUnavailableError
from memwal.format.wal_encoder import EncodedEntry, EntryEncoder
from memwal.format.wal_entry import WalEntry
from memwal.format.wal_layout import AppliedSteps, BlobTarget, new_blob_target, newest_steps
from memwal.inputs.dictionaries import to_dictionaries
from memwal.lsm.logged_blobs import from_logged, no_file, to_logged
from memwal.lsm.wal.claim import Claim
from memwal.lsm.wal.log import put_entry
from memwal.region.rows import align_rows
from memwal.storage.object_store import ObjectStore
from memwal.util.clock import boot_seconds
from memwal.util.retry import retry_unavailable

ConvertEntry = Callable[[int, WalEntry], list[pa.RecordBatch]]
StartCheck = Callable[[], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class PreparedEntry:
    """Encoded log entry, which is not durable before :meth:`LogAppender.acknowledge` returns."""

    position: int
    generation: int
    group: tuple[pa.RecordBatch, ...]  # rows of the group
    # The rows as the log has them, in memory of their own: foreign rows that had to be taken over,
    # then those of the group. Callers may change the buffers of the group afterwards.
    entry: EncodedEntry
    # For a step: the newest step of each source that the region has with it.
    applied: AppliedSteps | None = None


class LogAppender:
    """Appends entries to a region's log under one claim.

    An entry is appended by :meth:`prepare`, :meth:`put` and :meth:`acknowledge`. A caller that
    writes into many logs prepares and acknowledges their entries one after the other, and puts them
    concurrently: only :meth:`put` waits for the store.

    The claim's ``verified_at``, by ``clock``, was read before the check that then succeeded; with
    minus infinity the first append verifies the epoch. ``verify_epoch`` raises RegionFencedError if
    another writer has claimed the region. A success is relied on for ``check_interval`` seconds.
    ``start_check`` starts the check of each append that the table still has the writer's region
    spec, and returns the call that waits for it, see :mod:`memwal.base_table.spec_in_force`.
    ``logged`` is the schema of the rows in the entries, if it has other types than ``schema``: see
    :mod:`memwal.inputs.dictionaries` and :mod:`memwal.lsm.logged_blobs`. ``convert`` converts a
    foreign entry, with its position, to stored rows, and raises CorruptDataError if that is
    impossible. The seconds of ``clock`` include time that the machine is suspended.

    Foreign rows are copied into our next entry, and are in the log twice. Without ``has_keys`` they
    would count twice, and are not copied where every replay takes them from the foreign entry:
    until the generation of our entry is flushed, since theirs is not below it; then the log is
    replayed from behind both. Only rows of an earlier generation, of a writer that was fenced while
    we sealed a MemTable, are copied in any case, lest the flush of that MemTable hides them.
    """

    def __init__(
        self,
        store: ObjectStore,
        claim: Claim,
        *,
        schema: pa.Schema,
        convert: ConvertEntry,
        logged: pa.Schema | None = None,
        verify_epoch: Callable[[], None],
        start_check: StartCheck,
        check_interval: float,
        clock: Callable[[], float] = boot_seconds,
        has_keys: bool = True,
    ) -> None:
        self._store = store
        self._region_id = claim.manifest.region_id
        self._epoch = claim.manifest.writer_epoch
        self._writer_id = claim.writer_id
        self._verify_epoch = verify_epoch
        self._start_check = start_check
        self._finish_check: Callable[[], object] | None = None
        self._check_interval = check_interval
        self._clock = clock
        self._has_keys = has_keys
        self._verified_at = claim.verified_at
        self._foreign: list[tuple[int, WalEntry]] = []
        self._foreign_steps: AppliedSteps = {}
        self._targets: dict[int, BlobTarget] = {}
        self.next_position = claim.next_position
        self.change_schema(schema, convert, logged)

    @property
    def foreign_steps(self) -> AppliedSteps:
        """Applied steps of the foreign entries that were taken over."""
        return dict(self._foreign_steps)

    def use_target(self, generation: int, target: BlobTarget) -> None:
        """Have the entries of a generation name the target of its replayed entries, or none.

        See :func:`memwal.format.wal_layout.new_blob_target`.
        """
        self._targets[generation] = target

    def _target_of(self, generation: int) -> BlobTarget:
        if not any(map(is_blob_v2, self._schema)):
            return {}
        if generation not in self._targets:
            # Those before are flushed, or will be: entries have ascending generations.
            self._targets = {generation: new_blob_target(generation, self._epoch)}
        return self._targets[generation]

    def change_schema(
        self, schema: pa.Schema, convert: ConvertEntry, logged: pa.Schema | None
    ) -> None:
        """Encode rows of another schema from now on: the table's columns have changed."""
        self._convert = convert
        self._schema, self._logged = schema, logged
        self._encoder = EntryEncoder(
            logged or schema,
            writer_epoch=self._epoch,
            writer_id=self._writer_id,
            target_of=self._target_of,
        )

    def prepare(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        generation: int,
        applied: AppliedSteps | None = None,
    ) -> PreparedEntry:
        """Encode a group of writes without storing it.

        For a step, ``applied`` has the newest step of each source that the region has with it.
        Raises InvalidInputError if a batch has another schema, and CorruptDataError if the rows of
        a foreign entry cannot be stored: they stay in the log for the next claim.
        """
        if applied:
            applied = newest_steps(applied, self._foreign_steps)
        copied, replayed = list[pa.RecordBatch](), list[pa.RecordBatch]()
        for position, taken in self._foreign:
            own = taken.generation is None or taken.generation >= generation
            kept = replayed if own and not self._has_keys else copied
            kept += self._convert(position, taken)
        rows = [*copied, *batches]
        if self._logged is not None:
            logged = map(to_logged, rows)
            rows = [part for batch in logged for part in to_dictionaries(batch, self._logged)]
        entry = self._encoder.encode(rows, generation=generation, applied=applied)
        if self._logged is not None:
            stored = (from_logged(batch, no_file) for batch in entry.batches)
            plain = (align_rows(pa.Table.from_batches([b]), self._schema) for b in stored)
            entry = EncodedEntry(entry.data, tuple(b for t in plain for b in t.to_batches()))
        if replayed:
            entry = EncodedEntry(entry.data, (*replayed, *entry.batches))
        return PreparedEntry(self.next_position, generation, tuple(batches), entry, applied)

    def put(self, prepared: PreparedEntry) -> PreparedEntry:
        """Store an entry at the next position, and return it as the log has it.

        An entry of a lower epoch at that position holds rows that no writer has replayed: they go
        into our entry, before our own, so that they are neither lost nor out of order. Without
        keys, see the class.

        Raises
        ------
        RegionFencedError
            Another writer claimed the region. The entry may nevertheless be in the log; the other
            writer then replays its rows. They are not acknowledged.
        CorruptDataError
            The rows of a foreign entry cannot be stored.
        OutcomeUnknownError
            Whether the entry is stored is unknown. Nothing may be appended after it.
        StoreFullError, StoreAccessError
            The store refused; the position is still free.
        TableSetupError, RegionSealedError
            The table has no MemWAL any more, or other region specs. Nothing was stored.
        """
        try:
            self._finish_check = self._start_check()
        except MemWalError:
            # A table that was moved away has no spec either: this raises TableReplacedError.
            self._store.check_held()
            raise
        while True:
            position, data = prepared.position, prepared.entry.data
            foreign = put_entry(self._store, self._region_id, position, data, self._epoch)
            if foreign is not None:
                # Kept until one of our entries holds them: we move past their position now.
                self._foreign.append((position, foreign))
                self._foreign_steps = newest_steps(self._foreign_steps, foreign.applied)
            self.next_position = position + 1
            if foreign is None:
                return prepared
            prepared = self.prepare(
                prepared.group, generation=prepared.generation, applied=prepared.applied
            )

    def acknowledge(self, stored: PreparedEntry) -> None:
        """Verify that the region was still ours when an entry was stored, and its log still read.

        Then the entry is durable. Raises RegionFencedError if the region was not ours: the other
        writer replays the rows if they are in its log. Raises OutcomeUnknownError if the store does
        not answer: nothing may be appended after the entry. Raises TableSetupError or
        RegionSealedError as :meth:`put` does, if the check was not done before the entry was
        stored.
        """
        self._check_spec()
        self._check_epoch()
        self._foreign = []

    def _check_spec(self) -> None:
        finish, self._finish_check = self._finish_check, None
        if finish is not None:
            self._verify(finish, again=lambda: self._start_check()())

    def _check_epoch(self) -> None:
        """Verify the epoch unless that succeeded less than ``check_interval`` ago.

        A writer that was paused since its last check may have been fenced, and the sentinel that
        would have stopped it may have been collected: then its entry is before the position at
        which every future replay starts, and must not be acknowledged.
        """
        now = self._clock()
        if now - self._verified_at < self._check_interval:
            return
        self._verify(self._verify_epoch, again=self._verify_epoch)
        self._verified_at = now

    def _verify(self, check: Callable[[], object], *, again: Callable[[], object]) -> None:
        """Run a check of an entry that is in the log, and repeat it if the store fails."""
        try:
            try:
                check()
            except StoreUnavailableError:
                retry_unavailable(again, attempts=4)
        except StoreError as error:
            raise OutcomeUnknownError(
                f"an entry of region {self._region_id} is in the log, but the store does not "
                "answer whether the region is still ours and its log still read; open a new writer"
            ) from error


def join_batches(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Concatenate batches of one schema: the cost of an entry grows with its batches.

    Dictionaries of a column become one. If the rows do not fit into one batch, e.g. more than 2 GiB
    of text, the batches are returned as they are.
    """
    if len(batches) == 1:
        return [*batches]
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowInvalid:
        return [*batches]
