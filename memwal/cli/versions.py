"""What ``memwal --version`` prints: one line that a report of a fault needs."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from memwal.version import __version__

SHOWN = ("pylance", "pyarrow", "lancedb", "pyspark", "apache-airflow")
"""Packages whose versions are told, as far as they are installed."""


def version_line() -> str:
    """``memwal 0.1.0 (Python 3.11.7, pylance 14.0.2, ...)``."""
    found = [f"Python {platform.python_version()}"]
    for name in SHOWN:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"memwal {__version__} ({', '.join(found)})"
