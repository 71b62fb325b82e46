"""Versions of the packages around memwal, and the features that an older one of them lacks."""

from __future__ import annotations

import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from typing import Final

SHOWN: Final = ("pylance", "pyarrow", "lancedb", "sqlalchemy", "pyspark", "apache-airflow")
"""Packages whose versions are shown if they are installed."""


def version(package: str) -> str:
    """Return the version of a package; PackageNotFoundError if it is not installed."""
    if package == "pyspark":
        # Spark's own copy, in SPARK_HOME, has no metadata, and comes before an installed one.
        with suppress(ModuleNotFoundError):
            return str(import_module("pyspark.version").__version__)
    return distribution_version(package)


def installed_versions() -> dict[str, str]:
    """Return the version of Python, and of each package of :data:`SHOWN` that is installed."""
    versions = {"Python": platform.python_version()}
    for name in SHOWN:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of another package that memwal uses, and that a supported version may lack."""

    package: str
    name: str
    since: str
    """First version that has it, such as ``"3.2"``."""
    without: str
    """Consequence where the package lacks it."""

    @property
    def here(self) -> bool:
        """Whether the installed package has it; PackageNotFoundError if none is installed."""
        return _installed(self.package) >= _numbers(self.since)


@cache
def _installed(package: str) -> tuple[int, ...]:
    return _numbers(version(package))


def _numbers(text: str) -> tuple[int, ...]:
    """Return major and minor version."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])
