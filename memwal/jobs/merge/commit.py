"""Attempts, progress and outcome of a merge, and small merges (spec: MemTable Merger).

:class:`MergeAttempts` is what small and divided merges share. An attempt opens the latest version,
takes the rows that the last attempt read while they may still be committed, commits them with the
progress of their regions, then raises the region marks and settles the quarantine. If another
commit was first, the next attempt begins with the version that it made.

A small merge holds its rows in memory. If few pages of an index on the key have the keys, or
without an index few fragments by the bounds of their keys, the rows to replace and to delete are
found there, however large the base table is
(:func:`~memwal.jobs.merge.match.find_in_small_part`). One commit, by compare-and-swap on the
version that was matched, has new fragments, deletions and progress. A process that dies or pauses
before it leaves files that no version names, which are collected by age; one that comes late is
refused, and another attempt matches the new version.

Otherwise Lance's ``merge_insert`` finds, replaces and adds the rows, in two thirds of the processor
time of a divided merge: :mod:`memwal.jobs.merge.merge_insert` tells what a process that pauses,
dies or repeats does at each step. Tables with stable row ids and rows with unusable columns are
merged by it, too.

If every attempt of a small merge meets other commits, the driver merges the same generations by a
divided merge. For it, the small merge is one that died: before or after a delete pass, with or
without rows in the quarantine, and without progress.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

import pyarrow as pa
from lance.dataset import LanceOperation
from lance.fragment import FragmentMetadata, write_fragments

from memwal.base_table.commit import commit_strictly, write_rows_behind
from memwal.base_table.region_marks import raise_marks
from memwal.base_table.snapshot import BaseTable, is_version_stored, lance_errors, open_base
from memwal.errors import (
    ConflictError,
    ObjectNotFoundError,
    TableSetupError,
)
from memwal.jobs.job import Guard, SkippedRegion
from memwal.jobs.merge.match import Match, find_in_small_part, write_deletions
from memwal.jobs.merge.merge_insert import merge_by_lance
from memwal.jobs.merge.picker import RegionSelection, Share, still_pending
from memwal.jobs.merge.region_rows import open_region
from memwal.jobs.merge.screening import QualityGate, Screened, screen_region, store_quarantined
from memwal.jobs.metrics import job_metrics
from memwal.quality.gate import GateDecision
from memwal.quality.report import QualityReport
from memwal.quality.rules import QualityRules
from memwal.region.manifest_store import parallel_scans
from memwal.region.rows import key_column
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import ROWS, VERSION, span
from memwal.util.concurrency import map_parallel
from memwal.util.retry import LostRaceError, retry_lost_races

_CONFLICT_WAIT_SECONDS = 0.05


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
    # Selections that a small merge left, since each attempt met other commits.
    contended: tuple[RegionSelection, ...] = ()

    def __add__(self, other: MergeOutcome) -> MergeOutcome:
        """Return the outcome of both."""
        return MergeOutcome(
            commits=self.commits + other.commits,
            metrics=self.metrics + other.metrics,
            skipped=(*self.skipped, *other.skipped),
            quality=(*self.quality, *other.quality),
        )


@dataclass(frozen=True, slots=True)
class MergeCommit:
    """Generations that an attempt committed, if any were pending, and what was counted."""

    selections: Sequence[RegionSelection] = ()
    commits: int = 0
    counted: Counter[str] = field(default_factory=Counter)  # of METRICS: rows, and bytes of files


@dataclass(slots=True, kw_only=True)
class MergeAttempts(ABC):
    """State that the attempts of a merge share: its regions, lease, gate, and regions to skip."""

    location: TableLocation
    selections: Sequence[RegionSelection]
    guard: Guard | None
    gate: QualityGate | None
    skipped: dict[UUID, SkippedRegion] = field(default_factory=dict)

    def repeat(self, attempts: int) -> MergeOutcome:
        """Merge the pending generations; MergeContentionError if each attempt met other commits."""
        return retry_lost_races(
            self._attempt,
            attempts=attempts,
            seconds=_CONFLICT_WAIT_SECONDS,
            exhausted=MergeContentionError(
                f"{attempts} attempts to merge into {self.location} met other commits; "
                "try again later"
            ),
        )

    @abstractmethod
    def commit(self, base: BaseTable) -> MergeCommit:
        """Commit the pending rows and their progress onto a version, or raise LostRaceError."""

    def _attempt(self) -> MergeOutcome:
        base = open_base(self.location)
        base.require_mem_wal()
        base.check_changeable()
        try:
            done = self._commit(base)
        except LostRaceError:
            job_metrics().conflict(self.location.uri)
            raise
        merged = done.selections
        if merged:
            marks = {region.region_id: region.mark for region in merged}
            raise_marks(self.location.store, marks, progress_of(merged))
            if self.gate is not None:
                self.gate.settle(merged)
        report = self.gate.report(merged) if self.gate is not None else None
        return MergeOutcome(
            commits=done.commits,
            metrics=Counter(
                generations=sum(len(region.generations) for region in merged),
                bytes=sum(region.bytes for region in merged),
                **done.counted,
            ),
            skipped=tuple(self.skipped.values()),
            quality=() if report is None else (report,),
        )

    def _commit(self, base: BaseTable) -> MergeCommit:
        try:
            return self.commit(base)
        except (ObjectNotFoundError, TableSetupError) as error:
            # Another merger deletes the files of a run for generations that it merged.
            is_pending = self.pending(open_base(self.location)) == self.pending(base)
            if is_pending and is_version_stored(self.location, base.version):
                raise
            # This process was paused, and the table has gone on.
            raise LostRaceError("the version that was read is outdated") from error

    def pending(self, base: BaseTable) -> list[RegionSelection]:
        """Return the generations that a version does not have, without skipped regions."""
        return still_pending(self.selections, base.details.merged, stops=self._stops())

    def skip(self, regions: Mapping[UUID, SkippedRegion]) -> None:
        """Remember the first generation of each region that cannot be merged."""
        for region_id, region in regions.items():
            earlier = self.skipped.get(region_id)
            if earlier is None or region.generation < earlier.generation:
                self.skipped[region_id] = region

    def check_lease(self) -> None:
        """Call the guard, which raises an error if the merge must stop."""
        if self.guard is not None:
            self.guard()

    def may_commit(
        self, read: BaseTable, selections: Sequence[RegionSelection], latest: BaseTable
    ) -> bool:
        """Return whether rows that were read for one version may be committed onto a later one.

        They have to be those of all pending generations. Rows of a generation must not be committed
        over those of a later one, which another merger may have merged. And after a restore, an
        earlier one that another merger had merged is pending again: the progress that is committed
        would cover it without its rows. The rows also need the columns of that version.
        """
        # A set: a divided merge reads regions by parts.
        return (
            set(self.pending(latest)) == set(selections)
            and latest.stored_schema == read.stored_schema
            and latest.field_ids() == read.field_ids()
        )

    def _stops(self) -> dict[UUID, int]:
        return {region_id: region.generation for region_id, region in self.skipped.items()}


def progress_of(selections: Iterable[RegionSelection]) -> dict[UUID, int]:
    """Return the newest generation of each region."""
    return {region.region_id: region.last for region in selections}


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
    gate = QualityGate.of(rules, location)
    merge = _SmallMerge(location=location, selections=selections, guard=guard, gate=gate)
    return merge.repeat(attempts)


@dataclass(frozen=True, slots=True)
class MergeSource:
    """Rows of one commit."""

    base: BaseTable  # version for which they were read
    selections: tuple[RegionSelection, ...]  # what was read; empty if nothing could be
    upserts: pa.Table
    deletes: pa.Table  # keys only
    # Regions that were read only up to a generation, or not at all.
    skipped: Mapping[UUID, SkippedRegion]
    decided: Mapping[UUID, GateDecision]  # of each region that the quality gate screened


@dataclass(slots=True, kw_only=True)
class _SmallMerge(MergeAttempts):
    """A merge of rows that are held in memory."""

    source: MergeSource | None = None
    counted: Counter[str] = field(default_factory=Counter)  # by all attempts

    def commit(self, base: BaseTable) -> MergeCommit:
        """Find the rows to replace in a small part of the table, or let Lance merge all rows."""
        source = self.source
        if source is None or not self.may_commit(source.base, source.selections, base):
            source = self.source = self._read(base)
        if not source.selections:
            return MergeCommit()
        self.check_lease()
        counted, commits = _merge_by_small_part(base, source), 1
        if counted is None:
            commits += bool(source.deletes.num_rows)
            merge_by_lance(
                base,
                source.deletes,
                source.upserts,
                source.selections,
                counted=self.counted,
                reopen=lambda version: self._reopen(source, version),
            )
        else:
            self.counted += counted
        return MergeCommit(source.selections, commits, self.counted)

    def _reopen(self, source: MergeSource, version: int) -> BaseTable:
        """Return the version that the delete pass created, or raise LostRaceError.

        It is not the latest one if other commits followed. One of them may be a restore, which
        brought the deleted rows back; the marked commit finds it only among those after its own
        version.
        """
        try:
            base = open_base(self.location, version=version)
        except TableSetupError as error:
            raise LostRaceError("the version after the delete pass was cleaned up") from error
        if not self.may_commit(source.base, source.selections, base):
            raise LostRaceError("the base table changed after the delete pass")
        self.check_lease()
        return base

    def _read(self, base: BaseTable) -> MergeSource:
        """Read the pending rows, and store those that the quality gate keeps out."""
        rules = self.gate.rules if self.gate is not None else None
        source = read_source(base, self.pending(base), rules)
        self.skip(source.skipped)
        if self.gate is not None:
            self.gate.record([Screened.of(source.decided)])
            self.check_lease()
            store_quarantined(self.location, self.gate.rules, source.decided, source.selections)
        return source


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
        return reader.selection, list(reader.storable(reader.upserted)), reader.deletes()

    schema = pa.schema([base.schema.field(name) for name in base.primary_key])
    threads = parallel_scans(is_local=base.location.store.is_local)
    regions = map_parallel(read, selections, threads=threads)
    return MergeSource(
        base=base,
        selections=tuple(selection for selection, *_ in regions if selection.generations),
        upserts=pa.Table.from_batches([r for _, rows, _ in regions for r in rows], base.schema),
        deletes=pa.concat_tables(
            [schema.empty_table(), *(deletes for *_, deletes in regions)]
        ).combine_chunks(),
        skipped={s.region_id: skipped[s.region_id] for s in selections if s.region_id in skipped},
        decided=decided,
    )


def _merge_by_small_part(base: BaseTable, source: MergeSource) -> Counter[str] | None:
    """Find the rows to replace in a small part of the table, commit, or raise LostRaceError.

    Return None if Lance is to find them. Values of unusable columns stay in a row that it updates.
    """
    if base.unusable:
        return None
    keys = pa.concat_tables([source.upserts.select(base.primary_key), source.deletes])
    fragments: list[FragmentMetadata] = []
    with lance_errors(f"merging into {base.location}"):
        found = find_in_small_part(base, key_column(keys, base.primary_key))
        if found is None:
            return None
        matched, index_bytes = found
        if source.upserts.num_rows:
            options = {"storage_options": base.location.lance_options()}
            with write_rows_behind(base.location, source.upserts.nbytes):
                fragments = write_fragments(source.upserts, base.dataset, mode="append", **options)
        matches = write_deletions(base.dataset.get_fragments(), matched, {})
    commit_rows(base, fragments, matches, progress_of(source.selections))
    counted = base.dataset.io_stats_snapshot()
    positions = matched.column("position").to_numpy()
    return Counter(
        rows_upserted=source.upserts.num_rows,
        rows_deleted=int((positions >= source.upserts.num_rows).sum()),
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
    attributes = {ROWS: rows, VERSION: base.version}
    with span("memwal.merge.commit", base.location, attributes=attributes):
        commit_strictly(base, operation, details=details)
