"""The list of facts is true of this repository, and a failure tells what it means."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.oracles.facts import FACTS, Fact, facts_of, told

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_a_fact_has_tests_and_names_what_is_there(fact: Fact) -> None:
    for path in fact.leans:
        assert (ROOT / path).exists(), path
    assert fact.tests
    for shown in fact.tests:
        path, _, name = shown.partition("::")
        tree = ast.parse((ROOT / "tests" / path).read_text())
        found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in found if name else any(one.startswith("test_") for one in found), shown


def test_names_are_told_apart() -> None:
    assert len({fact.name for fact in FACTS}) == len(FACTS)


def test_tests_are_found_by_file_by_name_and_by_case() -> None:
    shown = "spark/test_data_source.py::test_spark_mixes_pushed_filters_up"
    for name in (shown, f"{shown}[a-b]"):
        assert [fact.name for fact in facts_of(name)] == ["pushed-filters"]
    assert [fact.name for fact in facts_of("interop/test_fencing.py::test_any[x]")] == ["fence"]
    assert list(facts_of("spark/test_data_source.py::test_spark")) == []


def test_a_failure_says_what_leans_on_the_fact(request: pytest.FixtureRequest) -> None:
    (fact,) = (fact for fact in FACTS if fact.name == "stale-details")
    text = told(fact)
    for part in ("Lance", fact.says, "memwal/base_table/commit.py", fact.look):
        assert part in text
    marks = [mark.kwargs["name"] for mark in request.node.iter_markers("fact")]
    assert marks == [], "this test shows no fact"
