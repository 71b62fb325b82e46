"""Files of Lance that lost their last bytes, as on a disk that was full for a moment."""

from __future__ import annotations

import os
from collections.abc import Callable

from support.data.tables import folder

import memwal
from memwal.base_table.named_files import BadFile, find_bad_files
from memwal.base_table.snapshot import read_table_manifest
from memwal.format.lance_manifest import named_files


def cut_new_files(table: memwal.Table, pattern: str, size: int = 0) -> Callable[[], None]:
    """A function that cuts off every file of a pattern that was written since this call."""
    root = folder(table)
    before = set(root.glob(pattern))

    def cut() -> None:
        for path in set(root.glob(pattern)) - before:
            os.truncate(path, min(size, path.stat().st_size - 1) if path.stat().st_size else 0)

    return cut


def bad_files(table: memwal.Table) -> list[BadFile]:
    """Files of the newest version of the base table that were not written whole."""
    manifest = read_table_manifest(table.location, table.base().version)
    return find_bad_files(table.location.store, named_files(manifest))
