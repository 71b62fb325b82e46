"""The alert rules and the dashboard that come with memwal."""

from __future__ import annotations

from importlib.resources import files

RULES = "alerts.yml"
"""Prometheus alert rules."""

DASHBOARD = "dashboard.json"
"""A Grafana dashboard."""


def shipped(name: str) -> str:
    """Return the text of :data:`RULES` or :data:`DASHBOARD`."""
    return files("memwal.telemetry").joinpath("shipped", name).read_text(encoding="utf-8")
