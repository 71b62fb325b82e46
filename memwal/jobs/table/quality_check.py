"""Check rows of the base table, a sample or all, against expectations."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from memwal.base_table.fragments import READ_AHEAD_BYTES, batch_rows
from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import InvalidInputError
from memwal.jobs.job import JobResult
from memwal.jobs.options import QualityOptions
from memwal.quality.evaluate import ExpectationResult, evaluate, undecided_result
from memwal.quality.expectations import Expectation, ExpectationKind
from memwal.quality.report import MAX_EXAMPLES, QualityReport, Tally, tally_result
from memwal.storage.location import TableLocation

_BATCH_ROWS = 64 * 1024
_COUNTS = ("expect_table_row_count_to_be_between", "expect_table_row_count_to_equal")
_SCHEMAS = (
    "expect_column_to_exist",
    "expect_column_values_to_be_of_type",
    "expect_column_values_to_be_in_type_list",
)


def check_quality(location: TableLocation, options: QualityOptions) -> JobResult:
    """Check the rows of the base table against a suite, regardless of the mode of the rules.

    Without a sample, expectations about single rows are evaluated in one pass over batches; each
    other expectation loads the columns that it names into memory. With a sample, expectations about
    the number of rows still count all, but "unique" and "distinct" are then about the sample.

    Returns
    -------
    JobResult
        Job ``quality``, with metrics ``rows`` and ``failed_rows``, and the report.

    Raises
    ------
    InvalidInputError
        The rules have no suite.
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
        metrics={"rows": report.rows, "failed_rows": report.failed_rows},
        warnings=report.warnings(),
        quality=report.to_dict(),
    )


def _report(
    base: BaseTable, suite: Sequence[Expectation], sample_rows: int | None
) -> QualityReport:
    dataset = base.dataset
    row_count = dataset.count_rows()
    from_metadata = {
        number: _check_metadata(expectation, base.schema, row_count)
        for number, expectation in enumerate(suite)
        if expectation.type in (*_COUNTS, *_SCHEMAS)
    }
    sampled = sample_rows is not None and sample_rows < row_count
    totals = {
        number: _RunningTally(expectation)
        for number, expectation in enumerate(suite)
        if number not in from_metadata
        and (sampled or (expectation.kind == ExpectationKind.ROW and expectation.rule.in_arrow))
    }
    rows = failed = 0
    in_batches = [total.expectation for total in totals.values()]
    names = _column_names(base, in_batches)
    keys = list(base.key_or_column)
    batches: Iterable[pa.Table] = ()
    if sampled and sample_rows is not None:
        batches = [dataset.sample(sample_rows, columns=names)]
    elif totals:
        scanner = dataset.scanner(
            columns=names,
            batch_size=batch_rows(dataset, names, most=_BATCH_ROWS),
            io_buffer_size=READ_AHEAD_BYTES,
        )
        batches = (pa.Table.from_batches([batch]) for batch in scanner.to_batches())
    else:
        rows = row_count
    for batch in batches:
        results = evaluate(in_batches, batch)
        rows += batch.num_rows
        masks = [result.failed for result in results if result.failed is not None]
        failed += int(np.any(masks, axis=0).sum())
        for of_expectation, result in zip(totals.values(), results, strict=True):
            of_expectation.add(result, batch.select(keys))
    tallies = {number: of_expectation.tally() for number, of_expectation in totals.items()}
    for number, result in from_metadata.items():
        tallies[number] = tally_result(result, base.schema.empty_table())
    for number, expectation in enumerate(suite):
        if number not in tallies:
            whole = dataset.to_table(columns=_column_names(base, [expectation]))
            result = evaluate([expectation], whole)[0]
            tallies[number] = tally_result(result, whole.select(keys))
            failed += result.failures
    return QualityReport(
        mode="check",
        rows=rows,
        failed_rows=failed,
        tallies=tuple(tallies[number] for number in range(len(suite))),
    )


@dataclass(slots=True)
class _RunningTally:
    """Totals of one expectation over the batches so far."""

    expectation: Expectation
    checked: int = 0
    failed: int = 0
    success: bool = True
    examples: tuple[dict[str, object], ...] = ()
    error: str | None = None

    def add(self, result: ExpectationResult, keys: pa.Table) -> None:
        self.checked += result.evaluated
        self.failed += result.failures
        self.success &= result.success or result.failed is not None
        self.error = self.error or result.error
        if len(self.examples) < MAX_EXAMPLES:
            self.examples = (*self.examples, *tally_result(result, keys).examples)[:MAX_EXAMPLES]

    def tally(self) -> Tally:
        mostly = self.expectation.mostly
        enough = not self.failed or (self.checked - self.failed) / self.checked >= mostly
        return Tally(
            expectation=self.expectation,
            success=self.success and enough,
            failed=self.failed,
            examples=self.examples,
            error=self.error,
        )


def _check_metadata(expectation: Expectation, schema: pa.Schema, total: int) -> ExpectationResult:
    """Evaluate an expectation about the schema or the number of rows, without reading rows."""
    if expectation.type in _SCHEMAS:
        return evaluate([expectation], schema.empty_table())[0]
    low, high = expectation.kwargs.get("min_value"), expectation.kwargs.get("max_value")
    if expectation.type == _COUNTS[1]:
        low = high = expectation.kwargs["value"]
    try:
        inside = (low is None or total >= low) and (high is None or total <= high)
        edge = (expectation.kwargs.get("strict_min") and total == low) or (
            expectation.kwargs.get("strict_max") and total == high
        )
    except TypeError:
        return undecided_result(expectation, "its bounds are not numbers")
    return ExpectationResult(expectation, inside and not edge, total)


def _column_names(base: BaseTable, suite: Sequence[Expectation]) -> list[str]:
    """Return the columns that expectations and their examples need, at least one."""
    needed = {column for expectation in suite for column in expectation.columns}
    needed |= set(base.key_or_column)
    return [name for name in base.schema.names if name in needed]
