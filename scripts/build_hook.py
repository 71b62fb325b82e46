"""What the build asks before it makes a wheel or an sdist: is the page of the Airflow UI there?

It is built by Node (``make ui``) and is no part of the repository; without this question a release
could lack it, and Airflow would show an empty tab. An sdist carries it, so that whoever builds a
wheel of that needs no Node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGE = Path("plugins", "memwal_airflow", "web", "static", "index.html")


class PageIsBuilt(BuildHookInterface):  # type: ignore[type-arg]
    """Refuse to build without the page; an editable install shows whatever page there is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raise ``SystemExit`` when there is no page and it would be shipped."""
        if version != "editable" and not (Path(self.root) / PAGE).is_file():
            raise SystemExit(f"{PAGE} is not there: run make ui first.")
