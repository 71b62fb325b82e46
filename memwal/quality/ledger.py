"""Ledger of the gate's decisions in one commit of a merge, and the order in which they are stored.

Quarantined rows are durable in the quarantine table before the merge commits that their generation
is merged (the marked commit). If a merger pauses, dies or repeats:

* before it writes the rows: nothing has happened;
* between writing the rows and the marked commit: the rows are in the quarantine although their
  generation still waits. The next merge decides again and writes them again. Region, generation
  folder and row number are their key, so each row is in the quarantine once. Two mergers that write
  at once are kept apart by the version that each of them commits;
* after the marked commit: the generation is never read again, and neither is the decision.

An attempt that merged other generations together may have decided otherwise about a row: a newer
row of its key came with them, or the row equalled another one. The merger that made the marked
commit therefore deletes the rows that other mergers wrote about the same generations, and commits
even if there are none. A merger that resumes only after that adds nothing: its write is refused,
because it was to land behind an older version, and when it opens the newest version it first checks
whether the generations still wait. Only if no merger settles, because the process died right after
its marked commit, may rows with another decision stay. Lists omit them as long as the base table
has exactly these rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

import pyarrow as pa

from memwal.errors import MemWalError
from memwal.quality.gate import GateDecision, QuarantinedRows, RegionRows, screen
from memwal.quality.quarantine import Quarantine, RowOrigin, quarantined_rows
from memwal.quality.report import QualityReport, combine_reports
from memwal.quality.rules import QualityRules
from memwal.storage.location import TableLocation

logger = logging.getLogger(__name__)


class Ledger:
    """Gate decisions of one commit, by region.

    Several threads may screen regions at once, but only one thread per region.
    """

    def __init__(self, rules: QualityRules, location: TableLocation) -> None:
        self._rules = rules
        self._quarantine = Quarantine.of(location, rules.quarantine_uri)
        self._decisions: dict[UUID, GateDecision] = {}
        self._held: dict[UUID, QualityReport] = {}
        self._unwritten: dict[UUID, QuarantinedRows] = {}

    def screen(self, region: RegionRows) -> GateDecision:
        """Decide which rows of a region enter, and record the decision."""
        decision = screen(region, self._rules)
        if decision.hold is not None:
            self._held[region.region_id] = decision.report
        self._decisions[region.region_id] = decision
        self._unwritten.pop(region.region_id, None)
        if decision.quarantined is not None:
            self._unwritten[region.region_id] = decision.quarantined
        return decision

    def write_quarantined(
        self, regions: Iterable[UUID], *, still_pending: Callable[[], bool]
    ) -> bool:
        """Write the rows that the latest decision about these regions quarantines, durably.

        ``still_pending`` returns whether none of the generations is merged yet. Returns False if
        another merger has merged one of them, and nothing was written.
        """
        new = [region for region in regions if region in self._unwritten]
        if not new:
            return True
        rows = [
            quarantined_rows(region, self._unwritten[region], suite=self._rules.suite)
            for region in new
        ]
        if not self._quarantine.write(pa.concat_tables(rows), still_pending=still_pending):
            return False
        for region in new:
            del self._unwritten[region]
        return True

    def settle(self, merged: Mapping[UUID, Sequence[str]]) -> None:
        """Delete rows of merged generations that other mergers quarantined and this one did not.

        ``merged`` has the folder names of the merged generations of each region.
        """
        settle(self._quarantine, merged, self.quarantined(merged))

    def quarantined(self, regions: Iterable[UUID]) -> list[RowOrigin]:
        """Return the rows of some regions that the latest decisions quarantine."""
        return [
            RowOrigin(region, folder, int(row))
            for region in regions
            if (decision := self._decisions.get(region)) and (out := decision.quarantined)
            for folder, row in zip(out.folders.to_pylist(), out.positions, strict=True)
        ]

    def reports(self) -> dict[UUID, QualityReport]:
        """Return the report of the latest decision about each region."""
        return {region: decision.report for region, decision in self._decisions.items()}

    def report(self, merged: Iterable[UUID]) -> QualityReport | None:
        """Combine the reports of the merged regions and of those on hold."""
        merged = set(merged) - set(self._held)
        return combine_reports(
            [
                *(done.report for region, done in self._decisions.items() if region in merged),
                *self._held.values(),
            ]
        )


def settle(
    quarantine: Quarantine, merged: Mapping[UUID, Sequence[str]], quarantined: Sequence[RowOrigin]
) -> None:
    """Delete rows of merged generations that are not among those that the merge quarantined.

    ``merged`` has the folder names of the merged generations of each region.
    """
    try:
        quarantine.settle(merged, quarantined=quarantined)
    except MemWalError as error:
        # The merge is committed, and extra rows in the quarantine do no harm.
        logger.warning("the quarantine %s was not settled: %s", quarantine, error)
