"""When and how a table is maintained, and what its rows must be like."""

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from hostile.harness import Area, Broken, safely
from hostile.values import NUMBERS, mutated, nested, one_of_these, texts, trees, words
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from memwal.cli.commands.catalog import parse_settings
from memwal.cli.commands.quality import read_suite_file
from memwal.errors import MemWalError
from memwal.fleet import schedule
from memwal.fleet.schedule import interval_seconds, is_due
from memwal.jobs import policy
from memwal.jobs.arguments import add_arguments, parse_options, to_arguments
from memwal.jobs.policy import Policy
from memwal.quality import rules
from memwal.quality.evaluate import evaluate
from memwal.quality.expectations import EXPECTATION_RULES, Expectation, read_suite, suite_digest
from memwal.quality.rules import QualityRules

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
_NAMES = ("n", "t", "f", "d", "v", "b", "x")
ROWS = pa.table(
    {
        "n": pa.array([0, None, -(2**63), 2**63 - 1]),
        "t": ["", None, "a\0b", "\U0001f984" * 100],
        "f": [0.0, None, float("nan"), float("-inf")],
        "d": pa.array([0, None, -719_162, 2_932_896], pa.date32()),
        "v": pa.array([[0.0, 1.0], None, [float("nan"), 1e38], [1.0, 2.0]], pa.list_(pa.float32())),
        "b": pa.array([True, None, False, True]),
    }
)


def _suite() -> list[dict[str, Any]]:
    """One expectation of every type, as Great Expectations writes it."""
    usual: dict[str, Any] = {
        "column": "n",
        "column_A": "n",
        "column_B": "n",
        "column_list": ["n", "t"],
        "value_set": [1, "a", None, True],
        "value_pairs_set": [[1, 2]],
        "regex": "^a+$",
        "regex_list": ["a", "b"],
        "dimension": 2,
        "type_": "int64",
        "type_list": ["int64"],
        "value": 4,
        "sum_total": 1,
        "threshold": 1,
        "strftime_format": "%Y",
        "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 1]]},
        "partition_object": {"values": [1], "weights": [1.0]},
    }
    return [
        {
            "type": name,
            "kwargs": {
                **{key: usual[key] for key in rule.required},
                **({"min_value": 0, "max_value": 9} if "min_value" in rule.optional else {}),
            },
            "severity": "warning",
            "meta": {"notes": "as {{ it }} is"},
        }
        for name, rule in EXPECTATION_RULES.items()
    ]


SUITE = _suite()
POLICY = {
    **Policy(tags=("a",), quiet_hours=("22:00-06:00 UTC",), schedule="*/5 * * * *").to_dict(),
    "quality": {**QualityRules().to_dict(), "mode": "warn", "suite": SUITE[:3]},
}


def _policy(_: Any, values: Any) -> None:
    policy = safely(lambda: Policy.from_dict(values))
    if isinstance(policy, MemWalError):
        return
    written = json.dumps(policy.to_dict(), allow_nan=False)
    if Policy.from_dict(json.loads(written)) != policy:
        raise Broken("a policy is another one after it was written")
    for name, seconds in policy.to_dict().items():
        if name.endswith("_seconds") and seconds is not None:
            safely(lambda seconds=seconds: NOW - timedelta(seconds=seconds))
    safely(lambda: is_due(policy.schedule, last=NOW - timedelta(seconds=90), now=NOW))
    safely(lambda: interval_seconds(policy.schedule))
    policy.quiet_window(NOW)
    for options in (
        policy.merge_options(),
        policy.checkpoint_options(),
        policy.compact_options(),
        policy.gc_options(),
    ):
        parser = ArgumentParser()
        add_arguments(parser, type(options))
        parsed = parse_options(type(options), parser.parse_args(to_arguments(options)))
        if parsed != options:
            raise Broken("options are others after they were arguments")


def _settings() -> SearchStrategy[list[str]]:
    key = st.sampled_from([*POLICY, "tags", "quiet_hours", "quality"]) | texts()
    value = one_of_these(*NUMBERS).map(str) | texts(
        "22:00-06:00 ../../etc", "23:59-23:58 UTC", "* * * * *", "{}", '{"mode": "skip"}', "true"
    )
    return st.lists(st.builds("{}={}".format, key, value) | texts(), max_size=3)


def _set(_: Any, settings: list[str]) -> None:
    values = safely(lambda: parse_settings(settings))
    if not isinstance(values, MemWalError):
        _policy(None, {**POLICY, **values})


_CRON = ("*", " ", "0", "5", "59", "60", "7", "-", "/", ",", "?", "#", "L", "mon", "jan", "99999")


def _schedule(_: Any, text: str) -> None:
    safely(lambda: interval_seconds(text))
    for ago in (0, 90, 86_000, 10**6):
        safely(lambda ago=ago: is_due(text, last=NOW - timedelta(seconds=ago), now=NOW))


def _cron() -> SearchStrategy[str]:
    part = st.lists(st.sampled_from([p for p in _CRON if p != " "]), min_size=1, max_size=5)
    return st.lists(part.map("".join), min_size=4, max_size=6).map(" ".join) | texts("@hourly")


def _patterns() -> SearchStrategy[dict[str, Any]]:
    """Expectations with patterns that explode, and with references that engines resolve."""
    pattern = (
        st.sampled_from(
            (
                "(a+)+$",
                "(a|a)*b",
                "(.*)*" * 50,
                "(" * 900,
                "a{1000}{1000}",
                "\\C",
                "(?P<n>a)(?P<n>b)",
            )
        )
        | texts()
    )
    reference = st.sampled_from(
        (
            {"$PARAMETER": "now()"},
            {"$PARAMETER": "urn:great_expectations:stores:x"},
            "$n > 0",
            "${HOME}",
            'col("n").eval("1")',
        )
    )
    extra = st.sampled_from(
        ("row_condition", "condition_parser", "query", "unexpected_rows_query", "class_name")
    )
    return st.builds(
        lambda p: {
            "type": "expect_column_values_to_match_regex",
            "kwargs": {"column": "t", "regex": p},
        },
        pattern,
    ) | st.builds(
        lambda one, key, value: {**one, "kwargs": {**one["kwargs"], key: value}},
        one_of_these(*SUITE),
        extra | st.sampled_from(("value", "min_value", "value_set", "column", "mostly")),
        reference | trees(),
    )


def _hold(_: Any, values: Any) -> None:
    suite = safely(lambda: read_suite(values))
    if isinstance(suite, MemWalError):
        return
    suite_digest(suite)
    held = [one for one in suite if one.rule.in_arrow]
    for finding in evaluate(held, ROWS):
        str(finding.expectation)
        if finding.failed is not None and len(finding.failed) != ROWS.num_rows:
            raise Broken(f"{finding.expectation} tells of {len(finding.failed)} rows")
    for one in suite:
        _only_data(one)


def _only_data(one: Expectation) -> None:
    """What runs code or queries in Great Expectations must not be in an expectation."""
    if set(one.kwargs) & {"row_condition", "condition_parser", "query", "class_name"}:
        raise Broken(f"{one} was taken")
    if any(isinstance(value, dict) and "$PARAMETER" in value for value in one.kwargs.values()):
        raise Broken(f"{one} has a parameter")


_YAML = (
    *(
        "- type: expect_column_values_to_not_be_null\n",
        "  kwargs: {column: t}\n",
        "expectations:\n",
    ),
    *(
        "  meta: ",
        "*a",
        "&a ",
        "[",
        "]",
        "{",
        "}",
        ": ",
        "- ",
        "? ",
        "\n",
        "!!python/name:os.system ",
    ),
    *("!!python/object/apply:os.system [id]", "!!binary x", "!!timestamp 2024-99-99", "2024-13-45"),
    *(
        "!!int x",
        "!!set {a, b}",
        ".nan",
        "0o9",
        "<<: *a",
        "&a [*a]",
        "9" * 5_000,
        "1: 2",
        "\t",
        "%TAG",
    ),
)


def _file(folder: Path, given: tuple[str, str | bytes]) -> None:
    name, content = given
    file = folder / name
    file.write_bytes(
        content.encode(errors="surrogatepass") if isinstance(content, str) else content
    )

    def read() -> None:
        _hold(None, read_suite_file(file))

    safely(read)


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    yield folder


def _files() -> SearchStrategy[tuple[str, str | bytes]]:
    content = (
        words(*_YAML)
        | texts()
        | st.binary(max_size=20)
        | mutated(SUITE[:3], {"name": "s", "expectations": SUITE[:2]}).map(_as_json)
        | st.integers(1, 1_500).map(lambda depth: "[" * depth + "]" * depth)
    )
    return st.tuples(st.sampled_from(("s.json", "s.yaml", "s")), content)


def _as_json(value: Any) -> str:
    return json.dumps(value)


AREAS = (
    Area(
        "policies",
        mutated(POLICY) | trees() | st.builds(nested, st.integers(1, 50)),
        _policy,
        (policy, "check_texts"),
        examples=30,
    ),
    Area("policies of a command line", _settings(), _set, (policy, "check_texts")),
    Area("schedules", _cron(), _schedule, (schedule, "_parse_field")),
    Area(
        "suites",
        mutated(SUITE, *([one] for one in SUITE)) | _patterns().map(lambda one: [one]) | trees(),
        _hold,
        (Expectation, "_check_values"),
    ),
    Area(
        "files with suites",
        _files(),
        _file,
        (rules, "check_data"),
        _folder,
        examples=10,
    ),
)
