"""How comparisons are shown to people."""

import pytest

from memwal.expressions.parser import parse_alternatives


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("id = -5", "id = -5"),
        ("5 > id", "id < 5"),
        ("name <> 'it''s'", "name != 'it''s'"),
        ("data = X'00ff'", "data = X'00ff'"),
        ("not flag", "flag != true"),
        ("id is not null", "id is not null"),
        ("id not in (1, 2)", "id not in (1, 2)"),
        ("id in (1, 2, 3, 4, 5)", "id in (1, 2, 3, ... 5 values)"),
        ("name like 'ab%'", "name starts with 'ab'"),
        ("name not like 'ab%'", "name does not start with 'ab'"),
        ("date_part('month', day) >= 3", "month of day >= 3"),
        ("cast(at as date) = date '2026-03-15'", "date of at = '2026-03-15'"),
    ],
)
def test_as_they_could_be_written(text: str, shown: str) -> None:
    ((comparison,),) = parse_alternatives(text)
    assert str(comparison) == shown
    assert comparison.negated().negated() == comparison
