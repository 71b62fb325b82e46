"""Check rows of the base table, a sample or all, against expectations."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.base_table.fragments import READ_AHEAD_BYTES, batch_rows
from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import InvalidInputError
from memwal.jobs.job import JobResult, task_limit
from memwal.jobs.options import QualityOptions
from memwal.jobs.progress import Unit, run_tasks
from memwal.lsm.indexes.catchup import group_fragments
from memwal.quality.evaluate import ExpectationResult, evaluate, undecided_result
from memwal.quality.expectations import Expectation, ExpectationKind
from memwal.quality.report import QualityReport, Tally, combine_tallies, tally_result
from memwal.reader.latest import ROW_ADDRESS
from memwal.storage.location import TableLocation

_BATCH_ROWS = 64 * 1024
# Rows whose check takes as long as the start of another task.
_TASK_ROWS = 1 << 20
_COUNTS = ("expect_table_row_count_to_be_between", "expect_table_row_count_to_equal")
_SCHEMAS = (
    "expect_column_to_exist",
    "expect_column_values_to_be_of_type",
    "expect_column_values_to_be_in_type_list",
)


def check_quality(location: TableLocation, options: QualityOptions) -> JobResult:
    """Check the rows of the base table against a suite, regardless of the mode of the rules.

    Without a sample, expectations about single rows are evaluated in one pass over batches, which
    tasks share by fragments; each other expectation is a task that loads the columns that it names
    into memory. With a sample, expectations about the number of rows still count all, but "unique"
    and "distinct" are then about the sample.

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
    suite = options.quality.suite
    row_count = base.dataset.count_rows()
    sampled = options.sample_rows is not None and options.sample_rows < row_count
    tasks = _plan(base, options, options.sample_rows if sampled else None)
    outcomes: list[_TaskTotals] = run_tasks(
        options, tasks, run_check_task, job="quality", step="checking", unit=Unit.ROWS
    )
    tallies = {}
    for number, expectation in enumerate(suite):
        parts = [outcome.totals[number] for outcome in outcomes if number in outcome.totals]
        tallies[number] = _with_mostly(combine_tallies([_empty_tally(expectation), *parts]))
        if _is_metadata(expectation):
            result = _check_metadata(expectation, base.schema, row_count)
            tallies[number] = tally_result(result, base.schema.empty_table())
    addresses = [part for outcome in outcomes for part in outcome.addresses]
    report = QualityReport(
        mode="check",
        rows=options.sample_rows if sampled and options.sample_rows is not None else row_count,
        failed_rows=len(np.unique(np.concatenate(addresses)))
        if addresses
        else sum(outcome.failed for outcome in outcomes),
        tallies=tuple(tallies[number] for number in range(len(suite))),
    )
    return JobResult(
        job="quality",
        table=location.uri,
        version=base.version,
        tasks=len(tasks),
        seconds=time.monotonic() - started,
        metrics={"rows": report.rows, "failed_rows": report.failed_rows},
        warnings=report.warnings(),
        quality=report.to_dict(),
    )


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Evaluate expectations on rows of one version: of some fragments, or a sample of all."""

    location: TableLocation
    version: int
    suite: Mapping[int, Expectation]  # by number in the suite of the job
    rows: int
    fragments: tuple[int, ...] = ()
    sampled: bool = False
    # Whether all rows are loaded, for an expectation that is not about single rows.
    whole: bool = False
    # Whether other tasks may find that the same rows fail, so that it returns their addresses.
    shared: bool = False


@dataclass(frozen=True, slots=True)
class _TaskTotals:
    """Totals of the expectations of a task, and the rows that fail one of them."""

    totals: Mapping[int, Tally]
    failed: int
    addresses: Sequence[npt.NDArray[np.uint64]] = ()  # of these rows, if the task shares rows


def _plan(base: BaseTable, options: QualityOptions, sample_rows: int | None) -> list[CheckTask]:
    """Plan the tasks: some for the rows, and one for each expectation that needs all of them."""
    suite = {n: e for n, e in enumerate(options.quality.suite) if not _is_metadata(e)}
    if sample_rows is not None:
        task = CheckTask(base.location, base.version, suite, sample_rows, sampled=True)
        return [task] if suite else []
    sizes = [(part.fragment_id, part.physical_rows) for part in base.dataset.get_fragments()]
    rows = sum(count for _, count in sizes)
    by_row = {
        number: expectation
        for number, expectation in suite.items()
        if expectation.kind == ExpectationKind.ROW and expectation.rule.in_arrow
    }
    groups = min(task_limit(options), max(rows // _TASK_ROWS, 1))
    count_of = dict(sizes)
    tasks = [
        CheckTask(base.location, base.version, by_row, sum(map(count_of.__getitem__, group)), group)
        for group in (group_fragments(sizes, groups=groups) if by_row else ())
    ]
    tasks += [
        CheckTask(base.location, base.version, {number: expectation}, rows, whole=True)
        for number, expectation in suite.items()
        if number not in by_row
    ]
    # The addresses take memory, but less than the column that such an expectation loads.
    shared = any(suite[number].kind != ExpectationKind.WHOLE for number in suite.keys() - by_row)
    return [replace(task, shared=shared) for task in tasks]


def run_check_task(task: CheckTask) -> _TaskTotals:
    """Evaluate the expectations of a task, batch by batch."""
    base = open_base(task.location, version=task.version)
    totals = {number: _empty_tally(expectation) for number, expectation in task.suite.items()}
    failed, addresses = 0, []
    with lance_errors(f"checking {task.location}"):
        for batch in _batches(task, base):
            results = evaluate(list(task.suite.values()), batch)
            masks = [result.failed for result in results if result.failed is not None]
            fails = np.any(masks, axis=0)
            failed += int(fails.sum())
            if task.shared and masks:
                addresses.append(batch.column(ROW_ADDRESS).to_numpy()[fails])
            keys = batch.select(list(base.key_or_column))
            for number, result in zip(task.suite, results, strict=True):
                # Whether enough rows pass is decided when all of them were evaluated.
                success = result.success or result.failed is not None
                tally = replace(tally_result(result, keys), success=success)
                totals[number] = combine_tallies([totals[number], tally])
    return _TaskTotals(totals, failed, addresses)


def _batches(task: CheckTask, base: BaseTable) -> Iterator[pa.Table]:
    dataset, names = base.dataset, _column_names(base, task.suite.values())
    if task.sampled:
        yield dataset.sample(task.rows, columns=names)
    elif task.whole:
        yield dataset.to_table(columns=names, with_row_address=task.shared)
    else:
        scanner = dataset.scanner(
            columns=names,
            with_row_address=task.shared,
            fragments=[
                part for part in dataset.get_fragments() if part.fragment_id in task.fragments
            ],
            batch_size=batch_rows(dataset, names, most=_BATCH_ROWS),
            io_buffer_size=READ_AHEAD_BYTES,
        )
        for batch in scanner.to_batches():
            yield pa.Table.from_batches([batch])


def _empty_tally(expectation: Expectation) -> Tally:
    return Tally(expectation=expectation, success=True, failed=0)


def _with_mostly(tally: Tally) -> Tally:
    """Return a tally of all rows, which is no success if more fail than ``mostly`` allows."""
    mostly = tally.expectation.mostly
    enough = not tally.failed or (tally.checked - tally.failed) / tally.checked >= mostly
    return replace(tally, success=tally.success and enough)


def _is_metadata(expectation: Expectation) -> bool:
    """Return whether an expectation is about the schema, or about the number of rows."""
    return expectation.type in (*_COUNTS, *_SCHEMAS)


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


def _column_names(base: BaseTable, suite: Iterable[Expectation]) -> list[str]:
    """Return the columns that expectations and their examples need, at least one."""
    needed = {column for expectation in suite for column in expectation.columns}
    needed |= set(base.key_or_column)
    return [name for name in base.schema.names if name in needed]
