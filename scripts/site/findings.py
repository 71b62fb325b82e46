"""The codes of findings, as Markdown: severity, meaning, action and the repair that is safe."""

from __future__ import annotations

from memwal.jobs.verify import CODES


def markdown() -> str:
    """A table with a line for each code."""
    lines = ["| code | severity | meaning | what to do | repair |", "|---|---|---|---|---|"]
    for code, kind in CODES.items():
        repair = f"`{kind.repair.value}`" if kind.repair else "-"
        lines.append(
            f"| `{code}` | {kind.severity.value} | {kind.meaning} | {kind.advice} | {repair} |"
        )
    return "\n".join(lines)
