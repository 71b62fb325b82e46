"""Predicates that are given as text."""

from __future__ import annotations

import pytest
from support.data.tables import MakeTable, rows, state

import memwal
from memwal.errors import InvalidInputError, MemWalError
from memwal.reader.predicate import MAX_OPERATORS, parenthesize_filter


@pytest.mark.parametrize(
    "filter",
    ["n = 1", "(n = 1) or (n = 2)", "text = ')'", "text = 'it''s )('", '"a)b" = 1', "`a(b` = 1"],
)
def test_whole_ones(filter: str) -> None:
    assert parenthesize_filter(filter) == f"({filter})"


def test_none() -> None:
    assert parenthesize_filter(None) is None


@pytest.mark.parametrize("start", ["", "n and ", "coalesce(n, ", "n and -1 or "])
def test_a_chain_of_operators_has_one_limit_wherever_it_stands(start: str) -> None:
    end = "n" + ")" * start.count("(")
    assert parenthesize_filter(start + "not " * MAX_OPERATORS + end)
    with pytest.raises(InvalidInputError, match=str(MAX_OPERATORS)):
        parenthesize_filter(start + "not " * (MAX_OPERATORS + 1) + end)


@pytest.mark.parametrize("filter", ["n = 1)", "(n = 1", "n = 1) or (n = 2", ")("])
def test_others(filter: str) -> None:
    with pytest.raises(InvalidInputError):
        parenthesize_filter(filter)


@pytest.mark.parametrize("filter", ["n = 1 n = 2", "n = 1) or (n = 2", "n = 1 --"])
@pytest.mark.parametrize("merged", [True, False])
def test_are_refused_whether_or_not_there_is_something_to_merge(
    make_table: MakeTable, filter: str, merged: bool
) -> None:
    table = make_table()
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 2}))
    if merged:
        table.merge()
    with pytest.raises(MemWalError):
        table.scan(filter=filter).to_table()
    assert state(table.scan(filter="n = 1 or n = 3").to_table()) == {1: 1}


def test_a_search_refuses_them_too(table: memwal.Table) -> None:
    with pytest.raises(MemWalError):
        table.search_text("x", filter="n = 1) or (n = 2").to_table()
