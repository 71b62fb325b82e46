"""Check rows that are already in the base table, a sample or all, against expectations."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import lance
import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import InvalidInputError
from memwal.jobs.job import JobResult
from memwal.jobs.options import QualityOptions
from memwal.quality.evaluate import Finding, evaluate, undecided
from memwal.quality.expectations import Expectation
from memwal.quality.registry import Kind
from memwal.quality.report import MOST_EXAMPLES, QualityReport, Tally, tally
from memwal.storage.location import TableLocation

_BATCH_ROWS = 64 * 1024
_COUNTS = ("expect_table_row_count_to_be_between", "expect_table_row_count_to_equal")
_SCHEMAS = (
    "expect_column_to_exist",
    "expect_column_values_to_be_of_type",
    "expect_column_values_to_be_in_type_list",
)


def check_quality(location: TableLocation, options: QualityOptions) -> JobResult:
    """Hold the rows of the base table against a suite, whatever the mode of the rules.

    Of a whole table, what is decided by a row alone is decided in one pass over batches; other
    expectations need the columns that they name in memory. How many rows the table has is known
    from a sample too, but "unique" and "distinct" are then about the sample.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    options : QualityOptions

    Returns
    -------
    JobResult
        Job ``quality``, with figures ``rows`` and ``failed_rows``, and what was found.

    Raises
    ------
    InvalidInputError
        There is no suite.
    """
    if not options.quality.suite:
        raise InvalidInputError("the table has no suite; memwal quality propose makes one")
    started = time.monotonic()
    base = open_base(location)
    with lance_errors(f"checking {location}"):
        report = _report(base, options.quality.suite, options.sample_rows)
    return JobResult(
        job="quality",
        table=location.uri,
        version=base.version,
        tasks=1,
        seconds=time.monotonic() - started,
        figures={"rows": report.rows, "failed_rows": report.failed_rows},
        problems=report.problems(),
        quality=report.to_dict(),
    )


def _report(
    base: BaseTable, suite: Sequence[Expectation], sample_rows: int | None
) -> QualityReport:
    dataset = base.dataset
    total = dataset.count_rows()
    known = {
        number: _known(one, base.schema, total)
        for number, one in enumerate(suite)
        if one.type in (*_COUNTS, *_SCHEMAS)
    }
    sampled = sample_rows is not None and sample_rows < total
    sums = {
        number: _Sum(one)
        for number, one in enumerate(suite)
        if number not in known and (sampled or (one.kind == Kind.ROW and one.rule.own))
    }
    rows = failed = 0
    names = _names(base, [one.expectation for one in sums.values()])
    keys = list(base.primary_key) or base.schema.names[:1]
    batches: Iterable[pa.Table] = ()
    if sampled and sample_rows is not None:
        batches = [dataset.sample(sample_rows, columns=names)]
    elif sums:
        batches = _batches(dataset, names)
    else:
        rows = total
    for batch in batches:
        found = evaluate([one.expectation for one in sums.values()], batch)
        rows += batch.num_rows
        failed += _failing_rows(found)
        for one, finding in zip(sums.values(), found, strict=True):
            one.add(finding, batch.select(keys))
    tallies = {number: one.tally() for number, one in sums.items()}
    for number, finding in known.items():
        tallies[number] = tally(finding, base.schema.empty_table())
    for number, expectation in enumerate(suite):
        if number not in tallies:
            whole = dataset.to_table(columns=_names(base, [expectation]))
            finding = evaluate([expectation], whole)[0]
            tallies[number] = tally(finding, whole.select(keys))
            failed += finding.failures
    return QualityReport(
        mode="check",
        rows=rows,
        failed_rows=failed,
        tallies=tuple(tallies[number] for number in range(len(suite))),
    )


@dataclass(slots=True)
class _Sum:
    """What came of one expectation in the batches so far."""

    expectation: Expectation
    looked: int = 0
    failed: int = 0
    success: bool = True
    examples: tuple[dict[str, object], ...] = ()
    error: str | None = None

    def add(self, finding: Finding, keys: pa.Table) -> None:
        self.looked += finding.looked
        self.failed += finding.failures
        self.success &= finding.success or finding.failed is not None
        self.error = self.error or finding.error
        if len(self.examples) < MOST_EXAMPLES:
            self.examples = (*self.examples, *tally(finding, keys).examples)[:MOST_EXAMPLES]

    def tally(self) -> Tally:
        mostly = self.expectation.mostly
        enough = not self.failed or (self.looked - self.failed) / self.looked >= mostly
        return Tally(
            expectation=self.expectation,
            success=self.success and enough,
            failed=self.failed,
            examples=self.examples,
            error=self.error,
        )


def _known(one: Expectation, schema: pa.Schema, total: int) -> Finding:
    """What the schema and the number of rows tell."""
    if one.type in _SCHEMAS:
        return evaluate([one], schema.empty_table())[0]
    low, high = one.kwargs.get("min_value"), one.kwargs.get("max_value")
    if one.type == _COUNTS[1]:
        low = high = one.kwargs["value"]
    try:
        inside = (low is None or total >= low) and (high is None or total <= high)
        edge = (one.kwargs.get("strict_min") and total == low) or (
            one.kwargs.get("strict_max") and total == high
        )
    except TypeError:
        return undecided(one, "its bounds are no numbers")
    return Finding(one, inside and not edge, total)


def _failing_rows(findings: Sequence[Finding]) -> int:
    masks = [finding.failed for finding in findings if finding.failed is not None]
    if not masks:
        return 0
    hit = masks[0].copy()
    for mask in masks[1:]:
        hit |= mask
    return int(hit.sum())


def _names(base: BaseTable, suite: Sequence[Expectation]) -> list[str]:
    wanted = {column for one in suite for column in one.columns} | set(base.primary_key)
    return [name for name in base.schema.names if name in wanted] or base.schema.names[:1]


def _batches(dataset: lance.LanceDataset, names: list[str]) -> Iterator[pa.Table]:
    for batch in dataset.scanner(columns=names, batch_size=_BATCH_ROWS).to_batches():
        yield pa.Table.from_batches([batch])
