"""The registry of managed tables, of what was done to them, and of their backlog over time.

``Catalog`` needs ``memwal[catalog]`` and is loaded when it is first asked for; the rest, and
reading a snapshot in particular, needs nothing but the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwal.catalog.records import (
    BacklogSample,
    JobRun,
    ManagedTable,
    Pruned,
    RunState,
    TableState,
)
from memwal.catalog.snapshot import read_snapshot
from memwal.extras import needs
from memwal.maintenance.policy import Policy, merge_reason

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
    "TableState",
    "merge_reason",
    "read_snapshot",
]


def __getattr__(name: str) -> Any:
    if name == "Catalog":
        with needs("catalog"):
            from memwal.catalog.catalog import Catalog

        return Catalog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
