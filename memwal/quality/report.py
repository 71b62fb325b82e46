"""Quality reports of gates and checks: counts per expectation, and keys of some failing rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time

import pyarrow as pa

from memwal.format.values import to_python_rows
from memwal.quality.evaluate import ExpectationResult
from memwal.quality.expectations import Expectation
from memwal.util.records import JsonMapping, JsonObject

MAX_EXAMPLES = 5
"""Number of failing rows whose keys a report has, per expectation."""

MAX_CHARACTERS = 200
"""Length limit of a text in such a key: reports are stored in the catalog, logs and UI answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Result of one expectation over all rows that were evaluated."""

    expectation: Expectation
    success: bool  # whether every evaluation met the expectation
    failed: int  # failing rows, including those that ``mostly`` allows
    examples: tuple[JsonObject, ...] = ()  # keys of some of them
    error: str | None = None  # why the expectation could not be evaluated
    checked: int = 0  # values that were evaluated

    def to_dict(self) -> JsonObject:
        """Return plain values for JSON."""
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
    """Results of a suite over some rows."""

    mode: str  # mode of the gate, or ``check``
    rows: int = 0  # rows that were evaluated
    failed_rows: int = 0  # those of them that fail an expectation about rows
    quarantined_rows: int = 0  # rows that were kept out
    skipped_regions: tuple[str, ...] = ()  # regions that the gate did not let through
    tallies: tuple[Tally, ...] = ()  # in the order of the suite

    @property
    def success(self) -> bool:
        """Return whether every expectation was met."""
        return all(tally.success for tally in self.tallies)

    def warnings(self) -> tuple[str, ...]:
        """Describe all expectations that are not met in one line; empty if all are met."""
        failing = [tally for tally in self.tallies if not tally.success]
        if not failing:
            return ()
        names = "; ".join(
            f"{tally.expectation} {tally.error or f'fails for {tally.failed} rows'}"
            if tally.failed or tally.error
            else f"{tally.expectation} fails"
            for tally in failing
        )
        out = f"; {self.quarantined_rows} are in quarantine" if self.quarantined_rows else ""
        return (f"{self.failed_rows} of {self.rows} rows are not as expected{out}: {names}",)

    def to_dict(self) -> JsonObject:
        """Return plain values for JSON: the ``quality`` of a job result."""
        return {
            "mode": self.mode,
            "success": self.success,
            "rows": self.rows,
            "failed_rows": self.failed_rows,
            "quarantined_rows": self.quarantined_rows,
            "skipped_regions": list(self.skipped_regions),
            "expectations": [tally.to_dict() for tally in self.tallies],
        }


def tally_result(result: ExpectationResult, keys: pa.Table) -> Tally:
    """Count the failing rows of a result, and take some of their keys as examples."""
    examples: tuple[JsonObject, ...] = ()
    if result.failed is not None and result.failures:
        few = result.failed.nonzero()[0][:MAX_EXAMPLES]
        examples = tuple(keys_as_json(keys.take(pa.array(few)), max_characters=MAX_CHARACTERS))
    return Tally(
        expectation=result.expectation,
        success=result.success,
        failed=result.failures,
        examples=examples,
        error=result.error,
        checked=result.evaluated,
    )


def combine_reports(reports: Iterable[QualityReport]) -> QualityReport | None:
    """Combine reports about the same suite into one; None if there are none."""
    parts = list(reports)
    if not parts:
        return None
    whole = next((report for report in parts if report.tallies), parts[0])
    tallies = [
        combine_tallies([report.tallies[number] for report in parts if report.tallies])
        for number in range(len(whole.tallies))
    ]
    return replace(
        whole,
        rows=sum(report.rows for report in parts),
        failed_rows=sum(report.failed_rows for report in parts),
        quarantined_rows=sum(report.quarantined_rows for report in parts),
        skipped_regions=tuple(
            dict.fromkeys(region for report in parts for region in report.skipped_regions)
        ),
        tallies=tuple(tallies),
    )


def combine_tallies(parts: Sequence[Tally]) -> Tally:
    """Combine tallies of one expectation over different rows into one."""
    return replace(
        parts[0],
        success=all(part.success for part in parts),
        failed=sum(part.failed for part in parts),
        examples=tuple(key for part in parts for key in part.examples)[:MAX_EXAMPLES],
        error=next((part.error for part in parts if part.error), None),
        checked=sum(part.checked for part in parts),
    )


def merge_report_dicts(reports: Iterable[JsonMapping | None]) -> JsonObject | None:
    """Combine results of :meth:`QualityReport.to_dict` about the same suite into one."""
    parts = [part for part in reports if part is not None]
    if not parts:
        return None
    evaluated = [part["expectations"] for part in parts if part["expectations"]]
    counts = ("rows", "failed_rows", "quarantined_rows")
    return {
        **parts[0],
        **{count: sum(part[count] for part in parts) for count in counts},
        "success": all(part["success"] for part in parts),
        "skipped_regions": list(
            dict.fromkeys(region for part in parts for region in part["skipped_regions"])
        ),
        "expectations": [
            {
                **same[0],
                "success": all(tally["success"] for tally in same),
                "failed": sum(tally["failed"] for tally in same),
                "examples": [key for tally in same for key in tally["examples"]][:MAX_EXAMPLES],
                "error": next((tally["error"] for tally in same if tally["error"]), None),
            }
            for same in zip(*evaluated, strict=True)
        ],
    }


def keys_as_json(keys: pa.Table, *, max_characters: int | None = None) -> list[JsonObject]:
    """Convert keys to values that JSON has, with texts cut at ``max_characters``."""
    return [
        {name: _value_as_json(value, max_characters) for name, value in row.items()}
        for row in to_python_rows(keys)
    ]


def _value_as_json(value: object, max_characters: int | None) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    text = value.hex() if isinstance(value, bytes) else str(value)
    if max_characters is None or len(text) <= max_characters:
        return text
    return f"{text[:max_characters]}..."
