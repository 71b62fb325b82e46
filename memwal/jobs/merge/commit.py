"""Small merges: rows of some regions and their progress in one commit (spec: MemTable Merger).

If few pages of an index on the key have the keys, the rows to replace and to delete are found there
(:func:`~memwal.jobs.merge.match.find_by_index`), however large the base table is. One commit, by
compare-and-swap on the version that was matched, has new fragments, deletions and progress. A
process that dies or pauses before it leaves files that no version names, which are collected by
age; one that comes late is refused, and another attempt matches the new version.

Otherwise Lance's ``merge_insert`` finds, replaces and adds the rows: for many keys all over the
table it takes less processor time than a divided merge, whose tasks exchange files.

The commit that carries the rows also records the progress. What a process that pauses, dies or
repeats does at each step:

* before the delete pass: nothing happened. Rows that the quality rules keep out are in the
  quarantine by then: :mod:`memwal.jobs.merge.screening`;
* between the delete pass and the marked commit: keys whose newest row is a tombstone are gone from
  the base table a little early. Every reader that merges sees them as deleted anyway, and the next
  run does both passes again;
* after the marked commit: the progress covers the generations, and every later attempt leaves them
  out. The region marks (:mod:`memwal.base_table.region_marks`) follow; a merge that dies before
  them leaves them behind the progress, and the next plan writes them.

A process that wakes late cannot do harm. Its delete pass is pinned to the version whose progress it
read, and is refused when any other commit touched the same rows since, or moved the progress of its
regions: the base table may have rows by then that came back after the delete. Its marked commit is
refused when the progress is not below its marks, when another merger moved the progress of its
regions, and when another writer added rows that may have the same keys.

If every attempt meets other commits, the driver merges the same generations by a divided merge.
For it, this merge is one that died: before or after a delete pass, with or without rows in the
quarantine, and without progress.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

import lance
import pyarrow as pa
from lance.dataset import LanceOperation
from lance.fragment import FragmentMetadata, write_fragments
from lance.mem_wal import CompactedSsTable

from memwal.base_table.commit import commit_durably, commit_strictly
from memwal.base_table.region_marks import raise_marks
from memwal.base_table.snapshot import BaseTable, is_version_stored, lance_errors, open_base
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    ObjectNotFoundError,
    ProgressLostError,
    TableSetupError,
)
from memwal.jobs.job import Guard, SkippedRegion
from memwal.jobs.merge.match import Match, find_by_index, write_deletions
from memwal.jobs.merge.picker import RegionSelection, Share, still_pending
from memwal.jobs.merge.region_rows import open_region
from memwal.jobs.merge.screening import Gate, Screened, screen_region, store_quarantined
from memwal.jobs.metrics import job_metrics
from memwal.lsm.indexes.unusable import unusable_indexes
from memwal.lsm.region_places import RegionPlaces
from memwal.quality.gate import GateDecision
from memwal.quality.report import QualityReport
from memwal.quality.rules import QualityRules
from memwal.reader.unreadable_indexes import is_index_damage
from memwal.region.rows import key_column
from memwal.storage.local_files import write_behind
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import ROWS, VERSION, span
from memwal.util.retry import LostRaceError, retry_lost_races

logger = logging.getLogger(__name__)

# Below this many rows Lance's own index finds the matches faster than a join does.
_JOIN_FROM_ROWS = 1_000
_CONFLICT_WAIT_SECONDS = 0.05

# Syncing less takes no time worth another thread.
_WRITE_BEHIND_BYTES = 64 << 20


# Lance decodes on several processors itself; these threads overlap what lies between.
_PARALLEL_READS = 4


class MergeContentionError(ConflictError):
    """Every attempt of a merge commit met another commit."""


METRICS: Final = (
    "generations",
    "rows_upserted",
    "rows_deleted",
    "bytes",  # of the backlog, in memory
    "bytes_read",  # of the base table and its indexes
    "bytes_written",  # of the base table
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutcome:
    """Outcome of one commit, or of all commits of a task together."""

    commits: int = 0
    metrics: Counter[str] = field(default_factory=Counter)  # by the names of METRICS
    skipped: tuple[SkippedRegion, ...] = ()
    quality: tuple[QualityReport, ...] = ()
    # What a small merge left, since each attempt met other commits.
    contended: tuple[RegionSelection, ...] = ()

    def __add__(self, other: MergeOutcome) -> MergeOutcome:
        """Return the outcome of both."""
        return MergeOutcome(
            commits=self.commits + other.commits,
            metrics=self.metrics + other.metrics,
            skipped=(*self.skipped, *other.skipped),
            quality=(*self.quality, *other.quality),
        )


def merge_commit(
    location: TableLocation,
    selections: Sequence[RegionSelection],
    *,
    attempts: int,
    guard: Guard | None = None,
    rules: QualityRules | None = None,
) -> MergeOutcome:
    """Merge the pending generations of a selection, with one marked commit.

    Raises MergeContentionError if every attempt met another commit.
    """
    commit = _MergeCommit(location, selections, guard, Gate.of(rules, location))
    return retry_lost_races(
        commit.attempt,
        attempts=attempts,
        seconds=_CONFLICT_WAIT_SECONDS,
        exhausted=MergeContentionError(
            f"{attempts} attempts to merge into {location} met other commits; try again later"
        ),
    )


@dataclass(frozen=True, slots=True)
class MergeSource:
    """Rows of one commit."""

    selections: tuple[RegionSelection, ...]  # what was read; empty if nothing could be
    upserts: pa.Table
    deletes: pa.Table  # keys only
    # Regions that were read only up to a generation, or not at all.
    skipped: Mapping[UUID, SkippedRegion]
    decided: Mapping[UUID, GateDecision]  # of each region that the quality gate screened

    @property
    def merged(self) -> dict[UUID, int]:
        """The newest generation of each region."""
        return {selection.region_id: selection.last for selection in self.selections}


@dataclass(slots=True)
class _MergeCommit:
    """State that the attempts of one commit share: rows that were read, and regions to skip."""

    location: TableLocation
    selections: Sequence[RegionSelection]
    guard: Guard | None
    gate: Gate | None
    source: MergeSource | None = None
    screened: MergeSource | None = None  # the source whose rows are in the quarantine
    skipped: dict[UUID, SkippedRegion] = field(default_factory=dict)
    metrics: Counter[str] = field(default_factory=Counter)  # of both passes, of Lance

    def attempt(self) -> MergeOutcome:
        """Commit on top of the latest version, or raise LostRaceError."""
        base = open_base(self.location)
        base.require_mem_wal()
        source = self._pending_source(base)
        if not source.selections:
            return self._outcome(source)
        self._check_lease()
        if self.gate is not None and self.screened is not source:
            store_quarantined(self.location, self.gate.rules, source.decided, source.selections)
            self.screened = source
        counted, commits = _merge_by_index(base, source), 1
        if counted is None:
            commits = self._merge_by_lance(base, source)
        else:
            self.metrics += counted
        raise_marks(
            self.location.store,
            {selection.region_id: selection.mark for selection in source.selections},
            source.merged,
        )
        if self.gate is not None:
            self.gate.settle(source.selections)
        return self._outcome(source, commits=commits)

    def _merge_by_lance(self, base: BaseTable, source: MergeSource) -> int:
        """Delete and upsert the rows, in a commit each; return how many there were."""
        if source.deletes.num_rows:
            self.metrics += _delete(base, source)
            base = open_base(self.location)
            if not (_is_pending(base, source.selections) and _fits(source, base)):
                raise LostRaceError("the base table changed after the delete pass")
            self._check_lease()
        self.metrics += _upsert(base, source)
        return 2 if source.deletes.num_rows else 1

    def _pending_source(self, base: BaseTable) -> MergeSource:
        """Return the pending rows; those of the last attempt while these are unchanged."""
        stops = {region_id: region.generation for region_id, region in self.skipped.items()}
        pending = still_pending(self.selections, base.details.merged, stops=stops)
        source = self.source
        if source is None or source.selections != tuple(pending) or not _fits(source, base):
            rules = self.gate.rules if self.gate is not None else None
            source = self.source = read_source(base, pending, rules)
            self.skipped |= source.skipped
            if self.gate is not None:
                self.gate.record([Screened.of(source.decided)])
        return source

    def _check_lease(self) -> None:
        if self.guard is not None:
            self.guard()

    def _outcome(self, source: MergeSource, *, commits: int = 0) -> MergeOutcome:
        """Describe the commit of a source; none was made if it has no generations."""
        report = self.gate.report(source.selections) if self.gate is not None else None
        counted, metrics = self.metrics, Counter[str]()
        if source.selections:
            metrics.update(
                generations=sum(len(selection.generations) for selection in source.selections),
                rows_upserted=counted["num_inserted_rows"] + counted["num_updated_rows"],
                rows_deleted=counted["num_deleted_rows"],
                bytes=sum(selection.bytes for selection in source.selections),
                bytes_read=counted["bytes_read"],
                bytes_written=counted["bytes_written"],
            )
        return MergeOutcome(
            commits=commits,
            metrics=metrics,
            skipped=tuple(self.skipped.values()),
            quality=() if report is None else (report,),
        )


def read_source(
    base: BaseTable, selections: Sequence[RegionSelection], rules: QualityRules | None = None
) -> MergeSource:
    """Read the newest row of each key, of the rows that the quality rules let in.

    Each region is read on its own, so that a damaged one does not stop the others. It is read up to
    the first generation that cannot be read, or that the rules keep waiting. Raises LostRaceError
    if a generation is gone: another merger merged it and a collector deleted it.
    """
    skipped: dict[UUID, SkippedRegion] = {}
    decided: dict[UUID, GateDecision] = {}

    def read(region: RegionSelection) -> tuple[RegionSelection, list[pa.RecordBatch], pa.Table]:
        if rules is None:
            reader = open_region(base, region, Share(), skipped, whole=True)
        else:
            reader = screen_region(base, rules, region, skipped, decided, whole=True)
        if reader is None:
            return replace(region, generations=()), [], schema.empty_table()
        deletes = reader.keys().filter(pa.array(reader.deleted[reader.newest]))
        return reader.selection, list(reader.storable(reader.upserted)), deletes

    schema = pa.schema([base.schema.field(name) for name in base.primary_key])
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        regions = list(pool.map(read, selections))
    return MergeSource(
        selections=tuple(selection for selection, *_ in regions if selection.generations),
        upserts=pa.Table.from_batches([r for _, rows, _ in regions for r in rows], base.schema),
        deletes=pa.concat_tables(
            [schema.empty_table(), *(deletes for *_, deletes in regions)]
        ).combine_chunks(),
        skipped={s.region_id: skipped[s.region_id] for s in selections if s.region_id in skipped},
        decided=decided,
    )


def _is_pending(base: BaseTable, selections: Sequence[RegionSelection]) -> bool:
    """Return whether a version has none of the selected generations, and did not go back."""
    try:
        return still_pending(selections, base.details.merged) == list(selections)
    except ProgressLostError:
        # The next attempt raises it.
        return False


def _fits(source: MergeSource, base: BaseTable) -> bool:
    """Return whether the rows of a source have the columns of a version."""
    return bool(source.upserts.schema.equals(base.schema))


def _merge_by_index(base: BaseTable, source: MergeSource) -> Counter[str] | None:
    """Find the rows to replace by an index, and commit, or raise LostRaceError.

    Return None if Lance is to find them. Values of unusable columns stay in a row that it updates.
    """
    keys = pa.concat_tables([source.upserts.select(base.primary_key), source.deletes])
    if base.unusable:
        return None
    fragments: list[FragmentMetadata] = []
    try:
        with lance_errors(f"merging into {base.location}"):
            found = find_by_index(base, key_column(keys, base.primary_key))
            if found is None:
                return None
            matched, index_bytes = found
            if source.upserts.num_rows:
                options = {"storage_options": base.location.lance_options()}
                with write_rows_behind(base.location, source.upserts.nbytes):
                    fragments = write_fragments(
                        source.upserts, base.dataset, mode="append", **options
                    )
            matches = write_deletions(base.dataset.get_fragments(), matched, {})
    except (ObjectNotFoundError, TableSetupError) as error:
        if is_version_stored(base.location, base.version):
            raise
        # This process was paused, and the table has gone on.
        raise LostRaceError("the version that was matched was cleaned up") from error
    commit_rows(base, fragments, matches, source.merged)
    counted = base.dataset.io_stats_snapshot()
    positions = matched.column("position").to_numpy()
    return Counter(
        num_updated_rows=source.upserts.num_rows,
        num_deleted_rows=int((positions >= source.upserts.num_rows).sum()),
        bytes_read=counted.read_bytes + index_bytes,
        bytes_written=counted.written_bytes,
    )


def commit_rows(
    base: BaseTable,
    fragments: Sequence[FragmentMetadata],
    matches: Iterable[Match],
    merged: Mapping[UUID, int],
) -> None:
    """Commit new fragments, deletions and merge progress together, on the version ``base`` only.

    ``merged`` has the newest generation of each region whose rows these are. A table without a
    primary key has no deletions. Raises LostRaceError if ``base`` is not the latest version.
    """
    operation: LanceOperation.BaseOperation = LanceOperation.Append(list(fragments))
    if base.primary_key:
        changed = [(match.fragment, match.changed) for match in matches]
        operation = LanceOperation.Update(
            removed_fragment_ids=[number for number, fragment in changed if fragment is None],
            updated_fragments=[fragment for _, fragment in changed if fragment is not None],
            new_fragments=list(fragments),
            fields_modified=[],
        )
    details = replace(base.details, merged={**base.details.merged, **merged})
    rows = sum(fragment.physical_rows for fragment in fragments)
    try:
        with span(
            "memwal.merge.commit", base.location, attributes={ROWS: rows, VERSION: base.version}
        ):
            commit_strictly(base, operation, details=details)
    except LostRaceError as error:
        _note_conflict(base, error)
        raise


def _delete(base: BaseTable, source: MergeSource) -> Counter[str]:
    """Delete keys from exactly the version that was read, or raise LostRaceError."""

    def execute(dataset: lance.LanceDataset, use_index: bool) -> Counter[str]:
        builder = dataset.merge_insert(list(base.primary_key)).when_matched_delete()
        return _execute(dataset, builder, source.deletes, use_index)

    def accept(version: int) -> bool:
        try:
            return _is_pending(open_base(base.location, version=version), source.selections)
        except TableSetupError:
            # Cleaned up already.
            return False

    return _traced_commit("delete", base, source.deletes, execute, accept=accept)


def _upsert(base: BaseTable, source: MergeSource) -> Counter[str]:
    """Upsert the rows and record the progress in one commit, or raise LostRaceError."""

    def execute(dataset: lance.LanceDataset, use_index: bool) -> Counter[str]:
        builder = (
            dataset.merge_insert(list(base.primary_key))
            .when_matched_update_all()
            .when_not_matched_insert_all()
        )
        builder.mark_sstables_as_compacted(
            [
                CompactedSsTable(str(selection.region_id), selection.last)
                for selection in source.selections
            ]
        )
        return _execute(dataset, builder, source.upserts, use_index)

    accept = _can_rebase_onto(base, source)
    with write_rows_behind(base.location, source.upserts.nbytes):
        return _traced_commit("upsert", base, source.upserts, execute, accept=accept)


def write_rows_behind(location: TableLocation, size: int) -> AbstractContextManager[None]:
    """Start writing new data files of a local table to disk while the block creates them.

    Nothing is done for fewer bytes than take any time.
    """
    folder = location.local_path
    if folder is None or size < _WRITE_BEHIND_BYTES:
        return nullcontext()
    return write_behind(folder / "data")


def _can_rebase_onto(base: BaseTable, source: MergeSource) -> Callable[[int], bool]:
    """Return a predicate: may this merge be rebased onto a version newer than ``base``?

    Lance's check looks for rows that both commits touched, and misses three cases, so each version
    in between is inspected:

    * it changed the merge progress of one of our regions: another merger may have merged one of
      several generations of ours, and inserted a key which a later one of ours deletes, after our
      delete pass;
    * it added fragments without moving any merge progress: another process wrote to the base table
      directly and may have inserted a key that is new in this merge too. Lance compares inserted
      keys only of merges that join, and not of those that look keys up in an index;
    * it added fragments of regions that may have keys of ours, since another client named one of
      them: see :mod:`memwal.lsm.region_places`. The other merger may have planned before our
      generations were flushed.

    A commit that moves only the progress of other regions is safe: regions have disjoint keys.
    """
    versions = {base.version: base}
    own = [selection.region_id for selection in source.selections]
    places = RegionPlaces(base)

    def accept(version: int) -> bool:
        for number in range(base.version + 1, version + 1):
            if number not in versions:
                try:
                    versions[number] = open_base(base.location, version=number)
                except TableSetupError:
                    # Cleaned up already: what it changed cannot be found out any more.
                    return False
            before, after = versions[number - 1], versions[number]
            if not _is_pending(after, source.selections):
                return False
            added = set(after.dataset.fragment_ids()) - set(before.dataset.fragment_ids())
            moved = dict(after.details.merged.items() - before.details.merged.items())
            if added and (not moved or places.foreign([*own, *moved])):
                return False
        return True

    return accept


def _execute(
    dataset: lance.LanceDataset,
    builder: lance.dataset.MergeInsertBuilder,
    rows: pa.Table,
    use_index: bool,
) -> Counter[str]:
    """Run a pass; return Lance's counts, and the bytes that it read and wrote."""
    # Lance's own retries would run the pass on a version whose progress was not checked.
    builder = builder.conflict_retries(0).use_index(use_index)
    metrics = builder.execute(rows)
    counted = dataset.io_stats_snapshot()
    return Counter(**metrics, bytes_read=counted.read_bytes, bytes_written=counted.written_bytes)


def _traced_commit(
    what: str,
    base: BaseTable,
    rows: pa.Table,
    execute: Callable[[lance.LanceDataset, bool], Counter[str]],
    *,
    accept: Callable[[int], bool] | None = None,
) -> Counter[str]:
    """Try a commit once, in a span of its own; LostRaceError if another commit was first.

    If the index on the key cannot be read, the rows are joined instead: an index build after the
    merge replaces it.
    """

    def commit(use_index: bool) -> Counter[str]:
        doing = f"merging into {base.location}"
        metrics = commit_durably(
            base, lambda dataset: execute(dataset, use_index), doing=doing, accept=accept
        )
        # None if the commit was stored although Lance then raised.
        return metrics or Counter()

    attributes = {ROWS: rows.num_rows, VERSION: base.version}
    with span(f"memwal.merge.{what}", base.location, attributes=attributes):
        try:
            # An index that misses rows would make this insert keys that the base table has, and
            # delete none. The version that is matched is the one whose indexes are trusted here:
            # another commit in between changes what Lance compares, never what it matches.
            if rows.num_rows < _JOIN_FROM_ROWS and not unusable_indexes(base):
                try:
                    return commit(use_index=True)
                except (CorruptDataError, ObjectNotFoundError) as error:
                    if not is_index_damage(error.__cause__ or error):
                        raise
                    logger.warning("%s; merging without an index", error)
            return commit(use_index=False)
        except LostRaceError as error:
            _note_conflict(base, error)
            raise


def _note_conflict(base: BaseTable, error: LostRaceError) -> None:
    job_metrics().conflict(base.location.uri)
    logger.info("merge into %s met another commit, trying again: %s", base.location, error)
