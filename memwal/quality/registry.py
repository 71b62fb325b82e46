"""Types of expectations that a suite may contain, and how each is evaluated.

Names and meanings are those of Great Expectations. A suite is untrusted data, so types that would
run code or queries contained in the suite are excluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_BOUNDS = ("min_value", "max_value")
_STRICT = (*_BOUNDS, "strict_min", "strict_max")


class ExpectationKind(StrEnum):
    """Rows that the result of an expectation depends on."""

    ROW = "row"  # each row alone
    UNIQUE = "unique"  # each row compared with the other rows of the same evaluation
    WHOLE = "whole"  # all rows together: it fails as a whole, without failing rows


@dataclass(frozen=True, slots=True)
class ExpectationRule:
    """Arguments and evaluation of one type of expectation."""

    kind: ExpectationKind
    required: tuple[str, ...] = ("column",)  # Arguments, without :data:`COMMON_ARGUMENTS`
    optional: tuple[str, ...] = ()
    # True if this library evaluates the type over Arrow, False if Great Expectations does.
    in_arrow: bool = True


def _arrow(
    kind: ExpectationKind, *required: str, optional: tuple[str, ...] = ()
) -> ExpectationRule:
    return ExpectationRule(kind, required, optional)


def _gx(kind: ExpectationKind, *required: str, optional: tuple[str, ...] = ()) -> ExpectationRule:
    return ExpectationRule(kind, required, optional, in_arrow=False)


_ROW, _UNIQUE, _WHOLE = ExpectationKind

EXPECTATION_RULES: dict[str, ExpectationRule] = {
    # A value
    "expect_column_values_to_not_be_null": _arrow(_ROW, "column"),
    "expect_column_values_to_be_null": _arrow(_ROW, "column"),
    "expect_column_values_to_be_between": _arrow(_ROW, "column", optional=_STRICT),
    "expect_column_values_to_be_in_set": _arrow(_ROW, "column", "value_set"),
    "expect_column_values_to_not_be_in_set": _arrow(_ROW, "column", "value_set"),
    "expect_column_values_to_match_regex": _arrow(_ROW, "column", "regex"),
    "expect_column_values_to_not_match_regex": _arrow(_ROW, "column", "regex"),
    "expect_column_values_to_match_regex_list": _arrow(
        _ROW, "column", "regex_list", optional=("match_on",)
    ),
    "expect_column_values_to_not_match_regex_list": _arrow(_ROW, "column", "regex_list"),
    "expect_column_value_lengths_to_be_between": _arrow(_ROW, "column", optional=_STRICT),
    "expect_column_value_lengths_to_equal": _arrow(_ROW, "column", "value"),
    "expect_column_pair_values_a_to_be_greater_than_b": _arrow(
        _ROW, "column_A", "column_B", optional=("or_equal", "ignore_row_if")
    ),
    "expect_column_pair_values_to_be_equal": _arrow(
        _ROW, "column_A", "column_B", optional=("ignore_row_if",)
    ),
    "expect_column_values_to_be_json_parseable": _gx(_ROW, "column"),
    "expect_column_values_to_be_dateutil_parseable": _gx(_ROW, "column"),
    "expect_column_values_to_match_strftime_format": _gx(_ROW, "column", "strftime_format"),
    "expect_column_pair_values_to_be_in_set": _gx(
        _ROW, "column_A", "column_B", "value_pairs_set", optional=("ignore_row_if",)
    ),
    "expect_multicolumn_sum_to_equal": _gx(
        _ROW, "column_list", "sum_total", optional=("ignore_row_if",)
    ),
    "expect_select_column_values_to_be_unique_within_record": _gx(
        _ROW, "column_list", optional=("ignore_row_if",)
    ),
    # A vector
    "expect_vector_values_to_not_be_null": _arrow(_ROW, "column"),
    "expect_vector_dimension_to_equal": _arrow(_ROW, "column", "dimension"),
    "expect_vector_values_to_be_finite": _arrow(_ROW, "column"),
    "expect_vector_norm_to_be_between": _arrow(_ROW, "column", optional=_STRICT),
    # A value compared with the others
    "expect_column_values_to_be_unique": _arrow(_UNIQUE, "column"),
    "expect_compound_columns_to_be_unique": _arrow(
        _UNIQUE, "column_list", optional=("ignore_row_if",)
    ),
    # All rows
    "expect_column_to_exist": _arrow(_WHOLE, "column"),
    "expect_column_values_to_be_of_type": _arrow(_WHOLE, "column", "type_"),
    "expect_column_values_to_be_in_type_list": _arrow(_WHOLE, "column", "type_list"),
    "expect_table_row_count_to_be_between": _arrow(_WHOLE, optional=_STRICT),
    "expect_table_row_count_to_equal": _arrow(_WHOLE, "value"),
    "expect_column_min_to_be_between": _arrow(_WHOLE, "column", optional=_STRICT),
    "expect_column_max_to_be_between": _arrow(_WHOLE, "column", optional=_STRICT),
    "expect_column_mean_to_be_between": _arrow(_WHOLE, "column", optional=_STRICT),
    "expect_column_sum_to_be_between": _arrow(_WHOLE, "column", optional=_STRICT),
    "expect_column_stdev_to_be_between": _arrow(_WHOLE, "column", optional=_STRICT),
    "expect_column_proportion_of_non_null_values_to_be_between": _arrow(
        _WHOLE, "column", optional=_STRICT
    ),
    "expect_column_unique_value_count_to_be_between": _arrow(_WHOLE, "column", optional=_STRICT),
    "expect_column_proportion_of_unique_values_to_be_between": _arrow(
        _WHOLE, "column", optional=_STRICT
    ),
    "expect_column_median_to_be_between": _gx(_WHOLE, "column", optional=_STRICT),
    "expect_column_quantile_values_to_be_between": _gx(
        _WHOLE, "column", "quantile_ranges", optional=("allow_relative_error",)
    ),
    "expect_column_distinct_values_to_be_in_set": _gx(_WHOLE, "column", "value_set"),
    "expect_column_distinct_values_to_contain_set": _gx(_WHOLE, "column", "value_set"),
    "expect_column_distinct_values_to_equal_set": _gx(_WHOLE, "column", "value_set"),
    "expect_column_most_common_value_to_be_in_set": _gx(
        _WHOLE, "column", "value_set", optional=("ties_okay",)
    ),
    "expect_column_value_z_scores_to_be_less_than": _gx(
        _WHOLE, "column", "threshold", optional=("double_sided",)
    ),
    "expect_column_kl_divergence_to_be_less_than": _gx(
        _WHOLE,
        "column",
        "partition_object",
        "threshold",
        optional=("bucketize_data", "tail_weight_holdout", "internal_weight_holdout"),
    ),
}
"""All supported types. None runs a query, or a pattern whose run time has no bound."""

COMMON_ARGUMENTS = frozenset({"mostly"})
"""Optional arguments of every type that is not about all rows together."""
