"""What the gate of a merge costs: with seven expectations, and with rows that it keeps out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common import backlog as backlogs
from common.measure import Figure, Line, Rival, Target, rounds_of
from common.processes import run_child

from cases.merges import backlog_table
from memwal.jobs.options import MergeOptions

_ROUNDS = 3
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
    gates: dict[str, dict[str, Any] | None] = {
        "none": None,
        "seven": {"mode": "quarantine", "suite": _SUITE},
        "kept out": {"mode": "quarantine", "suite": [*_SUITE[:1], strict, *_SUITE[2:]]},
        "loaded": {"mode": "quarantine", "suite": [*_SUITE, _LOADED]},
    }
    found: dict[str, list[float]] = {name: [] for name in gates}
    for round_ in range(rounds_of(_ROUNDS)):
        for name in gates if round_ % 2 else reversed(gates):
            found[name].append(_seconds(uri, folder, gates[name]))
    plain = Figure.of(found["none"])
    for name, what, target in (
        ("seven", "merge behind seven expectations", Target(1.3)),
        ("kept out", "merge that keeps one row in a hundred out", None),
        ("loaded", "merge behind an eighth that loads Great Expectations", None),
    ):
        yield Line(
            name="quality",
            what=what,
            ours=Figure.of(found[name]),
            other=plain,
            unit="s",
            against="without a gate",
            rival=Rival.OURS,
            target=target,
            note=f"{count:,} rows wait",
        )


def _seconds(uri: str, folder: Path, gate: Mapping[str, Any] | None) -> float:
    """Let a child merge into a copy of the table."""
    copy = folder / "copy"
    shutil.copytree(uri, copy)
    task = {
        "do": "ours",
        "uri": str(copy),
        "commit_bytes": MergeOptions().commit_bytes,
        "quality": gate,
    }
    try:
        return float(run_child("merging", task)["seconds"])
    finally:
        shutil.rmtree(copy)
        shutil.rmtree(folder / "copy__quarantine.lance", ignore_errors=True)
