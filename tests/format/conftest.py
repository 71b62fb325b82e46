"""The golden files that pylance wrote, and what they were made of."""

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def golden() -> Path:
    """Return the folder of golden files."""
    return Path(__file__).resolve().parent / "golden"


@pytest.fixture(scope="session")
def told(golden: Path) -> dict[str, Any]:
    """Return what went into the golden files."""
    content: dict[str, Any] = json.loads((golden / "golden.json").read_text())
    return content
