"""Only words that are listed get through to the engine."""

import re

import pytest
from datafusion import SessionContext
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.expressions.region_sql import FUNCTIONS, MAX_DEPTH, MAX_LENGTH, tokenize


@pytest.mark.parametrize(
    "expression",
    [
        "col0",
        "COL0 % 16",
        "abs(murmur3(col0)) % 16",
        "murmur3_multi(col0, col1)",
        "left(col1, 2) || '''--;(' || right(col1,1)",
        "case when col0 >= 10 and not col1 is null then 'a' else 'b' end",
        "cast(col0 as bigint) / 7",
        "col0 in (1, 2) or col0 between 5 and 9 or col1 like 'x%'",
        "date_part('year', col1)",
        "\n col0 <> 1 \t",
    ],
)
def test_what_may_be_said(expression: str) -> None:
    assert tokenize(expression, num_columns=2)


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("", ""),
        ("   ", ""),
        ("now()", "now"),
        ("random()", "random"),
        ("uuid()", "uuid"),
        ("current_date", "current_date"),
        ("current_timestamp()", "current_timestamp"),
        ("version()", "version"),
        ("input_file_name()", "input_file_name"),
        ("repeat(col0, 1000000000)", "repeat"),
        ("regexp_replace(col0, 'a', 'b')", "regexp_replace"),
        ("(select 1)", "select"),
        ("exists(select 1)", "exists"),
        ("col0 in (select col0 from t)", "select"),
        ("t.col0", "'t'|'.col0'"),
        ("sum(col0)", "sum"),
        ("row_number() over ()", "row_number"),
        ("col2", "col2"),
        ("col00", "col00"),
        ("id", "'id'"),
        ('"id"', '"id"'),
        ("`id`", "`id`"),
        ("col0; drop table t", "; drop tab"),
        ("col0 -- comment", "-- comment"),
        ("col0 /* comment */", r"/\* comment"),
        ("col0 + 1.5", ".5"),
        ("$1", r"\$1"),
        ("@@x", "@@x"),
        ("col0[1]", r"\[1\]"),
        ("'open", "'open"),
        ("col0 + \u0131", "\u0131"),
        ("((col0)", ""),
        ("col0)) + ((1", ""),
        ("murmur3", "murmur3"),
        ("lower (upper)", "upper"),
        ("x" * (MAX_LENGTH + 1), str(MAX_LENGTH)),
        ("(" * (MAX_DEPTH + 1) + "col0" + ")" * (MAX_DEPTH + 1), str(MAX_DEPTH)),
    ],
)
def test_what_may_not_be_said(expression: str, named: str) -> None:
    """``named`` is what the error has to name, where it is about one word."""
    with pytest.raises(InvalidInputError) as refused:
        tokenize(expression, num_columns=2)
    assert re.search(named, str(refused.value))


@given(st.text(max_size=60))
def test_any_text_is_taken_or_refused(expression: str) -> None:
    try:
        tokens = tokenize(expression, num_columns=2)
    except InvalidInputError:
        return
    assert "".join(token.text for token in tokens) == "".join(
        part.lower() if number % 2 == 0 else part
        for number, part in enumerate(_around_texts(expression))
    )


def _around_texts(expression: str) -> list[str]:
    """Pieces outside of quotes without their spaces, and pieces within, in turn."""
    pieces = expression.split("'")
    return [
        piece.translate({ord(c): None for c in " \t\n"}) if number % 2 == 0 else f"'{piece}'"
        for number, piece in enumerate(pieces)
    ]


def test_the_engine_has_every_function() -> None:
    assert FUNCTIONS - {"murmur3", "murmur3_multi"} <= set(SessionContext().udfs())
