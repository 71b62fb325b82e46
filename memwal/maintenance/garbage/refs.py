"""Tags and branches as objects: what tells that one of them came, went or was written again."""

from __future__ import annotations

from datetime import datetime

from memwal.storage.location import TableLocation
from memwal.table_index.read_tags import REFS_DIR

Refs = tuple[tuple[str, int, datetime], ...]
"""Key, size and time of each object that is a tag or a branch."""


def read_refs(location: TableLocation) -> Refs:
    """A state of tags and branches that differs after any change of them: one listing."""
    return tuple(sorted((i.key, i.size, i.modified) for i in location.store.list(REFS_DIR)))
