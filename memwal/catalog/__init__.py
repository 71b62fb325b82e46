"""Registry of managed tables, of their job runs, and of their backlog over time.

``Catalog`` needs the extra ``catalog`` and is loaded on first access. Everything else, reading an
exported snapshot in particular, needs nothing but the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwal.catalog.records import (
    BacklogSample,
    ManagedTable,
    Pruned,
    TableFolder,
    TableState,
    read_snapshot,
)
from memwal.jobs.job import JobRun, RunState
from memwal.jobs.policy import Policy
from memwal.util.optional_deps import requires_extra

if TYPE_CHECKING:
    from memwal.catalog.catalog import Catalog

__all__ = [
    "BacklogSample",
    "Catalog",
    "JobRun",
    "ManagedTable",
    "Policy",
    "Pruned",
    "RunState",
    "TableFolder",
    "TableState",
    "read_snapshot",
]


def __getattr__(name: str) -> object:
    if name == "Catalog":
        with requires_extra("catalog"):
            from memwal.catalog.catalog import Catalog

        return Catalog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
