"""Reading predicates: what is understood, and what rules nothing out."""

from typing import Any

import pytest

from memwal.expressions.parser import MAX_ALTERNATIVES, parse_alternatives


def read(text: str) -> list[list[tuple[Any, ...]]]:
    return [
        [
            (
                f"{c.part or ''}{' ' if c.part else ''}{c.column}",
                c.operator,
                *(v.value for v in c.values),
            )
            for c in alternative
        ]
        for alternative in parse_alternatives(text)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 5", [[("id", "=", 5)]]),
        ("(((id)) = -5)", [[("id", "=", -5)]]),
        ("5 < id", [[("id", ">", 5)]]),
        ("a <> 1 AND b >= 2", [[("a", "!=", 1), ("b", ">=", 2)]]),
        ("a = 1 or b = 2 and c = 3", [[("a", "=", 1)], [("b", "=", 2), ("c", "=", 3)]]),
        ("a in (1, 2)", [[("a", "in", 1, 2)]]),
        ("a not in ('x', 'it''s')", [[("a", "not in", "x", "it's")]]),
        ("a between 1 and 2 and b = 3", [[("b", "=", 3), ("a", ">=", 1), ("a", "<=", 2)]]),
        ("a not between 1 and 2", [[("a", "<", 1)], [("a", ">", 2)]]),
        ("a is null or b is not null", [[("a", "is null")], [("b", "is not null")]]),
        ("not (a < 1 or b is null)", [[("a", ">=", 1), ("b", "is not null")]]),
        ("not not a = 1", [[("a", "=", 1)]]),
        ("flag and not other", [[("flag", "=", True), ("other", "!=", True)]]),
        ("`odd name` = X'00ff'", [[("odd name", "=", b"\x00\xff")]]),
        ("d < date '2026-01-31'", [[("d", "<", "2026-01-31")]]),
        ("lower(t) = 'x' and id = 7", [[("id", "=", 7)]]),
        ("t like 'x%' and id = 7", [[("t", "starts with", "x"), ("id", "=", 7)]]),
        ("t not like 'x%'", [[("t", "does not start with", "x")]]),
        ("t like 'x'", [[("t", "=", "x")]]),
        ("t like 'x_y'", [[("t", "starts with", "x")]]),
        ("t like 'x\\%y'", [[("t", "starts with", "x")]]),
        ("starts_with(t, 'x')", [[("t", "starts with", "x")]]),
        ("t ilike 'x%' and id = 7", [[("id", "=", 7)]]),
        ("a in (1, null)", [[("a", "in", 1)]]),
        ("id = cast(5 as bigint)", [[("id", "=", 5)]]),
        ("id = 5::int and id = cast(300 as tinyint)", [[("id", "=", 5)]]),
        ("id = -5::int", [[("id", "=", -5)]]),
        ("d = cast('2026-01-31' as date)", [[("d", "=", "2026-01-31")]]),
        ("cast(t as date) = date '2026-01-31'", [[("date t", "=", "2026-01-31")]]),
        ("t::date < '2026-01-31'::date", [[("date t", "<", "2026-01-31")]]),
        ("cast(a as decimal(5, 2)) = 1 and id = 7", [[("id", "=", 7)]]),
        ("date_part('YEAR', t) = 2026", [[("year t", "=", 2026)]]),
        ("date_part('year', t) in (1, 2)", [[("year t", "in", 1, 2)]]),
        ("date_part('week', t) = 5 and id = 7", [[("id", "=", 7)]]),
        ("flag is true", [[("flag", "=", True), ("flag", "is not null")]]),
        ("flag is not true", [[("flag", "!=", True)], [("flag", "is null")]]),
        ("(a is null) is true", [[("a", "is null")]]),
        ("(a is null) is not true", [[("a", "is not null")]]),
        ("(a is not null) is false", [[("a", "is null")]]),
        ("(a = 1 and b = 2) is true", [[("a", "=", 1), ("b", "=", 2)]]),
        ("a is not distinct from 1", [[("a", "=", 1)]]),
        ("id + 1 = 2 and id = 7", [[("id", "=", 7)]]),
        ("id = 1.5 and id = 7", [[("id", "=", 7)]]),
        ("false", []),
        ("false or id = 1", [[("id", "=", 1)]]),
        ("id = 1 and false", []),
    ],
)
def test_what_is_understood(text: str, expected: list[list[tuple[Any, ...]]]) -> None:
    found = read(text)
    assert [sorted(map(str, one)) for one in found] == [sorted(map(str, one)) for one in expected]


@pytest.mark.parametrize(
    "text",
    [
        "true",
        "a = 1 is null",
        "a = 1 or lower(b) = 'x'",
        "not (a = 1 and lower(b) = 'x')",
        "a = null",
        "a not in (1, null)",
        "a not like 'x_y'",
        "a is distinct from 1",
        "(a = 1 and b = 2) is not true",
        "a is not distinct from null",
        "a is not distinct from true and b = 2",
        "date_part('year', a) is null",
        "cast(a as date) is null",
        "a like 'x%' escape '!'",
        "a in (select 1)",
        "a.b = 1",
        'a = "b"',
        "a::int = 1",
        "a = 1 -- and b = 2",
        "a = 1 /* */",
        "case when a = 1 then true else false end",
        "cast(a as int) = 1",
        "a = 'x' 'y'",
        "a = N'x'",
        "a = 1)",
        "(a = 1",
        "a = 1 b",
        "a =",
        "",
        "a = 1 = true",
        "a = b",
        "1 = 1",
        "(" * 500 + "a = 1" + ")" * 500,
        "a & 1 = 1",
        "a[0] = 1",
    ],
)
def test_what_rules_nothing_out(text: str) -> None:
    assert [] in read(text)


def test_alternatives_do_not_multiply_without_end() -> None:
    many = " and ".join(f"(a = {n} or b = {n})" for n in range(40))
    found = parse_alternatives(f"({many}) and id = 1")
    assert 1 <= len(found) <= MAX_ALTERNATIVES
    assert all(any(c.column == "id" for c in alternative) for alternative in found)
