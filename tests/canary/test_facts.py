"""The list of facts is true of this repository, and a failure tells what it means."""

import ast
from pathlib import Path

import pytest
from support.oracles.facts import FACTS, Fact

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
