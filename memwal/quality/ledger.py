"""What the gate did in one commit of a merge, and when it is written down.

Rows that are kept out are durable in the quarantine table before the commit that says that their
generation is merged. What a process that pauses, dies or repeats at each step does:

* before they are written: nothing happened;
* between that and the marked commit: they stand in the quarantine although their generation still
  waits. The next merge decides again, and writes them again: region, folder of the generation and
  row are their key, so that they stand there once. Two mergers that write at once are kept apart by
  the version that each of them commits;
* after the marked commit: the generation is never read again, and neither is what was decided.

A try that took other generations together may have decided otherwise about a row: a newer row of
its key came with them, or it equalled another one. Whoever made the marked commit therefore takes
away what others wrote about the same generations, by a commit in any case. A process that
wakes only after that adds nothing: its write is refused, since it was to land behind an older
version, and when it opens the newest one it looks first whether the generations still wait. Only
when nobody settles, since the process died right after its marked commit, may rows stay that were
judged otherwise; lists leave them out as long as the base table shows those very rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

import pyarrow as pa

from memwal.errors import MemWalError
from memwal.quality.gate import Quarantined, RegionRows, Screened, screen
from memwal.quality.quarantine import Origin, Quarantine, quarantined_rows
from memwal.quality.report import QualityReport, combine
from memwal.quality.rules import QualityRules
from memwal.storage.location import TableLocation

logger = logging.getLogger(__name__)


class Ledger:
    """Decides about the regions of one commit, and remembers what it decided.

    Regions may be screened by several threads at once, each by one at a time.
    """

    def __init__(self, rules: QualityRules, location: TableLocation) -> None:
        self._rules = rules
        self._quarantine = Quarantine.of(location, rules.quarantine_uri)
        self._screened: dict[UUID, Screened] = {}
        self._held: dict[UUID, QualityReport] = {}
        self._unwritten: dict[UUID, Quarantined] = {}

    def screen(self, region: RegionRows) -> Screened:
        """Decide which rows of a region enter."""
        found = screen(region, self._rules)
        if found.stopped is not None:
            self._held[region.region_id] = found.report
        self._screened[region.region_id] = found
        self._unwritten.pop(region.region_id, None)
        if found.quarantined is not None:
            self._unwritten[region.region_id] = found.quarantined
        return found

    def keep(self, regions: Iterable[UUID], *, wanted: Callable[[], bool]) -> bool:
        """Make what is kept out of these regions durable, as it was decided last.

        Parameters
        ----------
        regions : iterable of UUID
        wanted : callable
            Whether none of the generations is merged yet.

        Returns
        -------
        bool
            False when one is, by somebody else, and nothing was written.
        """
        new = [region for region in regions if region in self._unwritten]
        if not new:
            return True
        rows = [
            quarantined_rows(region, self._unwritten[region], suite=self._rules.suite)
            for region in new
        ]
        if not self._quarantine.write(pa.concat_tables(rows), wanted=wanted):
            return False
        for region in new:
            del self._unwritten[region]
        return True

    def settle(self, merged: Mapping[UUID, Sequence[str]]) -> None:
        """Say that generations were merged, as it was decided here.

        Parameters
        ----------
        merged : mapping
            Of each region the names of the generations' folders.
        """
        try:
            self._quarantine.settle(
                merged,
                belong=[
                    Origin(region, folder, int(row))
                    for region in merged
                    if (found := self._screened.get(region)) and (kept := found.quarantined)
                    for folder, row in zip(kept.folders.to_pylist(), kept.positions, strict=True)
                ],
            )
        except MemWalError as error:
            # The rows are merged, and those that do not belong in the quarantine harm nobody.
            logger.warning("the quarantine %s was not settled: %s", self._quarantine, error)

    def report(self, merged: Iterable[UUID]) -> QualityReport | None:
        """What was found in the regions that were merged, and in those that wait."""
        merged = set(merged) - set(self._held)
        return combine(
            [
                *(found.report for region, found in self._screened.items() if region in merged),
                *self._held.values(),
            ]
        )
