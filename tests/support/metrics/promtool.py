"""Prometheus's own checker, where there is one."""

import shutil
import sys
from pathlib import Path

import pytest


def promtool() -> str:
    """Path of promtool, which ``make test-slow`` brings; a test fails that finds none."""
    beside = Path(sys.executable).with_name("promtool")
    found = shutil.which("promtool") or (str(beside) if beside.exists() else None)
    if found is None:
        pytest.fail("There is no promtool; scripts/slow_tools.py brings it")
    return found
