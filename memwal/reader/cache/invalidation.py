"""Remove cached values that belong to a table's versions before its newest one.

Otherwise they would stay until the limits evict them: data sets with all that Lance has read of
them, keys, vectors, and texts of generations that were merged and collected long ago. A read that
uses such a value meanwhile continues with its own reference, or starts over if it needs more of a
generation that is collected by then.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.errors import MemWalError
from memwal.reader.cache.keys import CacheTag, SegmentTag, VersionTag, version_key
from memwal.reader.cache.lru import all_caches
from memwal.util.concurrency import Lazy
from memwal.util.memory import release_free_memory


def invalidate_stale(newest: BaseTable, others: Collection[BaseTable]) -> None:
    """Remove the cached values that no read of the newest version of a table needs.

    These are the values of other versions, of generations that are merged and in every maintained
    index of the base table, and of index segments that no longer exist.

    Parameters
    ----------
    newest : BaseTable
    others : collection of BaseTable
        Versions, of any table, that are read as well.
    """
    stale = _StaleTags(newest, others)
    removed = [
        cache.invalidate([tag for tag in cache.tags() if tag in stale]) for cache in all_caches()
    ]
    if any(removed):
        release_free_memory()


class _StaleTags:
    """Tags of a table that no read needs any more."""

    def __init__(self, newest: BaseTable, others: Collection[BaseTable]) -> None:
        self._newest = newest
        uri = newest.location.uri
        versions = {version_key(base): base for base in (newest, *others)}
        self._versions = {key: base for key, base in versions.items() if key.uri == uri}
        # Read only if a cache has a value of an index segment.
        self._segments = Lazy(lambda: set().union(*map(_segments, self._versions.values())))

    def __contains__(self, tag: CacheTag) -> bool:
        if tag.uri != self._newest.location.uri:
            return False
        if isinstance(tag, VersionTag):
            return tag not in self._versions
        if isinstance(tag, SegmentTag):
            return tag.uuid not in self._segments()
        return tag.number <= self._settled(tag.region_id)

    def _settled(self, region_id: UUID) -> int:
        """Return the newest generation of a region that is merged and in every maintained index."""
        details = self._newest.details
        names = details.catchup if details.maintain_all_indexes else details.maintained_indexes
        progress = (details.merged, *(details.catchup.get(name, {}) for name in names))
        return min(covered.get(region_id, 0) for covered in progress)


def _segments(base: BaseTable) -> set[str]:
    """Return the index segments of a version; none if it was cleaned up and cannot be read."""
    try:
        with lance_errors(f"reading the indexes of {base.location}"):
            indexes = base.dataset.describe_indices()
    except MemWalError:
        return set()
    return {segment.uuid for index in indexes for segment in index.segments}
