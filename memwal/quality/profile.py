"""Proposal of a suite from the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import lance_errors, open_base
from memwal.errors import InvalidInputError
from memwal.quality.checks import combine_column, is_present, is_vector
from memwal.quality.expectations import Expectation, Severity
from memwal.storage.location import TableLocation

DEFAULT_SAMPLE_ROWS = 100_000
_FEW_VALUES = 20
_ROWS_PER_VALUE = 10
_LONGEST_VALUE = 100
_MARGIN = 0.1
_NORM_MARGIN = 2.0


def propose_suite(
    location: TableLocation, *, sample_rows: int = DEFAULT_SAMPLE_ROWS
) -> list[Expectation]:
    """Propose expectations that the base table meets now, for review before they are set.

    Types, missing values and the form of vectors are proposed as critical. Ranges, lengths and sets
    of few values come from a random sample of ``sample_rows``; they are proposed as warnings,
    ranges with a margin. Raises InvalidInputError if the table is empty.
    """
    base = open_base(location)
    with lance_errors(f"reading {location}"):
        total = base.dataset.count_rows()
        if not total:
            raise InvalidInputError(f"the base table {location} has no rows to propose a suite by")
        names = base.schema.names
        rows = (
            base.dataset.sample(sample_rows, columns=names)
            if total > sample_rows
            else base.dataset.to_table(columns=names)
        )
    suite: list[Expectation] = []
    for field in rows.schema:
        column = combine_column(rows, field.name)
        suite += _propose_for_column(field, column, is_key=field.name in base.primary_key)
    return suite


def _propose_for_column(
    field: pa.Field, column: pa.Array, *, is_key: bool
) -> Iterator[Expectation]:
    name, kind = field.name, field.type
    if is_vector(kind):
        yield from _propose_for_vectors(name, column)
        return
    yield Expectation("expect_column_values_to_be_of_type", {"column": name, "type_": str(kind)})
    present = is_present(column)
    share = float(np.mean(present))
    if share > 0.5:
        kwargs: dict[str, object] = {"column": name}
        if share < 1:
            kwargs["mostly"] = max(math.floor((share - 0.05) * 100) / 100, 0.0)
        yield Expectation("expect_column_values_to_not_be_null", kwargs)
    values = column.filter(pa.array(present))
    if not len(values) or is_key:
        return
    # Arrow does not compare 16-bit floats, so that no gate can evaluate a range of them.
    if pa.types.is_integer(kind) or (pa.types.is_floating(kind) and kind != pa.float16()):
        yield from _propose_for_numbers(name, values)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield from _propose_for_texts(name, values)


def _propose_for_numbers(name: str, values: pa.Array) -> Iterator[Expectation]:
    ends = pc.min_max(values).as_py()
    low, high = ends["min"], ends["max"]
    if not (math.isfinite(low) and math.isfinite(high)):
        return
    margin = (high - low) * _MARGIN
    if pa.types.is_integer(values.type):
        margin = math.ceil(margin)
    yield _between(
        "expect_column_values_to_be_between",
        name,
        # A column without negative values is expected to stay without.
        max(low - margin, 0) if low >= 0 else low - margin,
        high + margin,
    )


def _propose_for_texts(name: str, values: pa.Array) -> Iterator[Expectation]:
    distinct = values.unique()
    lengths = pc.min_max(pc.utf8_length(values)).as_py()
    few = min(_FEW_VALUES, len(values) // _ROWS_PER_VALUE)
    if len(distinct) <= few and lengths["max"] <= _LONGEST_VALUE:
        yield Expectation(
            "expect_column_values_to_be_in_set",
            {"column": name, "value_set": sorted(distinct.to_pylist())},
            Severity.WARNING,
        )
        return
    yield _between(
        "expect_column_value_lengths_to_be_between", name, lengths["min"], 2 * lengths["max"]
    )


def _propose_for_vectors(name: str, column: pa.Array) -> Iterator[Expectation]:
    if not column.null_count:
        yield Expectation("expect_vector_values_to_not_be_null", {"column": name})
    vectors = column.drop_null()
    if not len(vectors):
        return
    lengths = pc.list_value_length(vectors).unique().to_pylist()
    if len(lengths) == 1 and lengths[0]:
        yield Expectation(
            "expect_vector_dimension_to_equal", {"column": name, "dimension": lengths[0]}
        )
    numbers = pc.fill_null(vectors.flatten(), 0).to_numpy(zero_copy_only=False)
    if len(lengths) != 1 or not np.isfinite(numbers).all():
        return
    yield Expectation("expect_vector_values_to_be_finite", {"column": name})
    norms = np.linalg.norm(numbers.astype(np.float64).reshape(len(vectors), -1), axis=1)
    yield _between(
        "expect_vector_norm_to_be_between",
        name,
        float(f"{norms.min() / _NORM_MARGIN:.3g}"),
        float(f"{norms.max() * _NORM_MARGIN:.3g}"),
    )


def _between(type_: str, name: str, low: float, high: float) -> Expectation:
    kwargs = {"column": name, "min_value": low, "max_value": high}
    return Expectation(type_, kwargs, Severity.WARNING)
