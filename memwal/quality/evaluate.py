"""Holding rows against a suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.quality.columns import ROW_CHECKS, UNIQUE_CHECKS, one_array
from memwal.quality.expectation import Expectation
from memwal.quality.kinds import Kind
from memwal.quality.vectors import VECTOR_CHECKS, Mask, vector_failures
from memwal.quality.wholes import WHOLE_CHECKS


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one expectation.

    Attributes
    ----------
    expectation : Expectation
    success : bool
        Whether it is met, with ``mostly`` taken into account.
    looked : int
        Values that it was held against.
    failed : numpy.ndarray of bool, or None
        Of each row whether it is not as expected; None when no row is to blame.
    error : str or None
        Why it could not be decided, without any value; it is not met then.
    """

    expectation: Expectation
    success: bool
    looked: int
    failed: Mask | None = None
    error: str | None = None

    @property
    def failures(self) -> int:
        """How many rows are not as expected."""
        return 0 if self.failed is None else int(np.count_nonzero(self.failed))


def evaluate(suite: Sequence[Expectation], rows: pa.Table) -> list[Finding]:
    """Hold rows against expectations, in the order of the suite.

    Most are decided over Arrow; Great Expectations is loaded, which takes seconds, only for those
    that are not.
    """
    found = [_one(one, rows) if one.rule.own else None for one in suite]
    rest = [number for number, finding in enumerate(found) if finding is None]
    if rest:
        from memwal.quality.great_expectations import evaluate_with_gx

        theirs = evaluate_with_gx([suite[number] for number in rest], rows)
        for number, finding in zip(rest, theirs, strict=True):
            found[number] = finding
    return [finding for finding in found if finding is not None]


def verdict(expectation: Expectation, failed: Mask, looked: int) -> Finding:
    """The finding for rows that fail, of so many that were looked at."""
    failures = int(np.count_nonzero(failed))
    success = not failures or (looked - failures) / looked >= expectation.mostly
    return Finding(expectation, success, looked, failed)


def _one(expectation: Expectation, rows: pa.Table) -> Finding:
    kwargs, type_ = expectation.kwargs, expectation.type
    absent = [name for name in expectation.columns if name not in rows.schema.names]
    if absent and type_ != "expect_column_to_exist":
        return undecided(expectation, f"there is no column {', '.join(absent)}")
    try:
        if expectation.kind == Kind.WHOLE:
            return Finding(expectation, WHOLE_CHECKS[type_](rows, kwargs), rows.num_rows)
        if type_ in VECTOR_CHECKS:
            column = one_array(rows, kwargs["column"])
            failed = vector_failures(type_, column, kwargs)
            counts_missing = type_ == "expect_vector_values_to_not_be_null"
            return verdict(
                expectation, failed, len(column) - (0 if counts_missing else column.null_count)
            )
        failed, looked = {**ROW_CHECKS, **UNIQUE_CHECKS}[type_](rows, kwargs)
        return verdict(expectation, failed, int(np.count_nonzero(looked)))
    except InvalidInputError as error:
        return undecided(expectation, str(error))
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
        TypeError,
    ) as error:
        # Its text may hold a value.
        return undecided(
            expectation, f"the column's type does not go with it ({type(error).__name__})"
        )


def undecided(expectation: Expectation, why: str) -> Finding:
    """The finding of an expectation that cannot be held against the rows."""
    return Finding(expectation, False, 0, error=why)
