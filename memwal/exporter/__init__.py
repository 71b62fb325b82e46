"""Prometheus exporter of the catalog's figures, with the alert rules and dashboard for them."""

from __future__ import annotations

import re
from importlib.resources import files

from memwal.errors import InvalidInputError

RULES = "alerts.yml"
"""Prometheus alert rules."""

DASHBOARD = "dashboard.json"
"""A Grafana dashboard."""


def shipped(name: str) -> str:
    """Return the text of :data:`RULES` or :data:`DASHBOARD`."""
    return files("memwal.exporter").joinpath("shipped", name).read_text(encoding="utf-8")


def linked_rules(runbook_url: str) -> str:
    """Return the alert rules, each with the URL of its runbook: ``{alert}`` becomes its name.

    Raises InvalidInputError for a URL without ``{alert}``, or one that YAML would have to quote.
    """
    if "{alert}" not in runbook_url or re.search(r"[\s\"\\]", runbook_url):
        raise InvalidInputError(
            f"the URL of the runbooks is {runbook_url!r}; give one without spaces and quotes, with "
            "{alert} in place of the name of the alert: https://example.com/{alert}.html"
        )
    return re.sub(
        r"^( *)runbook: docs/runbooks/(\w+)\.md$",
        lambda line: f"{line[0]}\n{line[1]}runbook_url: {runbook_url.replace('{alert}', line[2])}",
        shipped(RULES),
        flags=re.MULTILINE,
    )
