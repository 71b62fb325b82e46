"""The gate in the merge: which rows of a region may enter the base table.

It looks at the newest row of each key, and lets tombstones pass. What it decides about a row alone
does not depend on which generations a commit happens to take together: when the newest row of a key
fails, the next newest that does not takes its place, as if each generation were merged by itself. A
tombstone is such a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.quality.checks import Mask
from memwal.quality.evaluate import Finding, evaluate
from memwal.quality.expectations import Expectation, Severity
from memwal.quality.registry import Kind
from memwal.quality.report import QualityReport, tally
from memwal.quality.rules import Mode, QualityRules
from memwal.region.rows import newest_row_positions

Positions = np.ndarray[Any, np.dtype[np.int64]]


class QualityHold(InvalidInputError):
    """Rows are not as expected, and the region is to wait."""


@dataclass(frozen=True, slots=True)
class RegionRows:
    """All rows of some generations of a region, oldest first.

    Attributes
    ----------
    region_id : UUID
    generations : tuple of int
        Their numbers.
    folders : tuple of str
        Names of their folders, which those of no other table have, and none of a later one.
    counts : tuple of int
        How many rows each of them has.
    keys : pyarrow.Array
        One key per row.
    newest, deleted : numpy.ndarray of bool
        Which rows are the newest of their key, and which are tombstones.
    take : callable
        Reads rows, given a mask over all of them and names of columns, of which it leaves out
        those that there are none of; None for all columns of the base table.
    primary_key : tuple of str
    """

    region_id: UUID
    generations: tuple[int, ...]
    folders: tuple[str, ...]
    counts: tuple[int, ...]
    keys: pa.Array
    newest: Mask
    deleted: Mask
    take: Callable[[Mask, Sequence[str] | None], pa.Table]
    primary_key: tuple[str, ...]

    @property
    def ends(self) -> Positions:
        """Where each generation ends."""
        return np.cumsum(np.array(self.counts, np.int64))

    def origin(self, positions: Positions) -> tuple[Positions, Positions]:
        """Place of the generation, and of the row in it, of some rows."""
        which = np.searchsorted(self.ends, positions, side="right")
        starts = self.ends - np.array(self.counts, np.int64)
        return which, positions - starts[which]


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Rows that are kept out.

    Attributes
    ----------
    rows : pyarrow.Table
        In the columns of the base table.
    generations : numpy.ndarray of int64
        Number of the generation that each comes from.
    folders : pyarrow.Array of str
        Name of its folder.
    positions : numpy.ndarray of int64
        Which row of it.
    failures : tuple
        Expectations that rows fail, with a mask over the rows each.
    """

    rows: pa.Table
    generations: Positions
    folders: pa.Array
    positions: Positions
    failures: tuple[tuple[Expectation, Mask], ...]


@dataclass(frozen=True, slots=True)
class Screened:
    """What a gate decided about a region.

    Attributes
    ----------
    newest : numpy.ndarray of bool
        The rows that enter, tombstones among them: at most one of each key.
    taken : int
        How many of the generations enter; the others wait.
    stopped : QualityHold or None
        Why they do.
    quarantined : Quarantined or None
        What is kept out.
    report : QualityReport
    """

    newest: Mask
    taken: int
    stopped: QualityHold | None
    quarantined: Quarantined | None
    report: QualityReport


def screen(region: RegionRows, rules: QualityRules) -> Screened:
    """Hold the rows of a region that would enter against the rules."""
    if rules.mode == Mode.HOLD:
        return _hold(region, rules)
    chosen = region.newest & ~region.deleted
    findings = _check(region, rules.suite, chosen)
    passed = Screened(
        region.newest,
        len(region.generations),
        None,
        None,
        _report(region, rules, findings, chosen),
    )
    blamed = [f for f in _failing(findings) if f.failures]
    if not blamed or rules.mode == Mode.WARN:
        return passed
    return _quarantine(region, findings, np.flatnonzero(chosen), passed)


def _failing(findings: Sequence[Finding]) -> list[Finding]:
    return [f for f in findings if not f.success and _is_critical(f.expectation)]


def _check(region: RegionRows, suite: Sequence[Expectation], chosen: Mask) -> list[Finding]:
    if not chosen.any():
        return []
    wanted = {column for one in suite for column in one.columns}
    return evaluate(suite, region.take(chosen, sorted(wanted | set(region.primary_key))))


def _report(
    region: RegionRows, rules: QualityRules, findings: Sequence[Finding], chosen: Mask
) -> QualityReport:
    masks = [f.failed for f in findings if f.failed is not None]
    positions = np.flatnonzero(chosen)
    hit = np.logical_or.reduce(masks) if masks else np.zeros(len(positions), np.bool_)
    keys = region.take(_at(positions[hit], len(chosen)), region.primary_key)
    tallies = []
    for finding in findings:
        # Keys are read of the failing rows only.
        few = finding if finding.failed is None else replace(finding, failed=finding.failed[hit])
        tallies.append(tally(few, keys))
    return QualityReport(
        mode=rules.mode.value,
        rows=int(np.count_nonzero(chosen)),
        failed_rows=int(np.count_nonzero(hit)),
        tallies=tuple(tallies),
    )


def _hold(region: RegionRows, rules: QualityRules) -> Screened:
    """Let everything from the first generation on wait that has a failing row.

    Without later generations, rows that those replaced are the newest again.
    """
    part: RegionRows | None = region
    report: QualityReport | None = None
    stopped: QualityHold | None = None
    while part is not None:
        chosen = part.newest & ~part.deleted
        findings = _check(part, rules.suite, chosen)
        report = report or _report(part, rules, findings, chosen)
        failing = _failing(findings)
        if not failing:
            break
        names = "; ".join(
            f"{f.expectation} "
            f"{f.error or (f'fails for {f.failures} rows' if f.failures else 'fails')}"
            for f in failing
        )
        stopped = QualityHold(
            f"its rows are not as expected: {names}; correct them, or change the table's quality "
            "rules"
        )
        first = 0
        if all(f.failures for f in failing):
            blamed = np.logical_or.reduce([f.failed for f in failing if f.failed is not None])
            row = int(np.flatnonzero(chosen)[blamed][0])
            first = int(np.searchsorted(region.ends, row, side="right"))
        part = _first(region, first) if first else None
    newest = np.zeros(len(region.newest), np.bool_)
    if part is not None:
        newest[: len(part.newest)] = part.newest
    report = report or QualityReport(mode=rules.mode.value)
    if stopped is not None:
        report = replace(report, held=(str(region.region_id),))
    return Screened(newest, len(part.generations) if part else 0, stopped, None, report)


def _first(region: RegionRows, generations: int) -> RegionRows:
    """The same region with its first generations only."""
    end = int(region.ends[generations - 1])
    keys = region.keys.slice(0, end)

    def take(mask: Mask, columns: Sequence[str] | None) -> pa.Table:
        return region.take(np.append(mask, np.zeros(len(region.newest) - end, np.bool_)), columns)

    return replace(
        region,
        generations=region.generations[:generations],
        folders=region.folders[:generations],
        counts=region.counts[:generations],
        keys=keys,
        newest=_at(newest_row_positions(keys), end),
        deleted=region.deleted[:end],
        take=take,
    )


def _quarantine(
    region: RegionRows, findings: Sequence[Finding], positions: Positions, passed: Screened
) -> Screened:
    """Keep failing rows out, and let the next newest row of their key enter that does not fail."""
    count = len(region.newest)
    failures = [
        (finding.expectation, _spread(finding, positions, count))
        for finding in findings
        if not finding.success and _is_critical(finding.expectation) and finding.failures
    ]
    bad = np.logical_or.reduce([mask for _, mask in failures])
    codes = np.asarray(region.keys.dictionary_encode().indices.to_numpy(zero_copy_only=False))
    affected = np.zeros(int(codes.max()) + 1, np.bool_)
    affected[codes[bad]] = True
    rivals = affected[codes]
    # What was met on the whole, within its `mostly`, stays so for the few rows that come up now.
    alone = [
        f.expectation
        for f in findings
        if f.expectation.kind == Kind.ROW
        and _is_critical(f.expectation)
        and f.error is None
        and not (f.success and f.expectation.mostly < 1)
    ]
    older = rivals & ~region.newest & ~region.deleted
    for finding in _check(region, alone, older):
        if finding.failures:
            failures.append((finding.expectation, _spread(finding, np.flatnonzero(older), count)))
            bad |= failures[-1][1]
    among = [
        f.expectation
        for f in findings
        if f.expectation.kind == Kind.UNIQUE and _is_critical(f.expectation) and f.error is None
    ]
    while True:
        last = np.full(len(affected), -1, np.int64)
        able = np.flatnonzero(rivals & ~bad)
        # Assignment in the order of age leaves the newest in place.
        last[codes[able]] = able
        newest = region.newest & ~rivals
        newest[last[last >= 0]] = True
        chosen = newest & ~region.deleted
        more = np.zeros(count, np.bool_)
        for finding in _check(region, among, chosen) if (chosen & older).any() else ():
            again = _spread(finding, np.flatnonzero(chosen), count) & older
            if again.any():
                failures.append((finding.expectation, again))
                more |= again
        if not more.any():
            break
        bad |= more
    # Rows that are older than the one that entered were replaced, failing or not.
    kept_out = bad & (np.arange(count) > last[codes])
    where = np.flatnonzero(kept_out)
    which, rows = region.origin(where)
    quarantined = Quarantined(
        rows=region.take(kept_out, None),
        generations=np.array(region.generations, np.int64)[which],
        folders=pa.array(region.folders, pa.string()).take(pa.array(which)),
        positions=rows,
        failures=tuple((expectation, mask[where]) for expectation, mask in failures),
    )
    return replace(
        passed,
        newest=newest,
        quarantined=quarantined,
        report=replace(passed.report, quarantined_rows=len(where)),
    )


def _is_critical(expectation: Expectation) -> bool:
    return expectation.severity == Severity.CRITICAL


def _spread(finding: Finding, positions: Positions, count: int) -> Mask:
    return _at(positions[finding.failed], count)


def _at(positions: Positions, count: int) -> Mask:
    mask = np.zeros(count, np.bool_)
    mask[positions] = True
    return mask
