"""Sources of a read by a table, or by a writer that sees its own unflushed rows; its caches."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import memwal
from memwal.lsm.memtable.indexes import ClaimedRows
from memwal.reader.sources.cache import all_caches
from memwal.reader.sources.generation import ReadSources, open_sources
from memwal.reader.sources.plan import plan_read
from memwal.storage.location import TableLocation
from memwal.writer.table_writer import TableWriter


def collect_sources(
    location: TableLocation, claims: Mapping[UUID, ClaimedRows] | None = None, **options: Any
) -> ReadSources:
    """Plan a read and open its sources; ``options`` are those of ``plan_read``."""
    return open_sources(lambda reuse: plan_read(location, claims, reuse=reuse, **options))


def forget_caches() -> None:
    """Let this process know nothing of what it read before."""
    for cache in all_caches():
        cache.clear()


def sources_now(reads: memwal.Table | TableWriter) -> ReadSources:
    """Return the sources of a read that begins now."""
    claims = reads.claims() if isinstance(reads, TableWriter) else None
    return collect_sources(reads.location, claims)
