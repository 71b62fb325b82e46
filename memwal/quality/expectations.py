"""Expectations and suites of them, in the JSON form of Great Expectations.

Names and meanings are those of Great Expectations. A suite is untrusted data, so types that would
run code or queries contained in the suite are excluded.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Self, TypeGuard

from memwal.errors import InvalidInputError
from memwal.util.records import JsonMapping, JsonRecord
from memwal.util.safe_json import check_data

if TYPE_CHECKING:
    import pyarrow as pa

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


_MAX_EXPECTATIONS = 500
_MAX_BYTES = 64 * 1024
_MAX_PATTERN = 1_000
_MAX_SHOWN = 80
_PATTERNS = ("regex", "regex_list")
_COLUMNS = ("column", "column_A", "column_B")
_VECTOR = "expect_vector_"
# About columns of vectors as well.
_ANY_TYPE = (
    "expect_column_values_to_not_be_null",
    "expect_column_values_to_be_null",
    "expect_column_proportion_of_non_null_values_to_be_between",
    "expect_column_values_to_be_of_type",
    "expect_column_values_to_be_in_type_list",
)


class Severity(StrEnum):
    """Severity of a failure. Only a critical failure quarantines rows or holds a region."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Expectation(JsonRecord):
    """Condition that rows or columns of a table should meet; its JSON is Great Expectations'.

    Raises
    ------
    InvalidInputError
        The type is unknown, or an argument is missing, unknown or wrong.
    """

    type: str
    """One of :data:`memwal.quality.expectations.EXPECTATION_RULES`."""
    kwargs: JsonMapping = field(default_factory=dict, hash=False)
    """Arguments, in values that JSON has."""
    severity: Severity = Severity.CRITICAL
    """Failures that are less than critical are only reported."""
    meta: JsonMapping = field(default_factory=dict, hash=False)
    """Notes of its author."""

    def __post_init__(self) -> None:
        rule = EXPECTATION_RULES.get(self.type) if isinstance(self.type, str) else None
        if rule is None:
            raise InvalidInputError(
                f"there is no expectation {self.type!r} here; known are: "
                f"{', '.join(sorted(EXPECTATION_RULES))}"
            )
        arguments = {
            *rule.required,
            *rule.optional,
            *(COMMON_ARGUMENTS if rule.kind != ExpectationKind.WHOLE else ()),
        }
        for problem, names in (
            ("lacks", [n for n in rule.required if self.kwargs.get(n) is None]),
            ("does not take", sorted(set(self.kwargs) - arguments)),
        ):
            if names:
                raise self._invalid(f"{problem} {', '.join(map(repr, names))}")
        self._check_values(rule)

    @property
    def rule(self) -> ExpectationRule:
        """Arguments and evaluation of its type."""
        return EXPECTATION_RULES[self.type]

    @property
    def kind(self) -> ExpectationKind:
        """How it is evaluated."""
        return self.rule.kind

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that it evaluates."""
        named = [str(self.kwargs[name]) for name in _COLUMNS if name in self.kwargs]
        return (*named, *map(str, self.kwargs.get("column_list", ())))

    @property
    def mostly(self) -> float:
        """Share of the values that must meet the expectation."""
        return float(self.kwargs.get("mostly", 1.0))

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={_shorten(value)}" for key, value in self.kwargs.items())
        return f"{self.type}({shown})"

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Read an expectation from ``values`` in the JSON form of Great Expectations.

        Raises
        ------
        InvalidInputError
            The type is unknown, or an argument is wrong; the message says which.
        """
        if not isinstance(values, Mapping):
            raise InvalidInputError(
                f"an expectation is an object with type and kwargs, not {type(values).__name__}"
            )
        kwargs, meta = values.get("kwargs") or {}, values.get("meta") or {}
        if not isinstance(kwargs, Mapping) or not isinstance(meta, Mapping):
            raise InvalidInputError(f"kwargs and meta of {values.get('type')!r} must be objects")
        try:
            severity = Severity(values.get("severity") or Severity.CRITICAL)
        except ValueError:
            raise InvalidInputError(
                f"{values.get('type')!r} has the severity {values['severity']!r}; it is one of "
                f"{', '.join(Severity)}"
            ) from None
        # Great Expectations treats an argument that is null as absent.
        kwargs = {str(key): value for key, value in kwargs.items() if value is not None}
        return cls(str(values.get("type")), kwargs, severity, dict(meta))

    def _check_values(self, rule: ExpectationRule) -> None:
        for key, value in self.kwargs.items():
            if isinstance(value, Mapping) and "$PARAMETER" in value:
                raise self._invalid(f"has a parameter for {key!r}; give the value itself")
            if key in _COLUMNS and not isinstance(value, str):
                raise self._invalid(f"needs the name of a column as {key!r}")
            listed = key == "column_list" or (
                key in rule.required and key.endswith(("_set", "_list"))
            )
            if listed and (not isinstance(value, list) or not value):
                raise self._invalid(f"needs a list that is not empty as {key!r}")
        mostly = self.kwargs.get("mostly", 1)
        if not _is_number(mostly) or not 0 <= mostly <= 1:
            raise self._invalid("has a 'mostly' that is not a number from 0 to 1")
        if "min_value" in rule.optional:
            low, high = self.kwargs.get("min_value"), self.kwargs.get("max_value")
            if low is None and high is None:
                raise self._invalid("needs 'min_value' or 'max_value'")
            if _is_number(low) and _is_number(high) and low > high:
                raise self._invalid("has a 'min_value' above its 'max_value'")
        for key in _PATTERNS:
            _check_patterns(self, key)
        if self.type == "expect_vector_dimension_to_equal":
            dimension = self.kwargs["dimension"]
            if not isinstance(dimension, int) or isinstance(dimension, bool) or dimension < 1:
                raise self._invalid("needs a whole number from 1 up as 'dimension'")

    def _invalid(self, what: str) -> InvalidInputError:
        column = f" of {', '.join(self.columns)}" if self.columns else ""
        return InvalidInputError(f"{self.type}{column} {what}")


def _shorten(value: object) -> str:
    """Shorten a value for a message that is stored with every failing row."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number and not a bool."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _check_patterns(expectation: Expectation, key: str) -> None:
    patterns = expectation.kwargs.get(key)
    if patterns is None:
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    for pattern in patterns if isinstance(patterns, list) else [patterns]:
        if not isinstance(pattern, str) or len(pattern) > _MAX_PATTERN:
            raise InvalidInputError(
                f"{expectation.type}: a pattern is a text of up to {_MAX_PATTERN} characters"
            )
        try:
            pc.match_substring_regex(pa.array([""]), pattern)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                f"{expectation.type}: RE2 does not take the pattern {pattern!r}: "
                f"{str(error).splitlines()[0]}"
            ) from error


def read_suite(values: object) -> tuple[Expectation, ...]:
    """Read a suite: a list of expectations, or the object that Great Expectations writes.

    Raises InvalidInputError if an expectation is wrong, or the suite is too large.
    """
    entries = values.get("expectations") if isinstance(values, Mapping) else values
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise InvalidInputError(
            "a suite is a list of expectations, or an object that has one as 'expectations'"
        )
    entries = list(entries)
    try:
        check_data([entry for entry in entries if not isinstance(entry, Expectation)])
    except ValueError as error:
        raise InvalidInputError(f"the suite cannot be read: {error}") from error
    suite = tuple(
        entry if isinstance(entry, Expectation) else Expectation.from_dict(entry)
        for entry in entries
    )
    if len(suite) > _MAX_EXPECTATIONS:
        raise InvalidInputError(
            f"the suite has {len(suite)} expectations; {_MAX_EXPECTATIONS} are the most"
        )
    try:
        size = len(_suite_json(suite).encode())
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"the suite holds what JSON has no value for: {error}") from error
    if size > _MAX_BYTES:
        raise InvalidInputError(
            f"the suite takes {size} bytes as JSON; {_MAX_BYTES} are the most. Long sets of "
            "values belong into a table of their own"
        )
    return suite


def suite_digest(suite: Iterable[Expectation]) -> str:
    """Return a short digest that identifies exactly these expectations."""
    return hashlib.blake2b(_suite_json(suite).encode(), digest_size=6).hexdigest()


def check_columns(suite: Iterable[Expectation], schema: pa.Schema) -> None:
    """Refuse a suite that names columns which a table does not have.

    Also if a vector expectation names a column without vectors, or another one a column of vectors.
    """
    from memwal.quality.checks import is_vector

    suite = [item for item in suite if item.type != "expect_column_to_exist"]
    absent = sorted({c for item in suite for c in item.columns if c not in schema.names})
    if absent:
        raise InvalidInputError(
            f"the suite names columns that the table does not have: {', '.join(absent)}; it has "
            f"{', '.join(schema.names)}"
        )
    for item in suite:
        for column in item.columns:
            vector = is_vector(schema.field(column).type)
            if item.type.startswith(_VECTOR) != vector and not (vector and item.type in _ANY_TYPE):
                raise InvalidInputError(
                    f"{item.type} cannot look at {column}, which "
                    f"{'holds vectors; use expect_vector_...' if vector else 'holds no vectors'}"
                )


def _suite_json(suite: Iterable[Expectation]) -> str:
    return json.dumps([item.to_dict() for item in suite], sort_keys=True, allow_nan=False)
