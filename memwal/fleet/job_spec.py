"""Job spec: a job with its policy limits and skipped regions; or the reason why it is skipped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from memwal.catalog.records import ManagedTable
from memwal.errors import InvalidInputError
from memwal.jobs.policy import Policy
from memwal.quality.rules import QualityRules


class Why(StrEnum):
    """Why nothing was done."""

    NOT_DUE = "not due"
    QUIET = "quiet hours"
    AT_WORK = "at work"
    HELD = "held"
    DRY_RUN = "dry run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A job that was not done, and need not be tried again at once.

    Attributes
    ----------
    job, table : str
        Which job of which managed table.
    why : Why
    reason : str
        The same for people, with figures.
    """

    job: str
    table: str
    why: Why
    reason: str

    def __str__(self) -> str:
        return f"{self.job} of {self.table} skipped: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "job": self.job,
            "table": self.table,
            "skipped": self.why.value,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job as it is to be done: the policy's limits, and who is left out.

    Attributes
    ----------
    job : str
        One of :data:`memwal.jobs.due.JOBS`.
    table : ManagedTable
    regions : tuple of UUID or None
        Merge these only; None for all.
    skip : tuple of UUID
        Do not merge these: they are held, and their next try is not due.
    index : str or None
        Build this index only; None for all.
    run_bytes : int or None
        Most bytes in memory that a merge takes in.
    max_tasks : int
        Into how many tasks the regions are divided at most.
    dry_run : bool
        Only count what a collection would delete.
    force : bool
        Somebody wants it now, however little there is to do.
    alone : bool
        It is the job's turn (:mod:`memwal.fleet.exclusive`): others wait for it.
    """

    job: str
    table: ManagedTable
    regions: tuple[UUID, ...] | None = None
    skip: tuple[UUID, ...] = ()
    index: str | None = None
    run_bytes: int | None = None
    max_tasks: int = 1
    dry_run: bool = False
    force: bool = False
    alone: bool = False

    @property
    def policy(self) -> Policy:
        """The policy of the table."""
        return self.table.policy

    @property
    def rules(self) -> QualityRules:
        """What the policy says about the quality of rows.

        Raises
        ------
        InvalidInputError
            It has no suite.
        """
        rules = self.policy.quality
        if rules is None or not rules.suite:
            raise InvalidInputError(
                f"the policy of {self.table.name} has no suite; give it one with memwal quality set"
            )
        return rules

    def arguments(self) -> list[str]:
        """Options of ``spark_apps/{job}.py`` that do the same, without table and credentials."""
        match self.job:
            case "merge":
                found = ["--commit-bytes", str(self.policy.merge_commit_bytes)]
                if self.run_bytes is not None:
                    found += ["--run-bytes", str(self.run_bytes)]
                for region in self.regions or ():
                    found += ["--region", str(region)]
                for region in self.skip:
                    found += ["--skip-region", str(region)]
                if self.policy.quality is not None and self.policy.quality.gates:
                    found += ["--quality", json.dumps(self.policy.quality.to_dict())]
                return found
            case "index":
                return [] if self.index is None else ["--index", self.index]
            case "compact":
                found = ["--min-fragments", str(self.min_fragments)]
                found += ["--commit-bytes", str(self.policy.merge_commit_bytes)]
                found += ["--attempts", str(self.attempts)]
                if self.max_commits is not None:
                    found += ["--max-commits", str(self.max_commits)]
                return found
            case "gc":
                return [
                    "--dry-run" if self.dry_run else "--execute",
                    *("--grace-seconds", f"{self.policy.gc_grace_seconds:g}"),
                    *("--retention-seconds", f"{self.policy.gc_retention_seconds:g}"),
                    *("--index-seconds", f"{self.policy.gc_index_age_seconds:g}"),
                    *(["--base-versions"] if self.version_seconds is not None else []),
                    *(
                        ["--version-seconds", f"{self.version_seconds:g}"]
                        if self.version_seconds
                        else []
                    ),
                ]
            case "quality":
                found = ["--quality", json.dumps(self.rules.to_dict())]
                if self.rules.check_sample_rows is not None:
                    found += ["--sample-rows", str(self.rules.check_sample_rows)]
                return found
            case _:
                return []

    @property
    def min_fragments(self) -> int:
        """How many small fragments a compaction starts with."""
        return 2 if self.force else self.policy.compact_at_fragments or 2

    @property
    def attempts(self) -> int:
        """How many rewrites of a compaction may be lost: few, since it gets a turn then."""
        return 2

    @property
    def max_commits(self) -> int | None:
        """How many commits a compaction makes at most; others do not wait for more than one."""
        return 1 if self.alone else None

    @property
    def version_seconds(self) -> float | None:
        """Age at which a collection cleans versions of the base table up; None keeps them all."""
        return self.policy.version_retention_seconds
