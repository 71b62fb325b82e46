"""Fragments of a version: their sizes, which are small or sparse, and which a compaction joins.

Lance's planner counts rows only: of wide rows, which never reach its limit, it would rewrite all in
every pass. It decides here only which fragments may be joined: neighbours that the same indexes
cover, since a rewrite moves the rows in the indexes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import lance
import numpy as np
from lance.optimize import Compaction, CompactionOptions, CompactionTask

from memwal.base_table.blobs import is_blob_v2
from memwal.base_table.named_files import stored_blobs
from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.lance_files import FragmentState, NamedFile, deleted_rows, fragment_numbers
from memwal.format.lance_manifest import manifest_message
from memwal.storage.object_store import ObjectStore
from memwal.util.arrays import Addresses, Mask, Numbers

# A fragment may be smaller than the fragments that it was made of: they have a header each, and
# encodings of more values are better. Without a margin it could be small again.
_MARGIN: Final = 1.125
# Lance rewrites fragments with a larger share of deleted rows than the threshold; ours include it.
_ABOVE: Final = 0.999
# Lance rewrites a fragment with more, independent of its size.
_MAX_OVERLAYS: Final = 10
# Lance's planner then cuts no run of neighbours, and leaves none out.
_NO_LIMIT: Final = 1 << 62
# Lance decodes a batch per processor at once, and keeps the rows it has read ahead.
_BATCH_BYTES: Final = 4 << 20
_MAX_BATCH_ROWS: Final = 8_192
READ_AHEAD_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class FragmentLimits:
    """Sizes of fragments that a compaction leaves alone."""

    target_rows: int
    """A fragment with fewer rows, and fewer bytes than ``target_bytes``, is small."""
    target_bytes: int
    """Bytes on storage."""
    deleted_percent: int | None = None
    """Percentage of deleted rows from which a fragment is sparse; None: no fragment is."""


@dataclass(frozen=True, slots=True)
class FragmentSizes:
    """Sizes of fragments as the manifest of a version has them, in the order of their ids."""

    ids: Numbers
    rows: Numbers  # with deleted rows
    deleted: Numbers  # rows
    # Bytes of the files, and of blobs beside them; those count as 0 whose writer recorded no size.
    stored: Numbers
    overlays: Numbers  # files
    unrecorded: Numbers  # files whose writer recorded no size

    @property
    def live_rows(self) -> Numbers:
        """Rows that a rewrite keeps."""
        return self.rows - self.deleted

    @property
    def live_bytes(self) -> Numbers:
        """Bytes of the rows that a rewrite keeps, about."""
        return (self.stored * (self.live_rows / np.maximum(self.rows, 1))).astype(np.int64)

    def small(self, limits: FragmentLimits) -> Mask:
        """Tell which fragments are to be joined with neighbours."""
        small = (self.rows < limits.target_rows) & (self.stored < limits.target_bytes)
        return small | (self.overlays > _MAX_OVERLAYS)

    def sparse(self, limits: FragmentLimits) -> Mask:
        """Tell which fragments are to be rewritten for their deleted rows."""
        if limits.deleted_percent is None:
            return np.zeros(len(self.ids), bool)
        return 100 * self.deleted >= limits.deleted_percent * self.rows


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Neighbouring fragments of a version to join, or one to divide or to clean."""

    task: CompactionTask
    fragments: frozenset[int]
    rows: int  # with deleted rows
    stored: int  # bytes that are read


def fragment_sizes(base: BaseTable) -> FragmentSizes:
    """Return the sizes of all fragments, with their blobs.

    Sends no request, unless there are blobs beside the data files: then they are listed.
    """
    blobs = Counter[str]()
    if any(map(is_blob_v2, base.dataset.schema)):
        for key, blob in stored_blobs(base.location, base.manifest).items():
            name = key.rpartition("/")[0].removeprefix("data/")
            blobs[f"{name}.lance"] += blob.size or 0
    message = manifest_message(base.manifest)
    return FragmentSizes(*fragment_numbers(message, blobs).T)


def batch_rows(dataset: lance.LanceDataset, columns: Collection[str], *, most: int) -> int:
    """Return how many rows of some columns a scan is to read at a time, ``most`` at most.

    They have about 4 MiB on storage. With a number of bytes as the limit (``batch_size_bytes``),
    Lance holds all rows of a fragment in memory. Reads the end of each data file.
    """
    fields = [field for field in dataset.lance_schema.fields() if field.name() in columns]
    ids = {child.id() for field in fields for child in (field, *_descendants(field))}
    stored = dataset.stats.data_stats().fields
    size = sum(field.bytes_on_disk for field in stored if field.id in ids)
    return _rows_of(size / max(dataset.count_rows(), 1), most)


def _descendants(field: Any) -> Iterator[Any]:
    for child in field.children():
        yield child
        yield from _descendants(child)


def _rows_of(width: float, most: int) -> int:
    """Return the number of rows of ``width`` bytes in a batch, at most ``most``."""
    return min(max(int(_BATCH_BYTES / max(width, 1)), 1), most)


@dataclass(frozen=True, slots=True)
class SmallRuns:
    """Runs of neighbouring small fragments of a version."""

    ids: frozenset[int]
    """Of the fragments: small ones without a neighbour to be joined with are in no run."""
    tasks: list[dict[str, Any]]
    """Lance's, as JSON."""


def small_runs(base: BaseTable, sizes: FragmentSizes, limits: FragmentLimits) -> SmallRuns:
    """Return the runs of small fragments."""
    runs = _runs(base, sizes, sizes.small(limits), deleted_percent=None)
    ids = frozenset(fragment["id"] for run in runs for fragment in run["task"]["fragments"])
    return SmallRuns(ids, runs)


def sparse_fragment_ids(sizes: FragmentSizes, limits: FragmentLimits) -> frozenset[int]:
    """Return the ids of the sparse fragments."""
    return frozenset(sizes.ids[sizes.sparse(limits)].tolist())


def plan_rewrites(
    base: BaseTable,
    sizes: FragmentSizes,
    limits: FragmentLimits,
    chosen: frozenset[int],
    *,
    small: SmallRuns | None = None,
) -> Iterator[Rewrite]:
    """Group the ``chosen`` fragments, small or sparse, by the rewrite that joins them.

    ``small`` are the :func:`small_runs`, if they are known: where nothing else is chosen, Lance
    plans them once.

    Neighbours are joined, in their order, until they reach a target. The last fragments, if they
    reach no target, are joined with the fragments before them. Neighbours that all together reach
    no target become one small fragment: where all were joined before, it is the only old one that
    is rewritten with new ones.
    """
    if small is not None and small.ids == chosen and not sizes.sparse(limits).any():
        runs = small.tasks
    else:
        mask = np.isin(sizes.ids, list(chosen))
        runs = _runs(base, sizes, mask, deleted_percent=limits.deleted_percent)
    for run in runs:
        fragments = run["task"]["fragments"]
        at = np.searchsorted(sizes.ids, [fragment["id"] for fragment in fragments])
        rows, stored = sizes.live_rows[at], sizes.live_bytes[at]
        for part in _divide(rows, stored, limits):
            yield _rewrite(run, fragments[part], sizes, at[part], limits)


def _runs(
    base: BaseTable, sizes: FragmentSizes, chosen: Mask, *, deleted_percent: int | None
) -> list[dict[str, Any]]:
    """Return Lance's tasks for each run of neighbours that are ``chosen``, as JSON.

    A fragment without a neighbour is in none of them, unless it is to be rewritten for its own
    sake. The attribute ``fragments`` of a task raises KeyError for fragments with overlays.
    """
    # Overrides the configuration of the table. Lance refuses a limit of bytes where a size was not
    # recorded.
    unlimited = ["target_rows_per_fragment", "max_source_fragments", "max_source_rows"]
    if not sizes.unrecorded.any():
        unlimited.append("max_source_bytes")
    options: dict[str, Any] = {
        "materialize_deletions": deleted_percent is not None,
        "materialize_deletions_threshold": _ABOVE * (deleted_percent or 0) / 100,
        "excluded_fragment_ids": sizes.ids[~chosen].tolist(),
        **dict.fromkeys(unlimited, _NO_LIMIT),
    }
    with lance_errors(f"planning the compaction of {base.location}"):
        plan = Compaction.plan(base.dataset, cast(CompactionOptions, options))
        return [json.loads(task.json()) for task in plan.tasks]


def _divide(rows: Numbers, stored: Numbers, limits: FragmentLimits) -> Iterator[slice]:
    """Cut a run of fragments, of these live rows and bytes, where a part reaches a target."""
    counts = np.concatenate(([0], np.cumsum(rows)))
    sizes = np.concatenate(([0], np.cumsum(stored)))
    target_bytes = int(_MARGIN * limits.target_bytes)

    def first_stop(start: int) -> int:
        """Return where the shortest part that reaches a target ends; behind the last if none."""
        by_rows = np.searchsorted(counts, counts[start] + limits.target_rows)
        return int(min(by_rows, np.searchsorted(sizes, sizes[start] + target_bytes)))

    start, stop = 0, first_stop(0)
    while stop <= len(rows):
        following = first_stop(stop)
        if following > len(rows):
            break
        yield slice(start, stop)
        start, stop = stop, following
    yield slice(start, len(rows))


def _rewrite(
    run: dict[str, Any],
    fragments: list[dict[str, Any]],
    sizes: FragmentSizes,
    at: Numbers,
    limits: FragmentLimits,
) -> Rewrite:
    """Return the rewrite of some fragments of a run, ``at`` these places of ``sizes``."""
    rows = int(sizes.live_rows[at].sum())
    # New fragments that reach a target each: more than one only for a huge fragment.
    by_bytes = int(sizes.live_bytes[at].sum() / (_MARGIN * limits.target_bytes))
    count = max(rows // limits.target_rows, by_bytes, 1)
    # Batches of the fragment with the widest rows have a limited size.
    width = float((sizes.stored[at] / np.maximum(sizes.rows[at], 1)).max())
    options = {
        **run["options"],
        "target_rows_per_fragment": max(-(-rows // count), 1),
        "excluded_fragment_ids": [],
        "batch_size": _rows_of(width, _MAX_BATCH_ROWS),
        "io_buffer_size": READ_AHEAD_BYTES,
    }
    planned = {**run, "task": {"fragments": fragments}, "options": options}
    return Rewrite(
        CompactionTask.from_json(json.dumps(planned)),
        frozenset(sizes.ids[at].tolist()),
        int(sizes.rows[at].sum()),
        int(sizes.stored[at].sum()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class FragmentStates:
    """Fragments of a version, by their ids and in order; equal digests have equal states."""

    states: Mapping[int, FragmentState]
    digest: bytes

    @classmethod
    def of(cls, states: Mapping[int, FragmentState]) -> FragmentStates:
        """Hash some states."""
        digest = hashlib.blake2b()
        for number, state in states.items():
            deletions = state.deletions.key if state.deletions is not None else ""
            digest.update(f"{number} {len(state.files)} {deletions} ".encode() + state.files)
        return cls(states, digest.digest())

    def changes_since(self, earlier: FragmentStates, store: ObjectStore) -> FragmentChanges:
        """Compare with another version, of which at most the deletion files are read.

        A fragment with the same files has the same rows in every version, in any history of the
        table, since no file is written twice. If only more of them are deleted, it did not change.
        If the table went back to an older state, rows that were deleted are there again: then it
        did, and also if a clean-up took the earlier deletion file.
        """
        changed: set[int] = set()
        deleted = [np.empty(0, np.uint64)]
        for number, state in self.states.items():
            before = earlier.states.get(number)
            if before == state:
                continue
            rows = None
            if before is not None and before.files == state.files:
                rows = _deleted_since(store, before.deletions, state.deletions)
            if rows is None:
                changed.add(number)
            else:
                deleted.append(rows + np.uint64(number << 32))
        return FragmentChanges(frozenset(changed), np.sort(np.concatenate(deleted)))


@dataclass(frozen=True, slots=True, eq=False)
class FragmentChanges:
    """Changes of a version against another one."""

    fragments: frozenset[int]  # that are new, or have rows that the other version does not have
    deleted: Addresses  # all deleted rows of the others, if more are deleted; ascending


def _deleted_since(
    store: ObjectStore, before: NamedFile | None, now: NamedFile | None
) -> Addresses | None:
    """Return the deleted rows of a fragment; None if others were deleted before, or may have been.

    Both are deletion files of the same fragment.
    """
    if now is None:
        return None
    try:
        after, earlier = (
            np.empty(0, np.uint32) if file is None else deleted_rows(store.get(file.key), file.kind)
            for file in (now, before)
        )
    except (CorruptDataError, ObjectNotFoundError):
        # The caller reads the rows, by Lance, which names the fault.
        return None
    return after.astype(np.uint64) if np.isin(earlier, after).all() else None
