"""Review of rows in quarantine: list, release, discard."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.quality.checks import Mask
from memwal.quality.evaluate import evaluate
from memwal.quality.expectations import Severity
from memwal.quality.quarantine import PREFIX, Origin, Quarantine, State, original_rows, origins_of
from memwal.quality.registry import Kind
from memwal.quality.rules import QualityRules
from memwal.region.rows import key_column

if TYPE_CHECKING:
    from memwal.table import Table


@dataclass(frozen=True, slots=True)
class Released:
    """What became of rows that were to be released.

    Attributes
    ----------
    released : tuple of Origin
        Written to the table again.
    failing : dict
        Those that were not, since they are still not as expected: origin to the reasons.
    """

    released: tuple[Origin, ...]
    failing: dict[Origin, tuple[str, ...]]


def waiting_rows(
    table: Table,
    quarantine: Quarantine,
    *,
    origins: Collection[Origin] | None = None,
) -> pa.Table:
    """Rows that wait in quarantine, without those that the table shows just as they are.

    A row that somebody has written again, or that a merge at the same time let in, needs nobody.

    Parameters
    ----------
    table : memwal.Table
        The table that they were kept out of.
    quarantine : Quarantine
        Its quarantine.
    origins : collection of Origin, optional
        Only these; all by default.
    """
    found = quarantine.read(origins=origins)
    if not found.num_rows:
        return found
    rows = original_rows(found, table.schema)
    return found.filter(pa.array(~_shown(table, rows)))


def release(
    table: Table,
    quarantine: Quarantine,
    origins: Collection[Origin],
    *,
    rules: QualityRules | None = None,
) -> Released:
    """Write rows to the table again, as new writes: they replace what their keys have now.

    A process that dies between the write and the note that they are released leaves them in
    quarantine; releasing them again writes the same values again.

    Parameters
    ----------
    table : memwal.Table
        The table that they were kept out of.
    quarantine : Quarantine
        Its quarantine.
    origins : collection of Origin
        Which; those that do not wait are left out.
    rules : QualityRules, optional
        Rows that would be kept out again are not released, nor those with a value in a column
        that the table has not any more, or has by another name. By default all are.
    """
    found = quarantine.read(origins=origins)
    if not found.num_rows:
        return Released((), {})
    # The newest of a key last, so that it is the one that stays.
    found = found.sort_by([(f"quarantine_{name}", "ascending") for name in ("generation", "row")])
    rows = original_rows(found, table.schema)
    names = origins_of(found)
    failing: list[tuple[str, ...]] = [()] * rows.num_rows
    if rules is not None:
        both = zip(_failing(rows, rules), _lost(found, rows), strict=True)
        failing = [(*why, *lost) for why, lost in both]
    able = np.array([not failed for failed in failing], np.bool_)
    released = tuple(name for name, fine in zip(names, able, strict=True) if fine)
    if released:
        with table.writer() as writer:
            writer.upsert(rows.filter(pa.array(able)))
        quarantine.mark(released, State.RELEASED)
    return Released(released, {name: why for name, why in zip(names, failing, strict=True) if why})


def discard(quarantine: Quarantine, origins: Collection[Origin]) -> int:
    """Say of rows that they are not wanted; tell how many waited.

    Parameters
    ----------
    quarantine : Quarantine
        Of their table.
    origins : collection of Origin
        Which rows.
    """
    return quarantine.mark(origins, State.DISCARDED)


def _lost(found: pa.Table, rows: pa.Table) -> list[tuple[str, ...]]:
    """Of each row what would be lost of it."""
    gone = [
        name
        for name in found.schema.names
        if not name.startswith(PREFIX) and name not in rows.schema.names
    ]
    values = {name: np.asarray(found.column(name).is_valid()) for name in gone}
    return [
        tuple(f"the table has no column {name}" for name in gone if values[name][number])
        for number in range(found.num_rows)
    ]


def _failing(rows: pa.Table, rules: QualityRules) -> list[tuple[str, ...]]:
    """Of each row the expectations about a row alone that it fails."""
    suite = [
        one
        for one in (rules.suite if rules.gates else ())
        if one.kind == Kind.ROW and one.severity == Severity.CRITICAL
    ]
    findings = [f for f in evaluate(suite, rows) if f.failed is not None]
    return [
        tuple(str(f.expectation) for f in findings if f.failed is not None and f.failed[number])
        for number in range(rows.num_rows)
    ]


def _shown(table: Table, rows: pa.Table) -> Mask:
    """Which of the rows the table shows with all their values."""
    names = list(table.primary_key)
    keys = rows.select(names)
    there = table.lookup(keys if len(names) > 1 else keys.column(0).combine_chunks())
    shown = np.zeros(rows.num_rows, np.bool_)
    if not there.num_rows:
        return shown
    known = key_column(there.combine_chunks(), names)
    where = pc.index_in(key_column(rows.combine_chunks(), names), value_set=known)
    found = np.flatnonzero(np.asarray(where.is_valid()))
    ours = rows.take(pa.array(found))
    theirs = there.take(where.drop_null())
    same = np.ones(len(found), np.bool_)
    for name in rows.schema.names:
        same &= _equal(ours.column(name), theirs.column(name))
    shown[found[same]] = True
    return shown


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Mask:
    """Where two columns are equal; two that are missing are, and so are two that are NaN."""
    try:
        equal = pc.fill_null(pc.equal(left, right), False)
        both = pc.and_(left.is_null(nan_is_null=True), right.is_null(nan_is_null=True))
        return np.asarray(pc.or_(equal, both).to_numpy(), np.bool_)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        # Of nested types, for which Arrow has no comparison.
        pairs: Any = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.array([one == other for one, other in pairs], np.bool_)
