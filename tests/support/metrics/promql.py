"""Names in PromQL: enough to hold rules and dashboards against what is really exposed."""

import re
from dataclasses import dataclass

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_METRIC = re.compile(r"\b(memwal_[a-z_]+|up|ALERTS)\b\s*(\{[^}]*\})?")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")


@dataclass(frozen=True)
class Selected:
    """A metric of an expression, with the labels that it is chosen by."""

    metric: str
    labels: frozenset[str]


def selected(expression: str) -> list[Selected]:
    """The metrics of an expression."""
    blank = _STRING.sub('""', expression)
    # Labels that are grouped by look like metrics.
    without = _GROUPING.sub(" ", blank)
    return [
        Selected(name, frozenset(_LABEL.findall(labels or "")))
        for name, labels in _METRIC.findall(without)
    ]


def grouped(expression: str) -> set[str]:
    """The labels that an expression groups or joins by."""
    blank = _STRING.sub('""', expression)
    lists = [part.split(",") for part in _GROUPING.findall(blank)]
    return {name.strip() for names in lists for name in names if name.strip()}
