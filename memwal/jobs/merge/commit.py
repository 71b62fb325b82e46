"""Small merges: rows of some regions and their progress in one commit (spec: MemTable Merger).

If few pages of an index on the key have the keys, or without an index few fragments by the bounds
of their keys, the rows to replace and to delete are found there, however large the base table is
(:func:`~memwal.jobs.merge.match.find_in_small_part`). One commit, by compare-and-swap on the
version that was matched, has new fragments, deletions and progress. A process that dies or pauses
before it leaves files that no version names, which are collected by age; one that comes late is
refused, and another attempt matches the new version.

Otherwise Lance's ``merge_insert`` finds, replaces and adds the rows: for many keys all over the
table it takes less processor time than a divided merge, whose tasks exchange files.

The commit that carries the rows also records the progress. What a process that pauses, dies or
repeats does at each step of Lance's merge stands in :mod:`memwal.jobs.merge.merge_insert`.

If every attempt meets other commits, the driver merges the same generations by a divided merge.
For it, this merge is one that died: before or after a delete pass, with or without rows in the
quarantine, and without progress.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from memwal.jobs.merge.merge_insert import delete, is_pending, note_conflict, upsert
from memwal.jobs.merge.picker import RegionSelection, Share, still_pending
from memwal.jobs.merge.region_rows import open_region
from memwal.jobs.merge.screening import QualityGate, Screened, screen_region, store_quarantined
from memwal.quality.gate import GateDecision
from memwal.quality.report import QualityReport
from memwal.quality.rules import QualityRules
from memwal.region.rows import key_column
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import ROWS, VERSION, span
from memwal.util.retry import LostRaceError, retry_lost_races

logger = logging.getLogger(__name__)

_CONFLICT_WAIT_SECONDS = 0.05

# Lance decodes on several processors itself; these threads overlap the work in between.
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
    commit = _MergeCommit(location, selections, guard, QualityGate.of(rules, location))
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
    gate: QualityGate | None
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
        counted, commits = _merge_by_small_part(base, source), 1
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
            self.metrics += delete(base, source.deletes, source.selections)
            base = open_base(self.location)
            if not (is_pending(base, source.selections) and _fits(source, base)):
                raise LostRaceError("the base table changed after the delete pass")
            self._check_lease()
        self.metrics += upsert(base, source.upserts, source.selections)
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
        return reader.selection, list(reader.storable(reader.upserted)), reader.deletes()

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


def _fits(source: MergeSource, base: BaseTable) -> bool:
    """Return whether the rows of a source have the columns of a version."""
    return bool(source.upserts.schema.equals(base.schema))


def _merge_by_small_part(base: BaseTable, source: MergeSource) -> Counter[str] | None:
    """Find the rows to replace in a small part of the table, commit, or raise LostRaceError.

    Return None if Lance is to find them. Values of unusable columns stay in a row that it updates.
    """
    keys = pa.concat_tables([source.upserts.select(base.primary_key), source.deletes])
    if base.unusable:
        return None
    fragments: list[FragmentMetadata] = []
    try:
        with lance_errors(f"merging into {base.location}"):
            found = find_in_small_part(base, key_column(keys, base.primary_key))
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
        note_conflict(base, error)
        raise
