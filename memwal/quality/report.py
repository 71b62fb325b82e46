"""What a gate or a check found, in numbers; of the rows it holds keys only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from typing import Any

import pyarrow as pa

from memwal.format.values import to_python_rows
from memwal.quality.evaluate import Finding
from memwal.quality.expectations import Expectation

MOST_EXAMPLES = 5
"""So many keys of failing rows are kept of each expectation."""

MOST_CHARACTERS = 200
"""Of a text in one of them. Results stand in the catalog, in logs and in answers of the UI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What came of one expectation over all that was looked at.

    Attributes
    ----------
    success : bool
        Whether it was met wherever it was looked at.
    failed : int
        Rows that are not as expected, also where ``mostly`` allows for them.
    examples : tuple
        Keys of some of them.
    error : str or None
        Why it could not be decided.
    """

    expectation: Expectation
    success: bool
    failed: int
    examples: tuple[dict[str, Any], ...] = ()
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        columns = self.expectation.columns
        return {
            "type": self.expectation.type,
            "column": ", ".join(columns) or None,
            "severity": self.expectation.severity.value,
            "success": self.success,
            "failed": self.failed,
            "examples": list(self.examples),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """What was found in some rows.

    Attributes
    ----------
    mode : str
        Of the gate, or ``check``.
    rows, failed_rows : int
        Rows that were looked at, and those of them that fail an expectation about rows.
    quarantined_rows : int
        Rows that were kept out.
    held : tuple of str
        Regions that wait.
    tallies : tuple of Tally
        In the order of the suite.
    """

    mode: str
    rows: int = 0
    failed_rows: int = 0
    quarantined_rows: int = 0
    held: tuple[str, ...] = ()
    tallies: tuple[Tally, ...] = ()

    @property
    def success(self) -> bool:
        """Whether every expectation was met."""
        return all(tally.success for tally in self.tallies)

    def problems(self) -> tuple[str, ...]:
        """One line for all expectations that are not met, for people; none when all are."""
        failing = [tally for tally in self.tallies if not tally.success]
        if not failing:
            return ()
        names = "; ".join(
            f"{one.expectation} {one.error or f'fails for {one.failed} rows'}"
            if one.failed or one.error
            else f"{one.expectation} fails"
            for one in failing
        )
        kept = f"; {self.quarantined_rows} are in quarantine" if self.quarantined_rows else ""
        return (f"{self.failed_rows} of {self.rows} rows are not as expected{kept}: {names}",)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: the ``quality`` of a result."""
        return {
            "mode": self.mode,
            "success": self.success,
            "rows": self.rows,
            "failed_rows": self.failed_rows,
            "quarantined_rows": self.quarantined_rows,
            "held": list(self.held),
            "expectations": [tally.to_dict() for tally in self.tallies],
        }


def tally(finding: Finding, keys: pa.Table) -> Tally:
    """Count a finding about rows with these keys."""
    examples: tuple[dict[str, Any], ...] = ()
    if finding.failed is not None and finding.failures:
        few = finding.failed.nonzero()[0][:MOST_EXAMPLES]
        examples = tuple(shown_keys(keys.take(pa.array(few)), most=MOST_CHARACTERS))
    return Tally(
        expectation=finding.expectation,
        success=finding.success,
        failed=finding.failures,
        examples=examples,
        error=finding.error,
    )


def combine(reports: Iterable[QualityReport]) -> QualityReport | None:
    """One report of several that are about the same suite; None of none."""
    found = list(reports)
    if not found:
        return None
    whole = next((report for report in found if report.tallies), found[0])
    tallies = [
        _joined([report.tallies[number] for report in found if report.tallies])
        for number in range(len(whole.tallies))
    ]
    return replace(
        whole,
        rows=sum(report.rows for report in found),
        failed_rows=sum(report.failed_rows for report in found),
        quarantined_rows=sum(report.quarantined_rows for report in found),
        held=tuple(dict.fromkeys(region for report in found for region in report.held)),
        tallies=tuple(tallies),
    )


def _joined(parts: Sequence[Tally]) -> Tally:
    return replace(
        parts[0],
        success=all(part.success for part in parts),
        failed=sum(part.failed for part in parts),
        examples=tuple(key for part in parts for key in part.examples)[:MOST_EXAMPLES],
        error=next((part.error for part in parts if part.error), None),
    )


def together(found: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """One of several that :meth:`QualityReport.to_dict` gave about the same suite."""
    parts = [part for part in found if part is not None]
    if not parts:
        return None
    looked = [part["expectations"] for part in parts if part["expectations"]]
    counts = ("rows", "failed_rows", "quarantined_rows")
    return {
        **parts[0],
        **{count: sum(part[count] for part in parts) for count in counts},
        "success": all(part["success"] for part in parts),
        "held": list(dict.fromkeys(region for part in parts for region in part["held"])),
        "expectations": [
            {
                **same[0],
                "success": all(one["success"] for one in same),
                "failed": sum(one["failed"] for one in same),
                "examples": [key for one in same for key in one["examples"]][:MOST_EXAMPLES],
                "error": next((one["error"] for one in same if one["error"]), None),
            }
            for same in zip(*looked, strict=True)
        ],
    }


def shown_keys(keys: pa.Table, *, most: int | None = None) -> list[dict[str, Any]]:
    """Keys in values that JSON has, with texts of up to so many characters."""
    return [
        {name: _plain(value, most) for name, value in row.items()} for row in to_python_rows(keys)
    ]


def _plain(value: Any, most: int | None) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if most is None or len(text) <= most else f"{text[:most]}..."
