"""Snapshots of an open region, for tests of what is made of them."""

from dataclasses import replace
from typing import Any

from memwal.writer.region_writer.stats import RegionCounters, RegionStats


def region_stats(counters: RegionCounters, **state: Any) -> RegionStats:
    """Make a snapshot of a region with empty MemTables, except for the fields in ``state``."""
    empty = RegionStats(
        region_id=counters.region_id,
        epoch=1,
        generation=1,
        next_position=1,
        totals=counters.totals(),
        memtable_rows=0,
        memtable_bytes=0,
        memtable_batches=0,
        memtable_age_seconds=0.0,
        sealed_memtables=0,
        sealed_bytes=0,
        unflushed_age_seconds=0.0,
        buffered_writes=counters.buffered_writes,
        buffered_bytes=counters.buffered_bytes,
        last_error=counters.last_error,
        fenced=False,
    )
    return replace(empty, **state)
