"""Only words that are listed get through to the engine."""

from __future__ import annotations

import pytest
from datafusion import SessionContext
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.region.expression_text import FUNCTIONS, MAX_DEPTH, MAX_LENGTH, tokenize


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
    ("expression", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("now()", "may not call now"),
        ("random()", "may not call random"),
        ("uuid()", "may not call uuid"),
        ("current_date", "neither a source column"),
        ("current_timestamp()", "may not call"),
        ("version()", "may not call"),
        ("input_file_name()", "may not call"),
        ("repeat(col0, 1000000000)", "may not call repeat"),
        ("regexp_replace(col0, 'a', 'b')", "may not call"),
        ("(select 1)", "neither a source column"),
        ("exists(select 1)", "may not call exists"),
        ("col0 in (select col0 from t)", "neither a source column"),
        ("t.col0", "'t'|'.col0'"),
        ("sum(col0)", "may not call sum"),
        ("row_number() over ()", "may not call row_number"),
        ("col2", "neither a source column"),
        ("col00", "neither a source column"),
        ("id", "neither a source column"),
        ('"id"', "may not contain"),
        ("`id`", "may not contain"),
        ("col0; drop table t", "may not contain ';"),
        ("col0 -- comment", "may not contain '--"),
        ("col0 /* comment */", "may not contain '/\\*"),
        ("col0 + 1.5", "may not contain '.5"),
        ("$1", "may not contain"),
        ("@@x", "may not contain"),
        ("col0[1]", "may not contain"),
        ("'open", "may not contain"),
        ("col0 + \u0131", "may not contain"),
        ("((col0)", "parentheses"),
        ("col0)) + ((1", "parentheses"),
        ("murmur3", "neither a source column"),
        ("lower (upper)", "neither a source column"),
        ("x" * (MAX_LENGTH + 1), "1000 characters"),
        ("(" * (MAX_DEPTH + 1) + "col0" + ")" * (MAX_DEPTH + 1), "nested 16 deep"),
    ],
)
def test_what_may_not_be_said(expression: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        tokenize(expression, num_columns=2)


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
