"""Maintenance jobs on Spark, and tables as Spark data frames."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memwal.spark.version_compat import DATA_SOURCES, check_here
from memwal.util.optional_deps import requires_extra

if TYPE_CHECKING:
    from memwal.spark.data_source import register
    from memwal.spark.read_tags import release
    from memwal.spark.streaming import foreach_batch

__all__ = ["foreach_batch", "register", "release"]

_MODULES = {"foreach_batch": "streaming", "register": "data_source", "release": "read_tags"}


def __getattr__(name: str) -> Any:
    """Import a name on first use: most users of a table have no Spark."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with requires_extra("spark"):
        if name == "register":
            check_here(DATA_SOURCES)
        return getattr(import_module(f"memwal.spark.{_MODULES[name]}"), name)
