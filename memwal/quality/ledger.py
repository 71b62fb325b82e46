"""What the gate did in one commit of a merge, and when it is written down.

Rows that are kept out are durable in the quarantine table before the commit that says that their
generation is merged. What a process that pauses, dies or repeats at each step does:

* before they are written: nothing happened;
* between that and the marked commit: they stand in the quarantine although their generation still
  waits. The next merge decides again, and writes them again: region, generation and row are their
  key, so that they stand there once. Two mergers that write at once are kept apart by the version
  that each of them commits;
* after the marked commit: the generation is never read again, and neither is what was decided.

A try that took other generations together may have decided otherwise about a row: a newer row of
its key came with them, or it equalled another one. Whoever made the marked commit therefore takes
away what others wrote about the same generations. A process that wakes only after that writes its
own rows once more; its marked commit is refused, and what it wrote about rows that did enter is
left out of lists as long as the base table shows those very rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from uuid import UUID

from memwal.errors import MemWalError
from memwal.quality.gate import RegionRows, Screened, screen
from memwal.quality.quarantine import Quarantine, quarantined_rows
from memwal.quality.report import QualityReport, combine
from memwal.quality.rules import Mode, QualityRules
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
        self._written: set[int] = set()

    def screen(self, region: RegionRows) -> Screened:
        """Decide which rows of a region enter."""
        found = screen(region, self._rules)
        if found.stopped is not None:
            self._held[region.region_id] = found.report
        self._screened[region.region_id] = found
        return found

    def keep(self, regions: Iterable[UUID]) -> None:
        """Make what is kept out of these regions durable."""
        for region in regions:
            found = self._screened.get(region)
            if found is None or found.quarantined is None or id(found) in self._written:
                continue
            self._quarantine.write(
                quarantined_rows(region, found.quarantined, suite=self._rules.suite)
            )
            self._written.add(id(found))

    def settle(self, generations: Iterable[tuple[UUID, Iterable[int]]]) -> None:
        """Say that these generations were merged, as it was decided here."""
        if self._rules.mode != Mode.QUARANTINE:
            return
        merged = {}
        for region, numbers in generations:
            found = self._screened.get(region)
            kept = found.quarantined if found is not None else None
            merged[region] = (
                list(numbers),
                () if kept is None else zip(kept.generations, kept.positions, strict=True),
            )
        try:
            self._quarantine.settle(merged)
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
