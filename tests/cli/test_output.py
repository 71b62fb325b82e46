"""How values are shown."""

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from memwal.boundary.text import age, size
from memwal.cli.output import print_fields, print_json, print_table


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2, "1.0 MiB"),
        (5 * 1024**3, "5.0 GiB"),
        (1024**6, "1024.0 PiB"),
    ],
)
def test_size(number, text):
    assert size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.2, "0 s"), (119, "119 s"), (300, "5 min"), (7200, "2 h"), (864000, "10 d")],
)
def test_age(seconds, text):
    assert age(seconds) == text


def test_json_of_what_json_has_no_type_for(capsys):
    print_json(
        {
            "bytes": b"\x01\xff",
            "uuid": UUID(int=1),
            "when": datetime(2026, 1, 2, tzinfo=UTC),
            "day": date(2026, 1, 2),
            "time": time(3),
            "span": timedelta(seconds=1.5),
            "decimal": Decimal("1.10"),
            "nested": [{1: (math.nan, math.inf, 0.5)}],
        }
    )
    assert json.loads(capsys.readouterr().out) == {
        "bytes": "01ff",
        "uuid": "00000000-0000-0000-0000-000000000001",
        "when": "2026-01-02T00:00:00+00:00",
        "day": "2026-01-02",
        "time": "03:00:00",
        "span": 1.5,
        "decimal": "1.10",
        "nested": [{"1": [None, None, 0.5]}],
    }


def test_fields_line_up(capsys):
    print_fields([("a", 1), ("long_name", None), ("b", True)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["a", "1"], ["long_name", "-"], ["b", "yes"]]
    assert {len(line.rstrip("1-yes")) for line in lines} == {len("long_name  ")}


def test_numbers_that_are_not_finite_are_shown(capsys):
    print_fields([("a", math.inf), ("b", -math.inf), ("c", math.nan)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["a", "inf"], ["b", "-inf"], ["c", "nan"]]


def test_a_table_shows_cells_as_they_are(capsys):
    print_table(("name", "n"), [("[red]:smile:[/red]", 1), ("x", 22), ("", "")])
    lines = capsys.readouterr().out.splitlines()
    assert "[red]:smile:[/red]" in lines[3]
    assert lines[3].endswith("│  1 │")
    assert lines[4].endswith("│ 22 │")
