"""The merge of a backlog by Spark's workers, beside the same merge in process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import _backlog as backlogs
from _measure import Figure, Line, Target, constant
from _merges import backlog_table

_CHILD = Path(__file__).with_name("_spark_child.py")
_MOST_OVERHEAD_SECONDS = 2.0


def spark_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Eight regions with four generations each, by one worker and by two."""
    uri = str(folder / "merged")
    table = backlog_table(uri, rows)
    backlogs.write_generations(table, rows, fresh=backlogs.fresh_rows(rows))
    task = {"uri": uri, "scratch": str(folder)}
    answer = subprocess.run(
        [sys.executable, str(_CHILD), json.dumps(task)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = json.loads(answer.stdout.splitlines()[-1])
    seconds = {name: Figure.of(way["seconds"]) for name, way in found.items()}
    here, one = seconds["here"], seconds["one"]
    yield Line(
        name="spark",
        what="what Spark adds to a merge, its workers warm",
        ours=constant(max(one.median - here.median, 1e-3)),
        other=constant(_MOST_OVERHEAD_SECONDS),
        unit="s",
        against="limit",
        target=Target(1.0),
        note=f"{one} s beside {here} s in process",
    )
    yield Line(
        name="spark",
        what="merge with two of Spark's workers",
        ours=seconds["two"],
        other=one,
        unit="s",
        against="with one",
        target=Target(1.1),
        note=f"{found['two']['what']}, beside {found['one']['what']}",
    )
    yield Line(
        name="spark",
        what="two halves of a backlog merged at once",
        ours=seconds["at once"],
        other=seconds["halves"],
        unit="s",
        against="one after the other",
        note=f"{found['at once']['what']}, beside {found['halves']['what']}",
    )
