"""Alert rules and Grafana dashboard that ship with memwal."""

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
    """Return the alert rules, each with the address of its runbook.

    Parameters
    ----------
    runbook_url : str
        ``{alert}`` in it stands for the name of the alert.

    Raises
    ------
    InvalidInputError
        ``{alert}`` does not stand in it, or something that YAML would not leave as it is.
    """
    if "{alert}" not in runbook_url or re.search(r"[\s\"\\]", runbook_url):
        raise InvalidInputError(
            f"the address of runbooks is {runbook_url!r}; write it without spaces and quotes, with "
            "{alert} where the name of the alert stands, as in https://example.com/{alert}.html"
        )
    return re.sub(
        r"^( *)runbook: docs/runbooks/(\w+)\.md$",
        lambda found: (
            f"{found[0]}\n{found[1]}runbook_url: {runbook_url.replace('{alert}', found[2])}"
        ),
        shipped(RULES),
        flags=re.MULTILINE,
    )
