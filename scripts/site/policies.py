"""The policy of a table, as Markdown: meaning, bounds and default of each key.

What a key means stands with its field; what it may be is what its checks say.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from memwal.errors import InvalidInputError
from memwal.jobs.options import Option, OptionKind, default_of, options_of
from memwal.jobs.policy import Policy

# Of the command line. Keys without one here have a number, and take twice its default.
_EXAMPLES: Final = {
    "recover_min_age_seconds": "300",
    "merge_max_keys_per_row": "1000",
    "merge_run_bytes": "8589934592",
    "snapshot_at_regions": "500",
    "compact_min_fragments": "none",
    "quiet_hours": "22:00-06:00 Europe/Berlin",
    "schedule": "*/5 * * * *",
    "gc_version_retention_seconds": "604800",
    "gc_consumer_bytes": "107374182400",
    "pool": "lake",
    "spark_session": "small-tables",
    "tags": "air,daily",
    "allow_external": "s3://lake/flights.lance",
}
_WRONG: Final[dict[str, Any]] = {
    "tags": ("!",),
    "quiet_hours": ("!",),
    "allow_external": ("",),
}
_SIZES: Final = {
    "bytes": ((1 << 30, "GiB"), (1 << 20, "MiB")),
    "seconds": ((86_400, "days"), (3600, "h"), (60, "min")),
}
_UNITS = ("seconds", "bytes", "rows", "generations", "regions", "fragments", "groups")


@cache
def markdown() -> str:
    """A section for each key."""
    found = []
    for key, option in options_of(Policy).items():
        default = default_of(Policy, key)
        unit = next((unit for unit in _UNITS if key.endswith(f"_{unit}")), "")
        words = _in_words(unit, default)
        rows = {"default": _default(default) + words, "unit": unit}
        if option.kind is not OptionKind.RULES:
            setting = f"{key}={_EXAMPLES.get(key) or f'{2 * default:.15g}'}"
            quoted = f"'{setting}'" if " " in setting else setting
            rows["may be"] = _bounds(key)
            rows["example"] = f"`memwal catalog policy set flights {quoted}`"
        else:
            # Commands of their own set these.
            rows["may be"] = "[rules](quality.md#memwal.quality.rules.QualityRules)"
            rows["example"] = "`memwal quality set flights suite.json --mode warn`"
        table = "\n".join(f"| {name} | {text} |" for name, text in rows.items() if text)
        lines = [f"## {key}", "", _meaning(option), "", "| | |", "|---|---|", table]
        found.append("\n".join(lines) + "\n")
    return "\n".join(found)


def _meaning(option: Option) -> str:
    text = option.help.replace("``", "`").rstrip(".")
    return f"{text[0].upper()}{text[1:]}."


def _default(value: Any) -> str:
    if value is None or value == ():
        return "none"
    return f"{value:,.0f}" if isinstance(value, int | float) else f"`{value}`"


def _in_words(unit: str, value: Any) -> str:
    for size, name in _SIZES.get(unit, ()):
        if isinstance(value, int | float) and value >= size and value % size == 0:
            return f" ({value / size:g} {name})"
    return ""


def _bounds(key: str) -> str:
    """What the check of the key says that it may be."""
    try:
        Policy(**{key: _WRONG.get(key, object())})
    except InvalidInputError as error:
        told = re.split(r"[;:] ", str(error), maxsplit=1)[-1]
        return re.sub("^(give|write) ", "", told).rstrip(".").replace("None", "`none`")
    raise ValueError(f"{key} takes anything")
