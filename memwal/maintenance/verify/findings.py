"""What a verification says: findings, and the report that holds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from memwal.maintenance.verify.codes import CODES, Repair, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it must be. Make one with :meth:`of`.

    Attributes
    ----------
    code : str
        A key of :data:`CODES`; it never changes its meaning.
    region : UUID or None
        None for the table itself.
    object : str
        What it is about: a key below the table, or the name of an index or a spec.
    text : str
        What is wrong there, in words.
    """

    code: str
    region: UUID | None
    object: str
    text: str

    @classmethod
    def of(cls, code: str, object: str, text: str, *, region: UUID | None = None) -> Finding:
        """A finding of a known code.

        Parameters
        ----------
        code : str
            One of ``CODES``.
        object : str
            The object that it is about, below the table.
        text : str
            What is wrong there.
        region : UUID, optional
            None for the table as a whole.
        """
        return cls(code=code, region=region, object=object, text=text)

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return CODES[self.code].severity

    @property
    def repair(self) -> Repair | None:
        """Which repair is safe; None when a person has to look."""
        return CODES[self.code].repair

    @property
    def advice(self) -> str:
        """What to do, or what the repair does."""
        return CODES[self.code].advice

    @property
    def identity(self) -> tuple[str, UUID | None, str]:
        """What stays the same when it is found again."""
        return self.code, self.region, self.object

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "region": str(self.region) if self.region is not None else None,
            "object": self.object,
            "text": self.text,
            "repair": self.repair.value if self.repair is not None else None,
            "advice": self.advice,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a verification found.

    Attributes
    ----------
    table : str
        URI of the table.
    version : int
        Version of the base table when it began; 0 when none can be read.
    regions, tasks : int
        Regions that were looked at, in so many tasks.
    seconds : float
        Wall time.
    findings : tuple of Finding
        Worst first.
    """

    table: str
    version: int
    regions: int = 0
    tasks: int = 0
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()

    def count(self, severity: Severity) -> int:
        """Findings of a severity.

        Parameters
        ----------
        severity : Severity
            Which are counted.
        """
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def clean(self) -> bool:
        """Whether there is nothing but information."""
        return all(finding.severity is Severity.INFORMATION for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "table": self.table,
            "version": self.version,
            "regions": self.regions,
            "tasks": self.tasks,
            "seconds": self.seconds,
            "errors": self.count(Severity.ERROR),
            "warnings": self.count(Severity.WARNING),
            "findings": [finding.to_dict() for finding in self.findings],
        }


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings, errors before warnings before information, each once."""
    order = list(Severity)
    return tuple(
        sorted(
            dict.fromkeys(findings),
            key=lambda finding: (
                order.index(finding.severity),
                str(finding.region or ""),
                finding.code,
                finding.object,
            ),
        )
    )
