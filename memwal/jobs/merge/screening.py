"""Quality gate of a divided merge: decides which rows enter before any of them is rewritten.

A task screens whole regions: it reads their keys and the columns of the expectations, and the rows
that it keeps out. These are durable in the quarantine table before the task ends, so before the
commit that may follow. A file of the run tells which rows enter; the tasks that rewrite the region
read it, in whatever shares.

What a process that pauses, dies or repeats does:

* a task that runs twice writes another file, and finds its rows in the quarantine: the decision is
  the same. Only the file that the driver was told of is read;
* a task that dies, or a run that dies before its commit: rows are in the quarantine although their
  generation still waits. The next merge decides again, see :mod:`memwal.quality.ledger`;
* another merger merged one of the generations meanwhile: nothing is written to the quarantine, and
  the merge starts over;
* after the progress was recorded, the driver settles: it deletes what others wrote about the same
  generations. A task that resumes only then is refused by the quarantine. If the driver dies before
  it settles, rows with another decision may stay in the quarantine, as with every merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID, uuid4

import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, open_base
from memwal.jobs.job import SkippedRegion, TaskRunner
from memwal.jobs.merge.picker import RegionSelection, Share, still_pending, stop_before
from memwal.jobs.merge.region_rows import (
    RegionReader,
    UnreadableGenerationError,
    open_region,
    skip_from,
)
from memwal.jobs.merge.run_files import write_decision
from memwal.quality.checks import Mask
from memwal.quality.gate import RegionRows
from memwal.quality.ledger import Ledger, settle
from memwal.quality.quarantine import Quarantine, RowOrigin
from memwal.quality.report import QualityReport, combine_reports
from memwal.quality.rules import QualityRules
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import VERSION, span
from memwal.util.retry import LostRaceError


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

    skipped: Mapping[UUID, SkippedRegion]  # on hold or unreadable, from a generation on
    decisions: Mapping[UUID, str]  # of each region with rows, the file that tells which enter
    quarantined: tuple[RowOrigin, ...]
    reports: Mapping[UUID, QualityReport]


class Gate:
    """Decisions of a divided merge over all its attempts."""

    def __init__(self, rules: QualityRules, location: TableLocation) -> None:
        self._rules = rules
        self._location = location
        self._reports: dict[UUID, QualityReport] = {}
        self._held: dict[UUID, QualityReport] = {}
        self._quarantined: tuple[RowOrigin, ...] = ()
        self.decisions: dict[UUID, str] = {}

    def screen(
        self,
        base: BaseTable,
        run_id: UUID,
        regions: Sequence[tuple[RegionSelection, ...]],
        run: TaskRunner,
    ) -> list[Mapping[UUID, SkippedRegion]]:
        """Decide about the regions of each task, and return what is to be skipped.

        Decisions of an earlier call are replaced.
        """
        tasks = [
            ScreenTask(
                location=self._location,
                version=base.version,
                run_id=run_id,
                regions=part,
                rules=self._rules,
            )
            for part in regions
        ]
        with span("memwal.merge.screen", self._location, attributes={VERSION: base.version}):
            done = run(tasks, run_screen_task)
        self.decisions = {}
        self._quarantined = tuple(origin for part in done for origin in part.quarantined)
        for part in done:
            self.decisions |= part.decisions
            for region_id, report in part.reports.items():
                held = report.skipped_regions
                (self._held if held else self._reports)[region_id] = report
        return [part.skipped for part in done]

    def settle(self, merged: Sequence[RegionSelection]) -> None:
        """Delete what other mergers kept out of the merged generations."""
        settle(
            Quarantine.of(self._location, self._rules.quarantine_uri),
            {
                region.region_id: [generation.path for generation in region.generations]
                for region in merged
            },
            self._quarantined,
        )

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
    ledger = Ledger(task.rules, task.location)
    skipped: dict[UUID, SkippedRegion] = {}
    decisions: dict[UUID, str] = {}
    for region in task.regions:
        entering = _screen(base, ledger, region, skipped)
        if entering is not None:
            decisions[region.region_id] = write_decision(
                task.location, task.run_id, uuid4(), entering
            )
    stops = {region_id: region.generation for region_id, region in skipped.items()}
    accepted = stop_before(task.regions, stops)

    def pending() -> bool:
        merged = open_base(task.location).details.merged
        return still_pending(accepted, merged) == accepted

    region_ids = [region.region_id for region in accepted]
    if not ledger.write_quarantined(region_ids, still_pending=pending):
        raise LostRaceError("another merger merged some of the generations")
    return Screened(
        skipped=skipped,
        decisions=decisions,
        quarantined=tuple(ledger.quarantined(region_ids)),
        reports=ledger.reports(),
    )


def _screen(
    base: BaseTable,
    ledger: Ledger,
    region: RegionSelection,
    skipped: dict[UUID, SkippedRegion],
) -> Mask | None:
    """Return which rows of a region enter, up to the first generation that waits; None if none."""
    while region.generations:
        reader = open_region(base, region, Share(), skipped)
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
            primary_key=base.primary_key,
        )
        try:
            decision = ledger.screen(rows)
        except UnreadableGenerationError as error:
            # Its keys could be read, and its rows cannot: the gate decides anew without it.
            skip_from(base, reader.selection, error.generation, error.reason, skipped)
            earlier = tuple(g for g in generations if g.number < error.generation)
            region = replace(region, generations=earlier)
            continue
        if decision.hold is not None:
            skipped[region.region_id] = SkippedRegion(
                region_id=str(region.region_id),
                generation=generations[decision.accepted].number,
                reason=str(decision.hold),
            )
        return decision.newest if decision.accepted else None
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
