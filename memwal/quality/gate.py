"""Quality gate of a merge: decides which rows of a region enter the base table.

The gate evaluates the newest row of each key; tombstones always pass. The decision about a single
row does not depend on which generations a commit merges together: if the newest row of a key fails,
the next newest row that passes takes its place, as if each generation were merged by itself. That
row may be a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.lsm.key_matches import newest_row_positions
from memwal.quality.evaluate import ExpectationResult, evaluate
from memwal.quality.expectations import Expectation, ExpectationKind, Severity
from memwal.quality.report import QualityReport, tally_result
from memwal.quality.rules import Mode, QualityRules
from memwal.util.arrays import Mask, Positions


class QualityHold(InvalidInputError):
    """A region is on hold because its rows fail a critical expectation."""


@dataclass(frozen=True, slots=True)
class RegionRows:
    """Rows of some generations of a region, oldest first."""

    region_id: UUID
    generations: tuple[int, ...]  # their numbers
    folders: tuple[str, ...]  # names of their folders, unique over all tables and all time
    counts: tuple[int, ...]  # number of rows of each generation
    keys: pa.Array  # one key per row; nulls if the table has none
    newest: Mask  # which rows are the newest of their key
    deleted: Mask  # which rows are tombstones
    # Reads rows, given a mask over all rows and names of columns. Absent columns are left out; None
    # reads all columns of the base table.
    take: Callable[[Mask, Sequence[str] | None], pa.Table]
    key_columns: tuple[str, ...]  # columns that name a row in reports

    @property
    def ends(self) -> Positions:
        """Row position at which each generation ends."""
        return np.cumsum(np.array(self.counts, np.int64))

    def origin(self, positions: Positions) -> tuple[Positions, Positions]:
        """Locate rows: the index of the generation, and the row number within it."""
        which = np.searchsorted(self.ends, positions, side="right")
        starts = self.ends - np.array(self.counts, np.int64)
        return which, positions - starts[which]


@dataclass(frozen=True, slots=True)
class QuarantinedRows:
    """Rows of a region that the gate keeps out."""

    rows: pa.Table  # the rows, in the columns of the base table
    generations: Positions  # generation number of each row
    folders: pa.Array  # generation folder of each row
    positions: Positions  # row number within the generation
    # Failed expectations, each with a mask over the rows.
    failures: tuple[tuple[Expectation, Mask], ...]


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Decision of the gate about a region."""

    newest: Mask  # rows that enter, including tombstones: at most one per key
    accepted: int  # number of generations that enter; later ones wait
    hold: QualityHold | None  # why generations wait
    quarantined: QuarantinedRows | None  # rows that are kept out
    report: QualityReport


def screen(region: RegionRows, rules: QualityRules) -> GateDecision:
    """Evaluate the rows of a region that would enter, and decide which rows do."""
    if rules.mode == Mode.SKIP:
        return _hold_region(region, rules)
    chosen = region.newest & ~region.deleted
    results = _evaluate_rows(region, rules.suite, chosen)
    passed = GateDecision(
        region.newest,
        len(region.generations),
        None,
        None,
        _report(region, rules, results, chosen),
    )
    has_failing_rows = any(f.failures for f in _critical_failures(results))
    if not has_failing_rows or rules.mode == Mode.WARN:
        return passed
    return _quarantine_rows(region, results, np.flatnonzero(chosen), passed)


def _critical_failures(results: Sequence[ExpectationResult]) -> list[ExpectationResult]:
    return [f for f in results if not f.success and _is_critical(f.expectation)]


def _evaluate_rows(
    region: RegionRows, suite: Sequence[Expectation], chosen: Mask
) -> list[ExpectationResult]:
    if not chosen.any():
        return []
    columns = {column for expectation in suite for column in expectation.columns}
    return evaluate(suite, region.take(chosen, sorted(columns | set(region.key_columns))))


def _report(
    region: RegionRows, rules: QualityRules, results: Sequence[ExpectationResult], chosen: Mask
) -> QualityReport:
    masks = [f.failed for f in results if f.failed is not None]
    positions = np.flatnonzero(chosen)
    failed = np.logical_or.reduce(masks) if masks else np.zeros(len(positions), np.bool_)
    # Only the keys of failing rows are read, so masks are reduced to these rows.
    keys = region.take(_mask_at(positions[failed], len(chosen)), region.key_columns)
    tallies = [
        tally_result(f if f.failed is None else replace(f, failed=f.failed[failed]), keys)
        for f in results
    ]
    return QualityReport(
        mode=rules.mode.value,
        rows=int(np.count_nonzero(chosen)),
        failed_rows=int(np.count_nonzero(failed)),
        tallies=tuple(tallies),
    )


def _hold_region(region: RegionRows, rules: QualityRules) -> GateDecision:
    """Hold all generations from the first one with a failing row on.

    Rows that the held generations replaced become the newest of their keys again, so the remaining
    generations are evaluated again.
    """
    part: RegionRows | None = region
    report: QualityReport | None = None
    hold: QualityHold | None = None
    while part is not None:
        chosen = part.newest & ~part.deleted
        results = _evaluate_rows(part, rules.suite, chosen)
        report = report or _report(part, rules, results, chosen)
        failing = _critical_failures(results)
        if not failing:
            break
        names = "; ".join(
            f"{f.expectation} "
            f"{f.error or (f'fails for {f.failures} rows' if f.failures else 'fails')}"
            for f in failing
        )
        hold = QualityHold(
            f"its rows are not as expected: {names}; correct them, or change the table's quality "
            "rules"
        )
        first = 0
        if all(f.failures for f in failing):
            blamed = np.logical_or.reduce([f.failed for f in failing if f.failed is not None])
            row = int(np.flatnonzero(chosen)[blamed][0])
            first = int(np.searchsorted(region.ends, row, side="right"))
        part = _first_generations(region, first) if first else None
    newest = np.zeros(len(region.newest), np.bool_)
    if part is not None:
        newest[: len(part.newest)] = part.newest
    report = report or QualityReport(mode=rules.mode.value)
    if hold is not None:
        report = replace(report, skipped_regions=(str(region.region_id),))
    return GateDecision(newest, len(part.generations) if part else 0, hold, None, report)


def _first_generations(region: RegionRows, generations: int) -> RegionRows:
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
        newest=_mask_at(newest_row_positions(keys), end),
        deleted=region.deleted[:end],
        take=take,
    )


def _quarantine_rows(
    region: RegionRows,
    results: Sequence[ExpectationResult],
    positions: Positions,
    passed: GateDecision,
) -> GateDecision:
    """Keep failing rows out; the next newest row of the key that passes enters instead."""
    count = len(region.newest)
    failures = [
        (result.expectation, _failed_mask(result, positions, count))
        for result in results
        if not result.success and _is_critical(result.expectation) and result.failures
    ]
    bad = np.logical_or.reduce([mask for _, mask in failures])
    # Without a primary key, each row has a key of its own.
    codes = np.arange(count)
    if not pt.is_null(region.keys.type):
        encoded = region.keys.dictionary_encode()
        codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False))
    affected = np.zeros(int(codes.max()) + 1, np.bool_)
    affected[codes[bad]] = True
    rivals = affected[codes]
    older = rivals & ~region.newest & ~region.deleted
    # An expectation that was met within its `mostly` stays met for the few older rows.
    alone = [
        f.expectation
        for f in _evaluated_results(results, ExpectationKind.ROW)
        if not (f.success and f.expectation.mostly < 1)
    ]
    for result in _evaluate_rows(region, alone, older):
        if result.failures:
            failed = _failed_mask(result, np.flatnonzero(older), count)
            failures.append((result.expectation, failed))
            bad |= failed
    among = [f.expectation for f in _evaluated_results(results, ExpectationKind.UNIQUE)]
    while True:
        last = np.full(len(affected), -1, np.int64)
        able = np.flatnonzero(rivals & ~bad)
        # Assignment in the order of age leaves the newest in place.
        last[codes[able]] = able
        newest = region.newest & ~rivals
        newest[last[last >= 0]] = True
        more = _failures_among(region, among, newest, older)
        if not more:
            break
        failures += more
        bad |= np.logical_or.reduce([mask for _, mask in more])
    # Rows older than the one that enters are replaced by it, failing or not.
    kept_out = bad & (np.arange(count) > last[codes])
    where = np.flatnonzero(kept_out)
    which, rows = region.origin(where)
    quarantined = QuarantinedRows(
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


def _evaluated_results(
    results: Sequence[ExpectationResult], kind: ExpectationKind
) -> list[ExpectationResult]:
    """Return the results about critical expectations of a kind that could be evaluated."""
    return [
        f
        for f in results
        if f.expectation.kind == kind and _is_critical(f.expectation) and f.error is None
    ]


def _failures_among(
    region: RegionRows, expectations: Sequence[Expectation], newest: Mask, older: Mask
) -> list[tuple[Expectation, Mask]]:
    """Return which older rows, chosen as the newest of their keys, fail beside the other rows."""
    chosen = newest & ~region.deleted
    failures = []
    for result in _evaluate_rows(region, expectations, chosen) if (chosen & older).any() else ():
        again = _failed_mask(result, np.flatnonzero(chosen), len(newest)) & older
        if again.any():
            failures.append((result.expectation, again))
    return failures


def _is_critical(expectation: Expectation) -> bool:
    return expectation.severity == Severity.CRITICAL


def _failed_mask(result: ExpectationResult, positions: Positions, count: int) -> Mask:
    return _mask_at(positions[result.failed], count)


def _mask_at(positions: Positions, count: int) -> Mask:
    mask = np.zeros(count, np.bool_)
    mask[positions] = True
    return mask
