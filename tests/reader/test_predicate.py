"""Predicates that are given as text."""

import pyarrow as pa
import pytest
from support.data.tables import MakeTable, rows, state

import memwal
from memwal.errors import InvalidInputError, MemWalError
from memwal.reader.predicate import MAX_OPERATORS, parenthesize_filter, translate_filter_errors
from memwal.reader.scan import Scan


@pytest.mark.parametrize(
    "filter",
    ["n = 1", "(n = 1) or (n = 2)", "text = ')'", "text = 'it''s )('", '"a)b" = 1', "`a(b` = 1"],
)
def test_whole_ones(filter: str) -> None:
    assert parenthesize_filter(filter) == f"({filter})"


@pytest.mark.parametrize(
    "filter",
    ["n = 1)", "(n = 1", "n = 1) or (n = 2", "repeat((rpad(text, 1000)), 1000000) = 'x'"],
)
def test_are_refused_before_they_are_put_into_others(filter: str) -> None:
    with pytest.raises(InvalidInputError):
        parenthesize_filter(filter)


@pytest.mark.parametrize("start", ["", "n and ", "coalesce(n, ", "n and -1 or "])
def test_a_chain_of_operators_has_one_limit_wherever_it_stands(start: str) -> None:
    end = "n" + ")" * start.count("(")
    assert parenthesize_filter(start + "not " * MAX_OPERATORS + end)
    with pytest.raises(InvalidInputError, match=str(MAX_OPERATORS)):
        parenthesize_filter(start + "not " * (MAX_OPERATORS + 1) + end)


@pytest.mark.parametrize("filter", ["n = 1 n = 2", "n = 1) or (n = 2", "n = 1 --"])
@pytest.mark.parametrize("merged", [True, False])
def test_are_refused_whether_or_not_there_is_something_to_merge(
    make_table: MakeTable, filter: str, merged: bool
) -> None:
    table = make_table()
    table.upsert(rows({1: 1, 2: 2}))
    if merged:
        table.merge()
    with pytest.raises(MemWalError):
        table.scan(filter=filter).to_table()
    assert state(table.scan(filter="n = 1 or n = 3").to_table()) == {1: 1}


def test_a_search_refuses_them_too(table: memwal.Table) -> None:
    with pytest.raises(MemWalError):
        table.search_text("x", filter="n = 1) or (n = 2").to_table()


WRONG = {
    "a column that does not exist": "nn = 1",
    "a value of another type": "n = 'x'",
    "no condition": "n + 1",
    "two conditions": "n = 1 n = 2",
    "half a condition": "n =",
    "a function that does not exist": "no_such(n) = 1",
    "a value that cannot be computed": "n = cast(text as int)",
    "a division by zero": "1 / 0 = n",
    "a part of what has none": "n.x = 1",
}


@pytest.mark.few(5)
@pytest.mark.parametrize("filter", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("level", ["base table", "generation", "several levels", "MemTable", "log"])
def test_the_message_lists_the_columns_and_no_place_in_the_code_of_lance(
    make_table: MakeTable, filter: str, level: str
) -> None:
    table = make_table(buckets=2)
    writer = table.writer()
    writer.upsert(rows({1: 1, 2: 2, 3: 3}))
    if level in ("base table", "generation", "several levels"):
        writer.flush()
    if level in ("base table", "several levels"):
        table.merge()
    if level == "several levels":
        for turn in range(4):
            writer.upsert(rows({1: turn, 5: 5}))
            writer.flush()
        writer.upsert(rows({2: 7}))
    reader = {"MemTable": writer, "several levels": writer, "log": table.fresh()}.get(level, table)

    def scan() -> Scan:
        return reader.scan(filter=filter)

    for use in (scan().to_table, scan().count_rows):
        with pytest.raises(InvalidInputError) as raised:
            use()
        message = str(raised.value)
        assert filter in message
        assert ".rs" not in message
        assert all(f"{field.name} ({field.type})" in message for field in table.schema)
    writer.abort()


def test_the_message_about_a_search_lists_the_columns_too(make_table: MakeTable) -> None:
    table = make_table()
    table.upsert(rows({1: 1}))
    with pytest.raises(InvalidInputError, match="text") as raised:
        table.search_text("x", column="text", filter="nn = 1").to_table()
    assert ".rs" not in str(raised.value)


def test_the_columns_of_a_wide_table_do_not_fill_the_screen() -> None:
    schema = pa.schema([(f"column_{number}", pa.int64()) for number in range(1000)])
    with pytest.raises(InvalidInputError) as raised, translate_filter_errors("(x)", schema):
        raise ValueError("Invalid user input: Schema error: No field named x., /a/b.rs:1:2")
    assert len(str(raised.value)) < 3000
    assert "column_0 " in str(raised.value)


@pytest.mark.parametrize("filter", ["n =", "nothing = 1", "drop table x", "1", ""])
def test_a_wrong_filter_of_an_empty_table_is_refused(table: memwal.Table, filter: str) -> None:
    for read in (table.scan(filter=filter).to_table, lambda: table.count_rows(filter=filter)):
        with pytest.raises(InvalidInputError):
            read()
    assert table.scan(filter="n = 1", limit=0).to_table().num_rows == 0
