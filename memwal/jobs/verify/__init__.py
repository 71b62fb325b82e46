"""Verification of the invariants of a table, and repairs that are safe while it is in use."""

from __future__ import annotations

from memwal.jobs.verify.findings import CODES, Finding, FindingSeverity, Repair, VerifyReport
from memwal.jobs.verify.job import verify
from memwal.jobs.verify.repair import RepairAction, repair

__all__ = [
    "CODES",
    "Finding",
    "Repair",
    "RepairAction",
    "FindingSeverity",
    "VerifyReport",
    "repair",
    "verify",
]
