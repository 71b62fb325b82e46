"""Find rows of the base table in the stored pages of the index on its key.

Pages that were read once stay in memory, so that a few keys are found without a query of Lance,
which takes longer to plan than to run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.paths import FRAG_REUSE_INDEX_NAME, INDICES_DIR
from memwal.lsm.indexes.segments import segment_location
from memwal.reader.base_indexes import find_index
from memwal.reader.cache.keys import version_key
from memwal.reader.cache.lru import LruCache
from memwal.reader.row_set import contains
from memwal.reader.sources.key_index import MAX_KEPT_BYTES, kept_bytes, page_hits
from memwal.storage.location import TableLocation
from memwal.util.arrays import RowIds
from memwal.util.log import warn_once

if TYPE_CHECKING:
    from lance.lance.indices import IndexSegmentDescription

logger = logging.getLogger(__name__)

_OFFSET_BITS: Final = np.uint64(32)
_VERSIONS: Final = 64

# Table and folder of each segment, and the fragments that it answers for, ascending.
_Segments = tuple[tuple[TableLocation, str, npt.NDArray[np.uint64]], ...]


def key_segments(base: BaseTable) -> Sequence[IndexSegmentDescription]:
    """Return the segments of the index on the key whose pages tell where rows are, if any do."""
    if len(base.primary_key) != 1:
        return ()
    (column,) = base.primary_key
    indexes = base.dataset.describe_indices()
    index = find_index(indexes, column, lambda kind: kind.finds_keys)
    # With stable row ids, an index may have these in place of addresses.
    if index is None or base.dataset.has_stable_row_ids or base.has_overlays:
        return ()
    # Its pages have rows where they were before a compaction, although it counts as covering the
    # new fragments: keys would be missed, and be in the table twice.
    if any(other.name == FRAG_REUSE_INDEX_NAME for other in indexes):
        return ()
    return index.segments


def addresses_in_pages(base: BaseTable, keys: pa.Array) -> RowIds | None:
    """Return the addresses of the rows that have some keys; None if pages do not tell all of them.

    Some may be of rows that were deleted, which Lance leaves out when it takes them. ``keys`` are
    distinct, as :func:`memwal.region.rows.key_column` gives them.
    """
    # In an object store, pages that are not in memory cost more requests than a query.
    if not base.location.store.is_local:
        return None
    found = [np.empty(0, np.uint64)]
    try:
        (segments,) = _segments.get(version_key(base), lambda: (_find_segments(base),))
        if segments is None:
            return None
        for location, folder, fragments in segments:
            hits = page_hits(location, folder, keys)
            if hits is None:
                return None
            found.append(hits.ids[contains(fragments, hits.ids >> _OFFSET_BITS)])
    except (CorruptDataError, ObjectNotFoundError) as error:
        warn_once(logger, "%s; keys are looked up by a query", str(error))
        return None
    return np.concatenate(found)


def _find_segments(base: BaseTable) -> _Segments | None:
    """Return the segments of the index on the key.

    None if they do not cover the whole table, or are too large to stay in memory: to read a page
    takes longer than a query of Lance for one key.
    """
    left = set(base.dataset.fragment_ids())
    segments = []
    for segment in key_segments(base):
        own = left & segment.fragment_ids
        left.difference_update(own)
        folder = f"{INDICES_DIR}/{segment.uuid}"
        location = segment_location(base, segment)
        segments.append((location, folder, np.array(sorted(own), np.uint64)))
    if left or sum(kept_bytes(at, folder) for at, folder, _ in segments) > MAX_KEPT_BYTES:
        return None
    return tuple(segments)


_segments: LruCache[tuple[_Segments | None]] = LruCache(_VERSIONS)
