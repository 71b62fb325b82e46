"""The status of tables that are not there."""

from typing import Any

from memwal.jobs.status import IndexLag, RegionBacklog, TableStatus


def region_id(number: int) -> str:
    """The id of a region."""
    return f"00000000-0000-0000-0000-{number:012}"


def region(number: int = 0, **values: Any) -> RegionBacklog:
    """A region with nothing to do but what is said."""
    idle: dict[str, Any] = {
        "region_id": region_id(number),
        "writer_epoch": 1,
        "sealed": False,
        "current_generation": 5,
        "merged_generation": 0,
        "backlog_generations": 0,
        "backlog_rows": 0,
        "backlog_bytes": 0,
        "oldest_backlog_seconds": None,
        "unflushed_wal_entries": 0,
        "retained_generations": 0,
    }
    return RegionBacklog(**{**idle, **values})


def status(*regions: RegionBacklog, lag: int = 0, **values: Any) -> TableStatus:
    """A status of these regions, with one index."""
    index = IndexLag(name="id_idx", generations=lag, regions=min(lag, 1), rows=10 * lag)
    found: dict[str, Any] = {
        "uri": "/lake/flights",
        "version": 3,
        "regions": regions or (region(),),
        "indexes": (index,),
        "snapshot_age_seconds": 1.0,
        "base_rows": 100,
        "base_bytes": 1000,
    }
    return TableStatus(**{**found, **values})
