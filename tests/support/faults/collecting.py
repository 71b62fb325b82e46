"""Collecting garbage at any time of a test's choosing."""

import time
from datetime import timedelta
from typing import Any

from support.data.tables import later, region_folders

import memwal
from memwal.jobs.gc import CollectionResult, collect_garbage
from memwal.jobs.options import GcOptions
from memwal.region import manifest_store

GRACE = timedelta(minutes=10)
HOUR = 3600.0
DAY = 24 * HOUR


def collect(table: memwal.Table, seconds: float = 0.0, **options: Any) -> CollectionResult:
    """Collect for good, as of so many seconds from now.

    Neither versions nor claims of other clients keep generations. What readers of this process
    believe for some seconds is forgotten, since so much time is to have passed.
    """
    manifest_store._last_seen.clear()
    options.setdefault("grace_seconds", GRACE.total_seconds())
    options.setdefault("retention_seconds", 0)
    options.setdefault("foreign_claim_seconds", 0)
    options.setdefault("dry_run", False)
    return collect_garbage(table.location, GcOptions(**options), clock=later(seconds))


def drop(table: memwal.Table) -> int:
    """Let the manifests stop naming what is merged, and delete nothing yet.

    The clock is ahead by just so much that what was merged is a grace period old, and what this
    very run writes is not.
    """
    folders = region_folders(table)
    time.sleep(0.1)
    ahead = GRACE.total_seconds() - 0.05
    dropped = collect(table, ahead).metrics["generations_dropped"]
    assert region_folders(table) == folders
    return dropped
