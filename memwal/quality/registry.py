"""Types of expectations that a suite may hold, and how each is evaluated.

The names and their meaning are those of Great Expectations. A suite is untrusted data, so types
that would run code or queries contained in the suite are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_BOUNDS = ("min_value", "max_value")
_STRICT = (*_BOUNDS, "strict_min", "strict_max")


class Kind(StrEnum):
    """How an expectation is decided.

    Attributes
    ----------
    ROW
        By each row alone: it fails or it does not, whatever stands beside it.
    UNIQUE
        By each row among those that it is checked with.
    WHOLE
        By all rows together: it fails as a whole, and no row is to blame.
    """

    ROW = "row"
    UNIQUE = "unique"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Rule:
    """What one type of expectation takes.

    Attributes
    ----------
    kind : Kind
        How it is decided.
    needs, takes : tuple of str
        Arguments it must have, and may have beside those that every one may have.
    own : bool
        Decided by this library over Arrow; if not, by Great Expectations.
    """

    kind: Kind
    needs: tuple[str, ...] = ("column",)
    takes: tuple[str, ...] = ()
    own: bool = True


def _own(kind: Kind, *needs: str, takes: tuple[str, ...] = ()) -> Rule:
    return Rule(kind, needs, takes)


def _theirs(kind: Kind, *needs: str, takes: tuple[str, ...] = ()) -> Rule:
    return Rule(kind, needs, takes, own=False)


RULES: dict[str, Rule] = {
    # Of a value
    "expect_column_values_to_not_be_null": _own(Kind.ROW, "column"),
    "expect_column_values_to_be_null": _own(Kind.ROW, "column"),
    "expect_column_values_to_be_between": _own(Kind.ROW, "column", takes=_STRICT),
    "expect_column_values_to_be_in_set": _own(Kind.ROW, "column", "value_set"),
    "expect_column_values_to_not_be_in_set": _own(Kind.ROW, "column", "value_set"),
    "expect_column_values_to_match_regex": _own(Kind.ROW, "column", "regex"),
    "expect_column_values_to_not_match_regex": _own(Kind.ROW, "column", "regex"),
    "expect_column_values_to_match_regex_list": _own(
        Kind.ROW, "column", "regex_list", takes=("match_on",)
    ),
    "expect_column_values_to_not_match_regex_list": _own(Kind.ROW, "column", "regex_list"),
    "expect_column_value_lengths_to_be_between": _own(Kind.ROW, "column", takes=_STRICT),
    "expect_column_value_lengths_to_equal": _own(Kind.ROW, "column", "value"),
    "expect_column_pair_values_a_to_be_greater_than_b": _own(
        Kind.ROW, "column_A", "column_B", takes=("or_equal", "ignore_row_if")
    ),
    "expect_column_pair_values_to_be_equal": _own(
        Kind.ROW, "column_A", "column_B", takes=("ignore_row_if",)
    ),
    "expect_column_values_to_be_json_parseable": _theirs(Kind.ROW, "column"),
    "expect_column_values_to_be_dateutil_parseable": _theirs(Kind.ROW, "column"),
    "expect_column_values_to_match_strftime_format": _theirs(Kind.ROW, "column", "strftime_format"),
    "expect_column_pair_values_to_be_in_set": _theirs(
        Kind.ROW, "column_A", "column_B", "value_pairs_set", takes=("ignore_row_if",)
    ),
    "expect_multicolumn_sum_to_equal": _theirs(
        Kind.ROW, "column_list", "sum_total", takes=("ignore_row_if",)
    ),
    "expect_select_column_values_to_be_unique_within_record": _theirs(
        Kind.ROW, "column_list", takes=("ignore_row_if",)
    ),
    # Of a vector
    "expect_vector_values_to_not_be_null": _own(Kind.ROW, "column"),
    "expect_vector_dimension_to_equal": _own(Kind.ROW, "column", "dimension"),
    "expect_vector_values_to_be_finite": _own(Kind.ROW, "column"),
    "expect_vector_norm_to_be_between": _own(Kind.ROW, "column", takes=_STRICT),
    # Of a value among the others
    "expect_column_values_to_be_unique": _own(Kind.UNIQUE, "column"),
    "expect_compound_columns_to_be_unique": _own(
        Kind.UNIQUE, "column_list", takes=("ignore_row_if",)
    ),
    # Of all rows
    "expect_column_to_exist": _own(Kind.WHOLE, "column"),
    "expect_column_values_to_be_of_type": _own(Kind.WHOLE, "column", "type_"),
    "expect_column_values_to_be_in_type_list": _own(Kind.WHOLE, "column", "type_list"),
    "expect_table_row_count_to_be_between": _own(Kind.WHOLE, takes=_STRICT),
    "expect_table_row_count_to_equal": _own(Kind.WHOLE, "value"),
    "expect_column_min_to_be_between": _own(Kind.WHOLE, "column", takes=_STRICT),
    "expect_column_max_to_be_between": _own(Kind.WHOLE, "column", takes=_STRICT),
    "expect_column_mean_to_be_between": _own(Kind.WHOLE, "column", takes=_STRICT),
    "expect_column_sum_to_be_between": _own(Kind.WHOLE, "column", takes=_STRICT),
    "expect_column_stdev_to_be_between": _own(Kind.WHOLE, "column", takes=_STRICT),
    "expect_column_proportion_of_non_null_values_to_be_between": _own(
        Kind.WHOLE, "column", takes=_STRICT
    ),
    "expect_column_unique_value_count_to_be_between": _own(Kind.WHOLE, "column", takes=_STRICT),
    "expect_column_proportion_of_unique_values_to_be_between": _own(
        Kind.WHOLE, "column", takes=_STRICT
    ),
    "expect_column_median_to_be_between": _theirs(Kind.WHOLE, "column", takes=_STRICT),
    "expect_column_quantile_values_to_be_between": _theirs(
        Kind.WHOLE, "column", "quantile_ranges", takes=("allow_relative_error",)
    ),
    "expect_column_distinct_values_to_be_in_set": _theirs(Kind.WHOLE, "column", "value_set"),
    "expect_column_distinct_values_to_contain_set": _theirs(Kind.WHOLE, "column", "value_set"),
    "expect_column_distinct_values_to_equal_set": _theirs(Kind.WHOLE, "column", "value_set"),
    "expect_column_most_common_value_to_be_in_set": _theirs(
        Kind.WHOLE, "column", "value_set", takes=("ties_okay",)
    ),
    "expect_column_value_z_scores_to_be_less_than": _theirs(
        Kind.WHOLE, "column", "threshold", takes=("double_sided",)
    ),
    "expect_column_kl_divergence_to_be_less_than": _theirs(
        Kind.WHOLE,
        "column",
        "partition_object",
        "threshold",
        takes=("bucketize_data", "tail_weight_holdout", "internal_weight_holdout"),
    ),
}
"""Every type that is known. None runs queries, or patterns without a bound on their time."""

COMMON = frozenset({"mostly"})
"""Arguments that expectations about rows may have."""
