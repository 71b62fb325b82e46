"""Reading suites and rules, and what is wrong with some."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.data.quarantined import positive, rules

from memwal.errors import InvalidInputError
from memwal.jobs.policy import Policy
from memwal.quality.expectations import check_columns, read_suite
from memwal.quality.rules import QualityRules, read_rules

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("v", pa.list_(pa.float32(), 4))])


def one(type_: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": type_, "kwargs": kwargs}


def test_a_suite_as_great_expectations_writes_it() -> None:
    suite = read_suite(
        {
            "name": "orders",
            "meta": {"great_expectations_version": "1.24.0"},
            "expectations": [
                {
                    "id": "c1",
                    "type": "expect_column_values_to_be_between",
                    "kwargs": {"column": "n", "min_value": 0, "max_value": None},
                    "severity": "warning",
                    "meta": {"owner": "me"},
                }
            ],
        }
    )
    assert suite[0].kwargs == {"column": "n", "min_value": 0}
    assert suite[0].columns == ("n",)
    assert read_suite([suite[0].to_dict()]) == suite


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (one("expect_nothing"), "expect_nothing"),
        (
            one("unexpected_rows_expectation", unexpected_rows_query="x"),
            "unexpected_rows_expectation",
        ),
        (one("expect_column_values_to_not_be_null"), "'column'"),
        (
            one("expect_column_values_to_not_be_null", column="n", row_condition="n>1"),
            "'row_condition'",
        ),
        (one("expect_column_values_to_not_be_null", column=["n"]), "'column'"),
        (one("expect_column_values_to_not_be_null", column="n", mostly=2), "mostly"),
        (one("expect_column_values_to_be_between", column="n"), "min_value"),
        (
            one("expect_column_values_to_be_between", column="n", min_value=2, max_value=1),
            "'max_value'",
        ),
        (one("expect_column_values_to_be_in_set", column="n", value_set=[]), "'value_set'"),
        (
            one("expect_column_values_to_be_in_set", column="n", value_set={"$PARAMETER": "x"}),
            "'value_set'",
        ),
        (one("expect_column_values_to_match_regex", column="n", regex="(?=x)"), r"\(\?=x\)"),
        (one("expect_column_values_to_match_regex", column="n", regex="a{1,1000}{9}"), r"\{9\}"),
        (one("expect_column_values_to_match_regex", column="n", regex="a" * 1001), "1000"),
        (one("expect_vector_dimension_to_equal", column="v", dimension=0), "dimension"),
        ({"type": "expect_column_values_to_not_be_null", "kwargs": []}, "'column'"),
        ({"type": "expect_column_values_to_not_be_null", "kwargs": "x"}, "kwargs"),
        (positive(severity="dire"), "dire"),
        ("text", "str"),
    ],
)
def test_what_is_wrong_is_told(values: Any, named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        read_suite([values])


@pytest.mark.parametrize("values", ["text", 5, {"expectations": None}, {}])
def test_what_is_no_suite(values: Any) -> None:
    with pytest.raises(InvalidInputError):
        read_suite(values)


def test_a_suite_that_is_too_large() -> None:
    assert read_suite([one("expect_column_values_to_match_regex", column="n", regex="a" * 1000)])
    long = one("expect_column_values_to_be_in_set", column="n", value_set=list(range(20_000)))
    for suite in ([long], [positive()] * 501):
        with pytest.raises(InvalidInputError):
            read_suite(suite)


def test_columns_that_a_table_does_not_have() -> None:
    suite = read_suite([positive(), one("expect_column_values_to_not_be_null", column="gone")])
    with pytest.raises(InvalidInputError, match="gone"):
        check_columns(suite, SCHEMA)


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        (one("expect_vector_values_to_be_finite", column="v"), True),
        (one("expect_vector_values_to_be_finite", column="n"), False),
        (one("expect_column_values_to_be_unique", column="v"), False),
        (one("expect_column_values_to_not_be_null", column="v"), True),
    ],
)
def test_vectors_have_expectations_of_their_own(values: Any, fits: bool) -> None:
    suite = read_suite([values])
    if fits:
        check_columns(suite, SCHEMA)
    else:
        with pytest.raises(InvalidInputError):
            check_columns(suite, SCHEMA)


class TestRules:
    def test_are_part_of_a_policy(self) -> None:
        policy = Policy(quality=rules("quarantine"), priority=3)
        stored = json.loads(json.dumps(policy.to_dict()))
        assert Policy.from_dict(stored) == policy
        assert pickle.loads(pickle.dumps(policy)) == policy
        assert isinstance(hash(policy), int)
        assert Policy.from_dict(Policy().to_dict()).quality is None

    @pytest.mark.parametrize(
        ("values", "named"),
        [
            ({"mode": "maybe"}, "maybe"),
            ({"mode": "warn"}, "warn"),
            ({"more": 1}, "more"),
            ({"check_schedule_seconds": 5}, "check_schedule_seconds"),
            ({"check_sample_rows": 0.5}, "check_sample_rows"),
            ({"quarantine_uri": ""}, "quarantine_uri"),
            ([], "quality"),
        ],
    )
    def test_are_checked(self, values: Any, named: str) -> None:
        for read, given in (
            (QualityRules.from_dict, values),
            (Policy.from_dict, {"quality": values}),
        ):
            with pytest.raises(InvalidInputError, match=named):
                read(given)

    def test_of_a_command_line(self, tmp_path: Path) -> None:
        known = rules("skip")
        text = json.dumps(known.to_dict())
        (tmp_path / "rules.json").write_text(text)
        assert read_rules(text) == read_rules(f"@{tmp_path}/rules.json") == known
        for wrong in ("{", f"@{tmp_path}/none.json", '{"mode": 1}'):
            with pytest.raises(InvalidInputError):
                read_rules(wrong)

    def test_switch_off_without_losing_the_suite(self) -> None:
        off = replace(rules("warn"), mode="off")
        assert not off.gates
        assert len(off.suite) == 1


def test_a_message_is_short_however_long_a_set_is() -> None:
    long = one("expect_column_values_to_be_in_set", column="n", value_set=list(range(5_000)))
    assert len(str(read_suite([long])[0])) < 200
