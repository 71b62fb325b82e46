"""Merges in parts, of tables that would not be divided by default."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import memwal
from memwal.jobs.job import JobResult

DIVIDED: dict[str, Any] = {"divide_bytes": 0, "commit_bytes": 500, "max_tasks": 2}
"""Options of a merge that is divided, with several tasks if there are more than a few rows."""


def elsewhere(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
    """Run tasks as if on other machines."""
    return [
        pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(function))(pickle.loads(sent))))
        for sent in map(pickle.dumps, tasks)
    ]


Merge = Callable[[memwal.Table], JobResult]
"""Of the fixture ``merge``."""
