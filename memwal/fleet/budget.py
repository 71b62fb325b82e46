"""What a fleet may use, and what it tells of what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memwal.errors import InvalidInputError
from memwal.fleet.order import Skipped
from memwal.maintenance.results import JobResult

if TYPE_CHECKING:
    from memwal.catalog.setbacks import Trouble

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a fleet may use.

    Attributes
    ----------
    jobs : int, default 2
        Jobs that run at once, each in a thread of this process.
    bytes : int or None, default 4 GiB
        Bytes in memory that the merges at work take in together; one that does not fit whole is
        done in part. None sets no limit. A single generation that is larger still goes.
    looks : int, default 8
        Tables that are looked at at once.

    Raises
    ------
    InvalidInputError
        One of them is less than 1.
    """

    jobs: int = 2
    bytes: int | None = 4 * _GIB
    looks: int = 8

    def __post_init__(self) -> None:
        if min(self.jobs, self.looks, self.bytes if self.bytes is not None else 1) < 1:
            raise InvalidInputError("jobs, bytes and looks of a budget must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a job, or of a look at a table.

    Attributes
    ----------
    table, job : str
        ``job`` is ``look`` for a look at the table that failed.
    reason : str
        Why it was run.
    result : JobResult or Skipped or None
        None when it failed, or was told to end.
    trouble : Trouble or None
        What went wrong, and when it is tried again.
    """

    table: str
    job: str
    reason: str
    result: JobResult | Skipped | None = None
    trouble: Trouble | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "table": self.table,
            "job": self.job,
            "reason": self.reason,
            "result": None if self.result is None else self.result.to_dict(),
            "trouble": None if self.trouble is None else self.trouble.to_dict(),
        }
