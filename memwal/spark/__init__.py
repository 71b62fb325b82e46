"""Maintenance jobs on Spark, and tables as data frames of Spark, read and written."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memwal.spark.version_compat import DATA_SOURCES, check_here
from memwal.util.optional_deps import requires_extra

if TYPE_CHECKING:
    from memwal.spark.data_source import register
    from memwal.spark.source.read_tags import release

__all__ = ["register", "release"]

_MODULES = {"register": "data_source", "release": "source.read_tags"}


def __getattr__(name: str) -> Any:
    """Import a name on first use: most users of a table have no Spark."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with requires_extra("spark"):
        if name == "register":
            check_here(DATA_SOURCES)
        return getattr(import_module(f"memwal.spark.{_MODULES[name]}"), name)
