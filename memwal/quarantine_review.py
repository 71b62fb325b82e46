"""Review of quarantined rows: list, release, discard."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.boundary.public import public
from memwal.format.values import single_array
from memwal.lsm.row_schema import RowSchema
from memwal.quality.evaluate import evaluate
from memwal.quality.expectations import ExpectationKind, Severity
from memwal.quality.quarantine import (
    PREFIX,
    Quarantine,
    RowOrigin,
    RowState,
    missing_part,
    original_rows,
    origins_of,
)
from memwal.quality.rules import QualityRules
from memwal.region.rows import key_column
from memwal.table import Table
from memwal.util.arrays import Mask


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """Result of a release."""

    released: tuple[RowOrigin, ...]
    """Rows written to the table again."""
    failing: dict[RowOrigin, tuple[str, ...]]
    """Rows that were not released because they still fail: origin to reasons."""


@public
def waiting_rows(
    table: Table,
    quarantine: Quarantine,
    *,
    origins: Collection[RowOrigin] | None = None,
) -> pa.Table:
    """List waiting rows, without rows that the table already has with the same values.

    A row that a writer has written again, or that a concurrent merge accepted, needs no review.

    Parameters
    ----------
    table, quarantine
        The table, and the quarantine of the rows that were kept out of it.
    origins : collection of RowOrigin, optional
        Only these; all by default.
    """
    waiting = quarantine.read(origins=origins)
    if not waiting.num_rows:
        return waiting
    rows = original_rows(waiting, table.schema)
    return waiting.filter(pa.array(~_visible_rows(table, rows)))


@public
def release(
    table: Table,
    quarantine: Quarantine,
    origins: Collection[RowOrigin],
    *,
    rules: QualityRules | None = None,
) -> ReleaseResult:
    """Write rows to the table again, as new writes that replace the current rows of their keys.

    If the process dies between the write and the change of their state, the rows stay in
    quarantine. Releasing them again writes the same values again; to a table without a primary key
    it adds them a second time.

    Parameters
    ----------
    table, quarantine
        As for :func:`waiting_rows`.
    origins : collection of RowOrigin
        Which rows; rows that do not wait are skipped.
    rules : QualityRules, optional
        Skip rows that the gate would quarantine again, and rows with a value in a column that was
        dropped or renamed. By default all rows are released that a writer takes: never those with
        a null key, for example.
    """
    waiting = quarantine.read(origins=origins)
    if not waiting.num_rows:
        return ReleaseResult((), {})
    # The newest row of a key is written last, so that it wins.
    waiting = waiting.sort_by([(f"{PREFIX}{name}", "ascending") for name in ("generation", "row")])
    rows = original_rows(waiting, table.schema)
    names = origins_of(waiting)
    failing = _unwritable(table, rows)
    if rules is not None:
        several = zip(
            failing, _failed_expectations(rows, rules), _lost_values(waiting, rows), strict=True
        )
        failing = [tuple(chain(*reasons)) for reasons in several]
    able = np.array([not failed for failed in failing], np.bool_)
    released = tuple(name for name, fine in zip(names, able, strict=True) if fine)
    if released:
        with table.writer() as writer:
            write = writer.upsert if table.primary_key else writer.append
            write(rows.filter(pa.array(able)))
        quarantine.mark(released, RowState.RELEASED)
    return ReleaseResult(
        released, {name: why for name, why in zip(names, failing, strict=True) if why}
    )


@public
def discard(quarantine: Quarantine, origins: Collection[RowOrigin]) -> int:
    """Discard waiting rows of a quarantine, and return how many there were; see :func:`release`."""
    return quarantine.mark(origins, RowState.DISCARDED)


def _unwritable(table: Table, rows: pa.Table) -> list[tuple[str, ...]]:
    """Return per row the reasons why no writer takes it, such as a null key."""
    row_schema = RowSchema.of(table.base())
    columns = [single_array(rows.column(name)) for name in row_schema.base_schema.names]
    flags = pa.repeat(pa.scalar(False), rows.num_rows)
    stored = pa.RecordBatch.from_arrays([*columns, flags], schema=row_schema.schema)
    problems = row_schema.find_problems(stored, exact=True)
    return [(problems[n],) if n in problems else () for n in range(rows.num_rows)]


def _lost_values(waiting: pa.Table, rows: pa.Table) -> list[tuple[str, ...]]:
    """Return per row the columns whose values a release would lose, as reasons."""
    lost: dict[str, Mask] = {}
    for field in missing_part(pa.struct(waiting.schema), pa.struct(rows.schema)) or ():
        if not field.name.startswith(PREFIX):
            whole = field.name not in rows.schema.names
            what = field.name if whole else f"{field.name} with {field.type}"
            lost[what] = _has_value(waiting.column(field.name).cast(field.type).combine_chunks())
    return [
        tuple(f"the table has no column {what}" for what, mask in lost.items() if mask[number])
        for number in range(waiting.num_rows)
    ]


def _has_value(array: pa.Array) -> Mask:
    """Mark structs with a value in one of their fields; other values if they are not null."""
    if pt.is_struct(array.type):
        return np.asarray(np.logical_or.reduce([_has_value(part) for part in array.flatten()]))
    return np.asarray(array.is_valid())


def _failed_expectations(rows: pa.Table, rules: QualityRules) -> list[tuple[str, ...]]:
    """Return per row the critical row expectations that it fails."""
    suite = [
        expectation
        for expectation in (rules.suite if rules.gates else ())
        if expectation.kind == ExpectationKind.ROW and expectation.severity == Severity.CRITICAL
    ]
    findings = [f for f in evaluate(suite, rows) if f.failed is not None]
    return [
        tuple(str(f.expectation) for f in findings if f.failed is not None and f.failed[number])
        for number in range(rows.num_rows)
    ]


def _visible_rows(table: Table, rows: pa.Table) -> Mask:
    """Mark the rows that the table has with equal values in all columns.

    None in a table without a primary key, where an equal row is another one.
    """
    names = list(table.primary_key)
    visible = np.zeros(rows.num_rows, np.bool_)
    if not names:
        return visible
    # No row of the table has a null in its key.
    complete = [np.asarray(rows.column(name).is_valid()) for name in names]
    with_key = np.flatnonzero(np.logical_and.reduce(complete))
    rows = rows.take(pa.array(with_key))
    keys = rows.select(names)
    current = table.lookup(keys).to_table()
    if not current.num_rows:
        return visible
    current_keys = key_column(current.combine_chunks(), names)
    where = pc.index_in(key_column(rows.combine_chunks(), names), value_set=current_keys)
    matches = np.flatnonzero(np.asarray(where.is_valid()))
    quarantined = rows.take(pa.array(matches))
    current = current.take(where.drop_null())
    same = np.ones(len(matches), np.bool_)
    for name in rows.schema.names:
        same &= _equal_values(quarantined.column(name), current.column(name))
    visible[with_key[matches[same]]] = True
    return visible


def _equal_values(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Mask:
    """Mark where two columns are equal; two missing values are, and so are two NaN."""
    try:
        equal = pc.fill_null(pc.equal(left, right), False)
        both = pc.and_(left.is_null(nan_is_null=True), right.is_null(nan_is_null=True))
        return np.asarray(pc.or_(equal, both).to_numpy(), np.bool_)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        # Arrow cannot compare nested types.
        pairs: Any = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.array([a == b for a, b in pairs], np.bool_)
