"""The settings of Airflow's section ``[memwal]``, as Markdown."""

from __future__ import annotations

from memwal_airflow.provider.settings import SETTINGS


def markdown() -> str:
    """A table with a row for each key."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for setting in SETTINGS:
        default = f"`{setting.default}`" if setting.default != "" else ""
        example = f" Such as `{setting.example}`." if setting.example is not None else ""
        rows.append(f"| `{setting.key}` | {default} | {setting.description}{example} |")
    return "\n".join(rows) + "\n"
