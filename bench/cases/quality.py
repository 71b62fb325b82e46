"""What the gate of a merge costs: with seven expectations, and with rows that it keeps out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import backlog as backlogs
from common.measure import Figure, Line, Rival, Target, rounds_of
from common.processes import merge_copy

from cases.merges import backlog_table

_ROUNDS = 3
_DIVIDED = {"divide_bytes": 0, "max_tasks": 2}
_SUITE: list[dict[str, Any]] = [
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "kind"}},
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "value", "min_value": 0, "max_value": 1},
    },
    {
        "type": "expect_column_values_to_match_regex",
        "kwargs": {"column": "kind", "regex": "^kind [0-9]+$"},
    },
    {
        "type": "expect_column_value_lengths_to_be_between",
        "kwargs": {"column": "kind", "min_value": 6, "max_value": 7},
    },
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "day", "min_value": "1970-01-01", "max_value": "1971-01-01"},
    },
    {"type": "expect_vector_values_to_be_finite", "kwargs": {"column": "vector"}},
    {
        "type": "expect_vector_norm_to_be_between",
        "kwargs": {"column": "vector", "min_value": 0, "max_value": 1e6},
    },
]
_LOADED: dict[str, Any] = {
    "type": "expect_column_median_to_be_between",
    "kwargs": {"column": "value", "max_value": 1},
}


def quality_lines(folder: Path, rows: int) -> Iterator[Line]:
    """The merge of ``merge_lines``, behind gates."""
    uri = str(folder / "merged")
    table = backlog_table(uri, rows)
    backlogs.write_generations(table, rows, fresh=backlogs.fresh_rows(rows))
    count = table.status().backlog_rows
    # One row in a hundred is above.
    strict: dict[str, Any] = {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "value", "max_value": 0.99},
    }
    gates: dict[str, dict[str, Any]] = {
        "none": {},
        "seven": {"quality": {"mode": "quarantine", "suite": _SUITE}},
        "kept out": {
            "quality": {"mode": "quarantine", "suite": [*_SUITE[:1], strict, *_SUITE[2:]]}
        },
        "loaded": {"quality": {"mode": "quarantine", "suite": [*_SUITE, _LOADED]}},
    }
    gates |= {f"{name}, divided": {**gates[name], **_DIVIDED} for name in ("none", "seven")}
    found: dict[str, list[float]] = {name: [] for name in gates}
    for round_ in range(rounds_of(_ROUNDS)):
        for name in gates if round_ % 2 else reversed(gates):
            found[name].append(merge_copy(uri, {"do": "ours", **gates[name]})["seconds"])
    for name, without, what, target in (
        ("seven", "none", "merge behind seven expectations", Target(1.3)),
        ("kept out", "none", "merge that keeps one row in a hundred out", None),
        ("loaded", "none", "merge behind an eighth that loads Great Expectations", None),
        (
            "seven, divided",
            "none, divided",
            "divided merge behind seven expectations",
            Target(1.3),
        ),
    ):
        yield Line(
            name="quality",
            what=what,
            ours=Figure.of(found[name]),
            other=Figure.of(found[without]),
            unit="s",
            against="without a gate",
            rival=Rival.OURS,
            target=target,
            note=f"{count:,} rows wait",
        )
