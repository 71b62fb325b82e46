"""The policy of a table, as Markdown: meaning, bounds and default of each key.

What a key means stands in the docstring of the class; what it may be is what its checks say.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from functools import cache
from typing import Any, Final

from griffe import Docstring, DocstringSectionAttributes

from memwal.errors import InvalidInputError
from memwal.maintenance.policy import Policy

EXAMPLES: Final = {
    "merge_at_generations": "8",
    "merge_at_bytes": "268435456",
    "merge_at_age_seconds": "60",
    "merge_commit_bytes": "536870912",
    "merge_run_bytes": "8589934592",
    "index_at_generations": "4",
    "index_at_rows": "1000000",
    "index_at_age_seconds": "3600",
    "snapshot_at_age_seconds": "60",
    "snapshot_at_regions": "500",
    "gc_interval_seconds": "900",
    "gc_at_bytes": "10737418240",
    "compact_at_fragments": "none",
    "quiet_hours": "22:00-06:00 Europe/Berlin",
    "quiet_critical_seconds": "7200",
    "version_retention_seconds": "604800",
    "run_retention_seconds": "7776000",
    "sample_retention_seconds": "86400",
    "schedule": "*/5 * * * *",
    "sensor_poke_seconds": "30",
    "sensor_timeout_seconds": "300",
    "gc_grace_seconds": "1800",
    "gc_retention_seconds": "86400",
    "late_seconds": "600",
    "critical_seconds": "3600",
    "sensor_groups": "16",
    "pool": "lake",
    "retries": "5",
    "tags": "air,daily",
    "priority": "10",
}
"""Of the command line; what rows must be like has commands of its own."""

_WRONG: Final[dict[str, Any]] = {"tags": ("!",), "quiet_hours": ("!",)}
_UNITS = ("seconds", "bytes", "rows", "generations", "regions", "fragments", "groups")


@cache
def markdown() -> str:
    """A section for each key."""
    meanings = _meanings()
    found = []
    for field in fields(Policy):
        key = field.name
        shown = EXAMPLES.get(key)
        lines = [f"## {key}", "", meanings[key], ""]
        lines += ["| | |", "|---|---|", f"| default | {_default(field.default)} |"]
        if unit := next((unit for unit in _UNITS if key.endswith(f"_{unit}")), None):
            lines.append(f"| unit | {unit} |")
        if shown is None:
            lines.append("| may be | [rules](quality.md#memwal.quality.rules.QualityRules) |")
            lines.append("| example | `memwal quality set flights suite.json --mode warn` |")
        else:
            lines.append(f"| may be | {_bounds(key)} |")
            quoted = f"'{key}={shown}'" if " " in shown else f"{key}={shown}"
            lines.append(f"| example | `memwal catalog policy set flights {quoted}` |")
        found.append("\n".join(lines) + "\n")
    return "\n".join(found)


def _meanings() -> dict[str, str]:
    sections = Docstring(inspect.getdoc(Policy) or "", parser="numpy").parse(warnings=False)
    (section,) = (one for one in sections if isinstance(one, DocstringSectionAttributes))
    role = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")
    return {
        key.strip(): role.sub(r"`\1`", one.description).replace("``", "`")
        for one in section.value
        for key in one.name.split(",")
    }


def _default(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,g}" if value < 1_000_000 else f"{int(value):,}"
    return f"`{value}`"


def _bounds(key: str) -> str:
    """What the check of the key says that it may be."""
    try:
        Policy(**{key: _WRONG.get(key, object())})
    except InvalidInputError as error:
        told = re.split(r"[;:] ", str(error), maxsplit=1)[-1]
        return re.sub("^(give|write) ", "", told).rstrip(".").replace("None", "`none`")
    raise ValueError(f"{key} takes anything")
