"""How a verification is divided into tasks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from uuid import UUID

from memwal.region.discovery import discover_regions
from memwal.storage.location import TableLocation


class Depth(Enum):
    """How much is read."""

    QUICK = "quick"
    """Names, manifests and schemas, and no rows."""

    FULL = "full"
    """All rows of the log and of generations, and the keys of the base table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTask:
    """A share of a table that one worker checks.

    Attributes
    ----------
    regions : tuple of UUID
        Regions to check; empty for the base table itself.
    all_regions : bool
        Of the base table: whether the regions were not restricted, so that what is said of
        regions can be compared with all that there are.
    sample : int or None
        So many generations of each region have their rows read; all by default.
    now : datetime
        When the job began, in UTC.
    """

    location: TableLocation
    regions: tuple[UUID, ...]
    all_regions: bool
    depth: Depth
    sample: int | None
    now: datetime


def plan_verify(
    location: TableLocation,
    *,
    regions: Collection[UUID] | None,
    depth: Depth,
    sample: int | None,
    max_tasks: int,
    now: datetime,
) -> tuple[VerifyTask, ...]:
    """One task for the base table, and a few for the regions."""
    wanted = discover_regions(location.store) if regions is None else sorted(set(regions))
    count = min(max_tasks, len(wanted))
    shares = [(), *(tuple(wanted[start::count]) for start in range(count))]
    return tuple(
        VerifyTask(
            location=location,
            regions=share,
            all_regions=regions is None,
            depth=depth,
            sample=sample,
            now=now,
        )
        for share in shares
    )
