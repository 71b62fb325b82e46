"""Commit parts of an index that tasks built."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import lance
from lance.dataset import Index

from memwal.base_table.commit import commit_durably
from memwal.base_table.named_files import find_bad_files, refuse
from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.format.lance_files import FileKind, NamedFile
from memwal.format.paths import index_file_key
from memwal.lsm.indexes.maintained import MaintainedIndex


def commit_parts(base: BaseTable, index: MaintainedIndex, parts: Sequence[Index]) -> None:
    """Join parts that were built on ``base`` and add them to their index, durably.

    They replace the segments that cover the same fragments.

    Raises LostRaceError if another commit rewrote fragments of the parts, or replaced the index,
    LostWriteError if a file of a part or of the joined segment was not written whole.
    """
    doing = f"adding parts to index {index.name}"
    segment = parts[0]
    folders = [index_file_key(UUID(part.uuid), "").rstrip("/") for part in parts]
    written = [NamedFile(folder, FileKind.SEGMENT) for folder in folders]
    refuse(find_bad_files(base.location.store, written))
    if len(parts) > 1 or index.kind.parts_need_merge:
        with lance_errors(doing):
            segment = base.dataset.merge_existing_index_segments(list(parts))

    def commit(dataset: lance.LanceDataset) -> None:
        dataset.commit_existing_index_segments(index.name, index.column, [segment])

    commit_durably(base, commit, doing=doing)
