"""Checking every invariant of a table, and healing what can be healed without a doubt."""

from memwal.maintenance.verify.codes import CODES, Repair, Severity
from memwal.maintenance.verify.findings import Finding, VerifyReport
from memwal.maintenance.verify.plan import Depth
from memwal.maintenance.verify.repair import RepairAction, repair
from memwal.maintenance.verify.run import verify

__all__ = [
    "CODES",
    "Depth",
    "Finding",
    "Repair",
    "RepairAction",
    "Severity",
    "VerifyReport",
    "repair",
    "verify",
]
