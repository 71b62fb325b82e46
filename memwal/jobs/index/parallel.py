"""Parallel index build: each task indexes some fragments, and one commit adds all parts.

A part is a segment over its fragments, with the parameters of the index it belongs to: those of a
text index's tokenizer; of a vector index the centroids, the codebook and the rotation. The parts
are joined into one segment, which is committed beside the existing ones.

No version names a part before that commit. A process that dies leaves the files of the parts
behind, which are collected as stale index files; a process that repeats the build builds new parts.
Merges may be committed between the parts and the commit: the segment covers the fragments it was
built over, and Lance records the generations of the version that the parts were built on. A
compaction that rewrote one of the fragments makes the commit fail as a conflict, and the parts are
built again from the version of then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import lance

from memwal.base_table.commit import commit_durably, is_conflict
from memwal.base_table.snapshot import BaseTable, open_base, translate_lance_error
from memwal.errors import ConflictError, TableSetupError
from memwal.lsm.indexes.maintained import MaintainedIndex, maintained_index
from memwal.storage.location import TableLocation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lance.dataset import Index


@dataclass(frozen=True, slots=True)
class PartTask:
    """Index some fragments of one version."""

    location: TableLocation
    version: int
    index: str
    fragments: tuple[int, ...]


def run_part_task(task: PartTask) -> Index:
    """Write one part; no version names it yet.

    Raises
    ------
    TableSetupError
        In the task's version the index does not exist or is not maintained, or its kind cannot be
        built in parts.
    MemWalError
        The store failed.
    """
    base = open_base(task.location, version=task.version)
    index = maintained_index(base, task.index)
    part = None
    try:
        if index is not None:
            part = index.spec.build(
                base.dataset, name=index.name, column=index.column, fragment_ids=task.fragments
            )
    except (OSError, RuntimeError, ValueError) as error:
        raise translate_lance_error(error, f"building a part of index {task.index}") from error
    if part is None:
        raise TableSetupError(f"index {task.index} of {task.location} cannot be built in parts")
    return part


def commit_parts(base: BaseTable, index: MaintainedIndex, parts: Sequence[Index]) -> None:
    """Join parts that were built on ``base`` and add them to their index, durably.

    Raises
    ------
    ConflictError
        Another commit rewrote fragments of the parts, or replaced the index. Nothing was changed.
    MemWalError
        The store failed.
    """

    def commit(dataset: lance.LanceDataset) -> None:
        dataset.commit_existing_index_segments(index.name, index.column, [segment])

    try:
        segment = parts[0]
        if len(parts) > 1 or index.kind.parts_need_merge:
            segment = base.dataset.merge_existing_index_segments(list(parts))
        commit_durably(base, commit)
    except (OSError, RuntimeError, ValueError) as error:
        if is_conflict(error):
            raise ConflictError(
                f"parts of index {index.name} met another commit, build them again: {error}"
            ) from error
        raise translate_lance_error(error, f"adding parts to index {index.name}") from error
