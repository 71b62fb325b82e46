"""What is decided over Arrow is what Great Expectations decides, on random rows."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memwal.quality.checks import VECTOR_CHECKS
from memwal.quality.evaluate import evaluate, load_gx
from memwal.quality.expectations import EXPECTATION_RULES, ExpectationKind, read_suite

# Great Expectations takes seconds to import.
pytestmark = pytest.mark.slow

COUNT = 200
NAN = float("nan")


def rows(dice: random.Random) -> pa.Table:
    def some(values: list[Any], missing: float = 0.2) -> list[Any]:
        return [None if dice.random() < missing else dice.choice(values) for _ in range(COUNT)]

    return pa.table(
        {
            "id": pa.array(range(COUNT), pa.int64()),
            "i": pa.array(some(list(range(-5, 15)), 0), pa.int64()),
            "gaps": pa.array(some(list(range(-5, 400))), pa.int64()),
            "x": pa.array(some([NAN, -1.5, 0.0, 2.0, 2.5, 9.75]), pa.float64()),
            "y": pa.array(some([-1.5, 0.0, 2.0, 2.5, 9.75]), pa.float64()),
            "s": pa.array(some(["", "a", "ab", "äö", "A1", "x9y", "abc def"]), pa.string()),
            "b": pa.array(some([True, False], 0), pa.bool_()),
        }
    )


def bounds(dice: random.Random) -> dict[str, Any]:
    low, high = sorted(dice.choice([-2, 0, 2, 2.5, 7, 9.75, 12]) for _ in range(2))
    choice: dict[str, Any] = {"min_value": low, "max_value": high}
    if dice.random() < 0.4:
        del choice[dice.choice(["min_value", "max_value"])]
    return {**choice, "strict_min": dice.random() < 0.5, "strict_max": dice.random() < 0.5}


def suite(dice: random.Random) -> list[dict[str, Any]]:
    number = dice.choice(["i", "gaps", "x"])
    any_one = dice.choice(["i", "gaps", "x", "s"])
    pattern = dice.choice(["^a", "[0-9]", "b$", "a|x", "^$", r"\s"])
    ignore_pair = dice.choice(["both_values_are_missing", "either_value_is_missing", "neither"])
    ignore_row = dice.choice(["all_values_are_missing", "any_value_is_missing", "never"])
    match_on = dice.choice(["any", "all"])
    together = dice.choice([["x", "s"], ["gaps", "s", "y"]])
    pair = {"column_A": "x", "column_B": "y", "ignore_row_if": ignore_pair}
    lengths = {"min_value": dice.choice([0, 1, 2]), "max_value": dice.choice([2, 3])}
    chosen: list[tuple[str, dict[str, Any]]] = [
        ("expect_column_values_to_not_be_null", {"column": any_one}),
        ("expect_column_values_to_be_null", {"column": any_one}),
        ("expect_column_values_to_be_between", {"column": number, **bounds(dice)}),
        ("expect_column_values_to_be_in_set", {"column": "s", "value_set": ["a", "ab", 5]}),
        ("expect_column_values_to_be_in_set", {"column": number, "value_set": [1, 2, 2.5, "3"]}),
        ("expect_column_values_to_not_be_in_set", {"column": number, "value_set": [1, 2, 9.75]}),
        ("expect_column_values_to_match_regex", {"column": "s", "regex": pattern}),
        ("expect_column_values_to_not_match_regex", {"column": "s", "regex": pattern}),
        (
            "expect_column_values_to_match_regex_list",
            {"column": "s", "regex_list": [pattern, "a"], "match_on": match_on},
        ),
        (
            "expect_column_values_to_not_match_regex_list",
            {"column": "s", "regex_list": ["z", pattern]},
        ),
        ("expect_column_value_lengths_to_be_between", {"column": "s", **lengths}),
        ("expect_column_value_lengths_to_equal", {"column": "s", "value": 2}),
        (
            "expect_column_pair_values_a_to_be_greater_than_b",
            {**pair, "or_equal": dice.random() < 0.5},
        ),
        ("expect_column_pair_values_to_be_equal", pair),
        ("expect_column_values_to_be_unique", {"column": dice.choice(["gaps", "id", "x"])}),
        (
            "expect_compound_columns_to_be_unique",
            {
                "column_list": together,
                "ignore_row_if": ignore_row,
            },
        ),
        ("expect_column_to_exist", {"column": dice.choice(["i", "s"])}),
        (
            "expect_column_values_to_be_of_type",
            {"column": "i", "type_": dice.choice(["int64", "float64"])},
        ),
        (
            "expect_column_values_to_be_in_type_list",
            {"column": "b", "type_list": ["bool", "int64"]},
        ),
        ("expect_table_row_count_to_be_between", {"min_value": dice.choice([0, 300])}),
        ("expect_table_row_count_to_equal", {"value": dice.choice([COUNT, 3])}),
        ("expect_column_unique_value_count_to_be_between", {"column": any_one, "max_value": 9}),
        (
            "expect_column_proportion_of_unique_values_to_be_between",
            {"column": any_one, "max_value": 0.05},
        ),
        (
            "expect_column_proportion_of_non_null_values_to_be_between",
            {"column": any_one, "min_value": 0.8},
        ),
    ]
    chosen += [
        (f"expect_column_{figure}_to_be_between", {"column": number, **bounds(dice)})
        for figure in ("min", "max", "mean", "sum", "stdev")
    ]
    with_share = []
    for type_, kwargs in chosen:
        if EXPECTATION_RULES[type_].kind != ExpectationKind.WHOLE and dice.random() < 0.5:
            kwargs = {**kwargs, "mostly": dice.choice([0.3, 0.6, 0.9])}
        with_share.append({"type": type_, "kwargs": kwargs})
    return with_share


@pytest.mark.parametrize("seed", range(20))
def test_the_same(seed: int) -> None:
    from memwal.quality.evaluate import evaluate_all_with_gx

    dice = random.Random(seed)
    some, wanted = rows(dice), read_suite(suite(dice))
    ours, theirs = evaluate(wanted, some), evaluate_all_with_gx(wanted, some)
    for one, other in zip(ours, theirs, strict=True):
        told = f"{one.expectation}: {one.error} / {other.error}"
        assert one.error is None, told
        assert other.error is None, told
        assert one.success == other.success, told
        if one.failed is not None:
            assert other.failed is not None
            assert np.array_equal(one.failed, other.failed), told


def test_every_type_of_our_own_is_compared() -> None:
    compared = {one["type"] for one in suite(random.Random(0))}
    ours = {name for name, rule in EXPECTATION_RULES.items() if rule.in_arrow}
    assert compared == ours - set(VECTOR_CHECKS)


def test_every_other_type_is_one_of_theirs() -> None:
    # The first import of Great Expectations emits warnings, which are errors in tests.
    load_gx()
    from great_expectations.expectations.registry import list_registered_expectation_implementations

    assert set(EXPECTATION_RULES) <= set(list_registered_expectation_implementations())


def test_what_they_decide() -> None:
    table = rows(random.Random(1))
    strange = pa.table({"s": ["{}", "x", None], "a": [1, 2, 3], "b": [1, 5, 3]})
    for one, failed in (
        ({"type": "expect_column_values_to_be_json_parseable", "kwargs": {"column": "s"}}, [1]),
        (
            {
                "type": "expect_column_pair_values_to_be_in_set",
                "kwargs": {"column_A": "a", "column_B": "b", "value_pairs_set": [[1, 1], [3, 3]]},
            },
            [1],
        ),
    ):
        (found,) = evaluate(read_suite([one]), strange)
        assert found.failed is not None
        assert list(np.flatnonzero(found.failed)) == failed
    for type_, kwargs in (
        ("expect_column_median_to_be_between", {"min_value": 1e9}),
        ("expect_column_distinct_values_to_be_in_set", {"value_set": [1]}),
        ("expect_column_value_z_scores_to_be_less_than", {"threshold": 0.1, "double_sided": True}),
    ):
        values = {"type": type_, "kwargs": {"column": "i", **kwargs}}
        (found,) = evaluate(read_suite([values]), table)
        assert not found.success
        assert found.failed is None
        assert found.error is None


def test_what_they_refuse_stops_nothing_else() -> None:
    """Great Expectations raises about the whole suite when one of its arguments is wrong."""
    wrong = {
        "type": "expect_column_median_to_be_between",
        "kwargs": {"column": "a", "min_value": []},
    }
    right = {
        "type": "expect_column_median_to_be_between",
        "kwargs": {"column": "a", "min_value": 1},
    }
    found = evaluate(read_suite([wrong, right]), pa.table({"a": [1, 2, 3]}))
    assert found[0].error is not None
    assert found[1].success
