"""Quality gate of a merge: decides which rows enter before any of them is rewritten or merged.

A region is screened as a whole: its keys and the columns of the expectations are read, and the rows
that are kept out. These are durable in the quarantine table before the merge records that their
generation is merged. A divided merge screens in tasks; a file of the run tells which rows enter,
and the tasks that rewrite the region read it, in whatever shares. A small merge screens the rows
that it has read.

What a process that pauses, dies or repeats does:

* before it writes the rows to the quarantine: nothing has happened;
* between writing them and the commit with the progress: the rows are in the quarantine although
  their generation still waits. The next merge decides again and writes them again. Region,
  generation folder and row number are their key, so each row is in the quarantine once. Two mergers
  that write at once are kept apart by the version that each of them commits;
* a task of a divided merge that runs twice writes another file, and finds its rows in the
  quarantine: the decision is the same. Only the file that the driver was told of is read;
* another merger merged one of the generations meanwhile: nothing is written to the quarantine, and
  the merge starts over;
* after the progress was recorded, the generation is never read again, and neither is the decision.

An attempt that merged other generations together may have decided otherwise about a row: a newer
row of its key came with them, or the row equalled another one. The merger that recorded the
progress therefore settles: it deletes the rows that other mergers wrote about the same generations,
and commits even if there are none. A merger or a task that resumes only after that adds nothing:
its write is refused, because it was to land behind an older version, and when it opens the newest
version it first checks whether the generations still wait. Only if no merger settles, because the
process died right after it recorded the progress, may rows with another decision stay. Lists omit
them as long as the base table has exactly these rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID, uuid4

import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import MemWalError
from memwal.jobs.job import SkippedRegion, TaskRunner
from memwal.jobs.merge.picker import RegionSelection, Share, still_pending, stop_before
from memwal.jobs.merge.region_rows import (
    RegionReader,
    UnreadableGenerationError,
    open_region,
    skip_from,
)
from memwal.jobs.merge.run_files import write_decision
from memwal.quality.gate import GateDecision, RegionRows, screen
from memwal.quality.quarantine import Quarantine, RowOrigin, quarantined_rows
from memwal.quality.report import QualityReport, combine_reports
from memwal.quality.rules import QualityRules
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import VERSION, span
from memwal.util.arrays import Mask
from memwal.util.retry import LostRaceError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenTask:
    """Regions whose rows one worker screens."""

    location: TableLocation
    version: int
    run_id: UUID
    regions: tuple[RegionSelection, ...]
    rules: QualityRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """Decisions about some regions."""

    quarantined: tuple[RowOrigin, ...]
    reports: Mapping[UUID, QualityReport]
    # Of a task of a divided merge: regions on hold or unreadable, from a generation on; and of each
    # region with rows, the file that tells which enter.
    skipped: Mapping[UUID, SkippedRegion] = field(default_factory=dict)
    decisions: Mapping[UUID, str] = field(default_factory=dict)

    @classmethod
    def of(cls, decided: Mapping[UUID, GateDecision]) -> Screened:
        """Return the reports of some decisions, and the places of the rows that they keep out."""
        origins = [
            RowOrigin(region_id, folder, int(row))
            for region_id, decision in decided.items()
            if (out := decision.quarantined) is not None
            for folder, row in zip(out.folders.to_pylist(), out.positions, strict=True)
        ]
        reports = {region_id: decision.report for region_id, decision in decided.items()}
        return cls(quarantined=tuple(origins), reports=reports)


class QualityGate:
    """Decisions of a merge over all its attempts."""

    def __init__(self, rules: QualityRules, location: TableLocation) -> None:
        self.rules = rules
        self._location = location
        self._reports: dict[UUID, QualityReport] = {}
        self._held: dict[UUID, QualityReport] = {}
        self._quarantined: tuple[RowOrigin, ...] = ()
        self.decisions: dict[UUID, str] = {}

    @classmethod
    def of(cls, rules: QualityRules | None, location: TableLocation) -> QualityGate | None:
        """Return the gate of some rules; None if they let all rows enter."""
        return cls(rules, location) if rules is not None and rules.gates else None

    def screen(
        self,
        base: BaseTable,
        run_id: UUID,
        regions: Sequence[tuple[RegionSelection, ...]],
        run: TaskRunner,
    ) -> list[Mapping[UUID, SkippedRegion]]:
        """Decide about the regions of each task, and return the regions to skip."""
        tasks = [
            ScreenTask(
                location=self._location,
                version=base.version,
                run_id=run_id,
                regions=part,
                rules=self.rules,
            )
            for part in regions
        ]
        with span("memwal.merge.screen", self._location, attributes={VERSION: base.version}):
            done = run(tasks, run_screen_task)
        self.record(done)
        return [part.skipped for part in done]

    def record(self, screened: Sequence[Screened]) -> None:
        """Take decisions in place of all earlier ones."""
        self.decisions = {}
        self._quarantined = tuple(origin for part in screened for origin in part.quarantined)
        for part in screened:
            self.decisions |= part.decisions
            for region_id, report in part.reports.items():
                held = report.skipped_regions
                (self._held if held else self._reports)[region_id] = report

    def settle(self, merged: Sequence[RegionSelection]) -> None:
        """Delete quarantined rows that other mergers kept out of the merged generations."""
        quarantine = Quarantine.of(self._location, self.rules.quarantine_uri)
        folders = {
            region.region_id: [generation.path for generation in region.generations]
            for region in merged
        }
        try:
            quarantine.settle(folders, quarantined=self._quarantined)
        except MemWalError as error:
            # The merge is committed, and extra rows in the quarantine do no harm.
            logger.warning("the quarantine %s was not settled: %s", quarantine, error)

    def report(self, merged: Sequence[RegionSelection]) -> QualityReport | None:
        """Combine the reports of the merged regions and of those on hold."""
        regions = {region.region_id for region in merged} - set(self._held)
        return combine_reports(
            [
                *(report for region, report in self._reports.items() if region in regions),
                *self._held.values(),
            ]
        )


def run_screen_task(task: ScreenTask) -> Screened:
    """Decide about each region, and store the decisions and the rows that are kept out.

    Raises LostRaceError if another merger has merged one of the generations.
    """
    base = open_base(task.location, version=task.version)
    skipped: dict[UUID, SkippedRegion] = {}
    decided: dict[UUID, GateDecision] = {}
    decisions: dict[UUID, str] = {}
    for region in task.regions:
        reader = screen_region(base, task.rules, region, skipped, decided)
        if reader is not None:
            decisions[region.region_id] = write_decision(
                task.location, task.run_id, uuid4(), reader.newest
            )
    stops = {region_id: region.generation for region_id, region in skipped.items()}
    store_quarantined(task.location, task.rules, decided, stop_before(task.regions, stops))
    return replace(Screened.of(decided), skipped=skipped, decisions=decisions)


def store_quarantined(
    location: TableLocation,
    rules: QualityRules,
    decided: Mapping[UUID, GateDecision],
    accepted: Sequence[RegionSelection],
) -> None:
    """Write the rows that are kept out of the accepted generations to the quarantine, durably.

    Raises LostRaceError, and writes nothing, if another merger has merged one of the generations.
    """
    kept_out = [
        quarantined_rows(region.region_id, out, suite=rules.suite)
        for region in accepted
        if (out := decided[region.region_id].quarantined) is not None
    ]

    def pending() -> bool:
        merged = open_base(location).details.merged
        return still_pending(accepted, merged) == list(accepted)

    quarantine = Quarantine.of(location, rules.quarantine_uri)
    if kept_out and not quarantine.write(pa.concat_tables(kept_out), still_pending=pending):
        raise LostRaceError("another merger merged some of the generations")


def screen_region(
    base: BaseTable,
    rules: QualityRules,
    region: RegionSelection,
    skipped: dict[UUID, SkippedRegion],
    decided: dict[UUID, GateDecision],
    *,
    whole: bool = False,
) -> RegionReader | None:
    """Decide about a region: return its rows that enter, up to the first generation that waits.

    None if none does. The decision is added to ``decided``, and a generation that waits to
    ``skipped``. For ``whole`` see :func:`open_region`.
    """
    while region.generations:
        reader = open_region(base, region, Share(), skipped, whole=whole)
        if reader is None:
            break
        generations = reader.selection.generations
        rows = RegionRows(
            region_id=region.region_id,
            generations=tuple(generation.number for generation in generations),
            folders=tuple(generation.path for generation in generations),
            counts=reader.counts,
            keys=reader.single_keys(),
            newest=reader.newest,
            deleted=reader.deleted,
            take=partial(_take, reader),
            key_columns=base.key_or_column,
        )
        try:
            decision = screen(rows, rules)
        except UnreadableGenerationError as error:
            # Its keys could be read, and its rows cannot: the gate decides anew without it.
            skip_from(base, reader.selection, error.generation, error.reason, skipped)
            earlier = tuple(g for g in generations if g.number < error.generation)
            region = replace(region, generations=earlier)
            continue
        decided[region.region_id] = decision
        if decision.hold is not None:
            skipped[region.region_id] = SkippedRegion(
                region_id=str(region.region_id),
                generation=generations[decision.accepted].number,
                reason=str(decision.hold),
            )
        if not decision.accepted:
            break
        reader.newest = decision.newest
        reader.selection = replace(region, generations=generations[: decision.accepted])
        return reader
    return None


def _take(reader: RegionReader, mask: Mask, columns: Sequence[str] | None) -> pa.Table:
    """Return the rows of a mask, in those of the named columns that exist."""
    names = [name for name in reader.schema.names if columns is None or name in columns]
    schema = pa.schema([reader.schema.field(name) for name in names])
    batches = (
        pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        for batch in reader.batches(mask, names)
    )
    return pa.Table.from_batches(batches, schema)
