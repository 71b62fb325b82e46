"""A few words that stand for more than a machine has: they are refused before they are followed."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hostile.harness import safely
from hostile.values import nested

import memwal
from memwal.cli.options import schema_from
from memwal.errors import InvalidInputError
from memwal.expressions.parser import parse_alternatives
from memwal.fleet.schedule import interval_seconds, is_due
from memwal.fleet.tables import find_tables
from memwal.quality.rules import read_yaml
from memwal.reader.predicate import (
    MAX_NESTING,
    MAX_OPERATORS,
    MAX_PARTS,
    MAX_REPEATS,
    parenthesize_filter,
)
from memwal.region.spec_text import parse_type
from memwal.util.clock import MAX_SECONDS, duration
from memwal.util.safe_json import MAX_DEPTH, check_data, read_json

TESTS = Path(__file__).parents[1]
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
        "a: &a {k: 1}\nb: &b {<<: [*a, *a]}\n",
        "&a [*a]",
        "[" * 5_000,
        "a: !!python/object/apply:os.system [id]",
        "!!timestamp 2024-99-99",
        "!!bool x",
        '"\\ud800"',
    ],
)
def test_yaml(text: str) -> None:
    with pytest.raises(ValueError):
        read_yaml(text)


def test_yaml_that_is_plain() -> None:
    assert read_yaml("- {a: 1, b: [x, 2.5, null]}") == [{"a": 1, "b": ["x", 2.5, None]}]


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, '["\\ud800"]', '{"\\udfff": 1}', "9" * 5_000, "{"]
)
def test_json(text: str) -> None:
    with pytest.raises(ValueError):
        read_json(text)


def test_json_that_is_plain() -> None:
    assert read_json(b'{"a": ["\\ud83e\\udd84", 1e400]}') == {"a": ["\U0001f984", float("inf")]}
    check_data(nested(MAX_DEPTH - 1))


@pytest.mark.parametrize("value", [nested(MAX_DEPTH), ENDLESS, [[0] * 1_000] * 1_001])
def test_data(value: object) -> None:
    with pytest.raises(ValueError):
        check_data(value)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1, 10**400, MAX_SECONDS + 1])
def test_lengths_of_time(seconds: float) -> None:
    with pytest.raises(InvalidInputError, match="--wait"):
        duration(seconds, "--wait")


def test_the_longest_time_fits_beside_every_moment_of_ours() -> None:
    longest = duration(MAX_SECONDS, "it")
    assert datetime.now(UTC) - longest < datetime.now(UTC) + longest


# Each is about the largest that is taken, and, with more of the same, one that is not.
FILTERS: dict[str, Callable[[int], str]] = {
    "sums": lambda n: "id = " + "1 + " * n + "1",
    "joined texts": lambda n: "t = t" + " || t" * n,
    "casts": lambda n: "id" + "::bigint" * n + " = 1",
    "tests": lambda n: "id" + " is null" * n,
    "signs": lambda n: "id = " + "- " * n + "1",
    "negations": lambda n: "not " * n + "n = 1",
    "within others": lambda n: "id = (1 + (" + "1 + " * n + "1))",
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_that_would_end_the_process(name: str) -> None:
    assert parenthesize_filter(FILTERS[name](MAX_OPERATORS - 10))
    for more in (MAX_OPERATORS + 1, 10_000):
        with pytest.raises(InvalidInputError, match=str(MAX_OPERATORS)):
            parenthesize_filter(FILTERS[name](more))
        # Pruning looks at the text as it was given.
        assert safely(lambda more=more: parse_alternatives(FILTERS[name](more)))


NESTED: dict[str, Callable[[int], str]] = {
    "casts": lambda n: "cast(" * n + "n" + " as bigint)" * n + " = 1",
    "functions": lambda n: "abs(" * n + "n" + ")" * n + " = 1",
    "parentheses": lambda n: "(" * n + "n = 1" + ")" * n,
    "cases": lambda n: "case when n = 1 then " * n + "n" + " else 2 end" * n + " = 1",
    "lists": lambda n: "[" * n + "n" + "]" * n + " is null",
}


@pytest.mark.parametrize("name", NESTED)
def test_filters_that_are_nested(name: str, table: memwal.Table) -> None:
    deep = NESTED[name](MAX_NESTING - 1)
    assert parenthesize_filter(deep)
    assert safely(lambda: parse_alternatives(deep))
    for more in (MAX_NESTING, 500, 100_000):
        with pytest.raises(InvalidInputError, match=str(MAX_NESTING)):
            table.scan(filter=NESTED[name](more))
        assert safely(lambda more=more: parse_alternatives(NESTED[name](more)))


@pytest.mark.parametrize(
    "filter",
    [
        "text = repeat('x', 2000000000)",
        "text = \"repeat\" ('x', 2000000000)",
        "text = Repeat(repeat('x', 1000), 1000)",
        "text = lpad(text, n, ' ')",
        "text = rpad(text, 9999999999999)",
        "n = array_length(range(-2000000000, 5))",
        "n = array_length(array_repeat(1, 1000 * 1000 * 1000))",
    ],
)
def test_filters_that_make_long_values(filter: str, table: memwal.Table) -> None:
    with pytest.raises(InvalidInputError):
        table.scan(filter=filter)


def test_filters_that_make_short_values(table: memwal.Table) -> None:
    for filter in (
        f"text = repeat('x', {MAX_REPEATS})",
        "text = 'repeat(' or text = lpad(text, 10, '0') or text = rpad(lpad(text, 50), 100, ' ')",
        "array_length(range(0, 100)) = 100",
    ):
        assert parenthesize_filter(filter) == f"({filter})"
    assert table.scan(filter="text = lpad('x', 3, '-')").to_table().num_rows == 0


def test_filters_of_many_parts() -> None:
    assert parenthesize_filter(f"id in ({', '.join(map(str, range(100_000)))})")
    assert parenthesize_filter(" or ".join(["id = 1 + 1"] * MAX_PARTS))
    with pytest.raises(InvalidInputError, match=str(MAX_PARTS)):
        parenthesize_filter(" or ".join(["id = 1"] * (MAX_PARTS + 1)))


@pytest.mark.parametrize(
    "filter", ["n = 1 -- '\n", "n = 1 /* ( */ ) -- ", "n = 1 /* ' */ ) or (true /* ' */"]
)
def test_filters_that_hide_what_stands_beside(filter: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(filter)):
        parenthesize_filter(filter)


def test_signs_of_comments_in_quotes_are_none() -> None:
    assert parenthesize_filter("t = '-- /* x' and `a--b` = 1")


@pytest.mark.slow
@pytest.mark.parametrize("name", FILTERS)
def test_filters_that_are_taken_end_no_process(name: str) -> None:
    """In a process of its own: Lance's recursion would take this one along."""
    code = (
        "import sys, tempfile; from pathlib import Path; from hostile.filters import *\n"
        "with tempfile.TemporaryDirectory() as folder, filtered_table(Path(folder)) as table:\n"
        "    print(safely(lambda: table.scan(filter=sys.argv[1]).to_table()))\n"
    )
    filter = FILTERS[name](MAX_OPERATORS - 10)
    subprocess.run([sys.executable, "-c", code, filter], cwd=TESTS, check=True)


@pytest.mark.parametrize("text", ["*/-1 * * * *", "*/0 * * * *", "5/-9 * * * *"])
def test_schedules_that_never_come(text: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidInputError, match=re.escape(text.split()[0])):
        is_due(text, last=now, now=now)
    assert interval_seconds(text) is None


def test_types_in_types() -> None:
    text = "list<" * 1_000 + "int8" + ">" * 1_000
    with pytest.raises(InvalidInputError, match=str(len(text))):
        parse_type(text)


def test_a_schema_at_which_lance_panics(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    kind = {"type": "fixed_size_list", "length": 2, "fields": []}
    file.write_text(json.dumps({"fields": [{"name": "v", "type": kind, "nullable": True}]}))
    with pytest.raises(InvalidInputError, match=re.escape(str(file))):
        schema_from(file, None)


def test_a_search_ends_with_the_folders(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert find_tables(str(tmp_path), depth=2**63) == []
