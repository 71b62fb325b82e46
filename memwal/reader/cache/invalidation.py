"""Drop cached values that belong to states of a table older than its newest version.

Otherwise they would stay until the limits push them out: data sets with all that Lance has read of
them, keys, vectors, and texts of generations that are long merged and collected. A read that uses
such a value at this moment goes on with what it holds, or starts over if it needs more of a
generation that is collected by then.
"""

from __future__ import annotations

from collections.abc import Collection

from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.errors import MemWalError
from memwal.reader.cache.keys import CacheTag, GenerationTag, SegmentTag, VersionTag, version_key
from memwal.reader.cache.lru import all_caches
from memwal.util.concurrency import Lazy
from memwal.util.memory import release_free_memory


def invalidate_stale(newest: BaseTable, others: Collection[BaseTable]) -> None:
    """Forget what no read of the newest version of a table needs.

    That is all that belongs to other versions, to generations that are in the base table and in
    its maintained indexes, and to segments of indexes that are not there any more.

    Parameters
    ----------
    newest : BaseTable
    others : collection of BaseTable
        Versions, of any table, that are read as well.
    """
    outdated = _StaleTags(newest, others)
    forgotten = [
        kept.forget([name for name in kept.names() if outdated.has(name)]) for kept in all_caches()
    ]
    if any(forgotten):
        release_free_memory()


class _StaleTags:
    """Tells what is outdated."""

    def __init__(self, newest: BaseTable, others: Collection[BaseTable]) -> None:
        self._newest = newest
        uri = newest.location.uri
        versions = {version_key(base): base for base in (newest, *others)}
        self._versions = {key: base for key, base in versions.items() if key.uri == uri}
        # Read only if anything of an index is kept.
        self._segments = Lazy(lambda: set().union(*map(_segments, self._versions.values())))

    def has(self, name: CacheTag) -> bool:
        """Whether it is."""
        if name.uri != self._newest.location.uri:
            return False
        if isinstance(name, VersionTag):
            return name not in self._versions
        if isinstance(name, SegmentTag):
            return name.uuid not in self._segments()
        return name.number <= self._settled(name)

    def _settled(self, generation: GenerationTag) -> int:
        """Newest generation of the region that is merged, and in every maintained index."""
        details = self._newest.details
        names = details.catchup if details.maintain_all_indexes else details.maintained_indexes
        progress = (details.merged, *(details.catchup.get(name, {}) for name in names))
        return min(covered.get(generation.region_id, 0) for covered in progress)


def _segments(base: BaseTable) -> set[str]:
    """Those that a version has; none when it was cleaned up, and nobody can read it any more."""
    try:
        with lance_errors(f"reading the indexes of {base.location}"):
            indexes = base.dataset.describe_indices()
    except MemWalError:
        return set()
    return {segment.uuid for index in indexes for segment in index.segments}
