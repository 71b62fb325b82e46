"""Look for the page of the Airflow UI before a wheel or an sdist is made.

Node builds the page (``make ui``), and Git does not have it. A wheel can be made without it, so
that ``pip install .`` works in a fresh clone; Airflow then shows how to build the page. A release
must have it: ``make dist`` and the images set ``MEMWAL_RELEASE``. An sdist carries the page, so
that whoever builds a wheel of that needs no Node.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGE = Path("plugins", "memwal_airflow", "web", "static", "index.html")
RELEASE = "MEMWAL_RELEASE"


class LookForPage(BuildHookInterface):  # type: ignore[type-arg]
    """Warn of a wheel without the page, and refuse a release without it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raise ``SystemExit`` for a release without the page; an editable install needs none."""
        if version == "editable" or (Path(self.root) / PAGE).is_file():
            return
        if os.environ.get(RELEASE):
            raise SystemExit(f"{PAGE} is not there: run make ui first.")
        if self.target_name == "wheel":
            self.app.display_warning(
                "The page for the Airflow UI is not built, so the wheel is without it; all else is "
                "there. To have the page, run make ui first."
            )
