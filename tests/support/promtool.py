"""Prometheus's own checker, where there is one."""

from __future__ import annotations

import os
import shutil

import pytest


def promtool() -> str:
    """Path of promtool; the test is skipped where there is none."""
    found = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not found:
        pytest.skip("promtool is not on the PATH (Debian: package prometheus), nor in $PROMTOOL")
    return found
