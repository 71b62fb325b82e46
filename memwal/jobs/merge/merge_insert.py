"""Merges by Lance's ``merge_insert``: a pass that deletes keys, and a marked commit of rows.

What a process that pauses, dies or repeats does at each step:

* before the delete pass: nothing happened. Rows that the quality rules keep out are in the
  quarantine by then: :mod:`memwal.jobs.merge.screening`;
* between the delete pass and the marked commit: keys whose newest row is a tombstone are gone from
  the base table a little early. Every reader that merges sees them as deleted anyway, and the next
  run does both passes again;
* after the marked commit: the progress covers the generations, and every later attempt leaves them
  out. The region marks (:mod:`memwal.base_table.region_marks`) follow; a merge that dies before
  them leaves them behind the progress, and the next plan writes them.

A process that wakes late cannot do harm. Its delete pass is pinned to the version whose progress it
read, and is refused when any other commit touched the same rows since, or moved the progress of its
regions: the base table may have rows by then that came back after the delete. Its marked commit is
prepared on the version that the delete pass created, and is refused when the table was restored
since, which may bring the deleted rows back; when the progress is not below its marks; when another
merger moved the progress of its regions; and when another writer added rows that may have the same
keys.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

import lance
import pyarrow as pa
from lance.mem_wal import CompactedSsTable

from memwal.base_table.commit import commit_durably, write_rows_behind
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    ProgressLostError,
    TableSetupError,
)
from memwal.jobs.merge.picker import RegionSelection, still_pending
from memwal.lsm.indexes.unusable import unusable_indexes
from memwal.lsm.region_places import RegionPlaces
from memwal.reader.unreadable_indexes import is_index_damage
from memwal.telemetry.spans import ROWS, VERSION, span

logger = logging.getLogger(__name__)

# Below this many rows Lance's own index finds the matches faster than a join does.
_JOIN_FROM_ROWS = 1_000


def merge_by_lance(
    base: BaseTable,
    deletes: pa.Table,
    upserts: pa.Table,
    selections: Sequence[RegionSelection],
    *,
    counted: Counter[str],
    reopen: Callable[[int], BaseTable],
) -> None:
    """Delete keys, then upsert rows and record the progress of the selections, in a commit each.

    Adds to ``counted``, of a pass that was committed before the other one raised, too. ``reopen``
    opens the version that the first pass created, or raises LostRaceError if the rows must not be
    committed onto it. Raises LostRaceError if another commit was first.
    """
    if deletes.num_rows:
        deleted, version = _delete(base, deletes, selections)
        counted += deleted
        base = reopen(version)
    counted += _upsert(base, upserts, selections)


def _is_pending(base: BaseTable, selections: Sequence[RegionSelection]) -> bool:
    """Return whether a version has none of the selected generations, and did not go back."""
    try:
        return still_pending(selections, base.details.merged) == list(selections)
    except ProgressLostError:
        # The next attempt raises it.
        return False


def _delete(
    base: BaseTable, keys: pa.Table, selections: Sequence[RegionSelection]
) -> tuple[Counter[str], int]:
    """Delete keys from exactly the version that was read, or raise LostRaceError.

    Return the counts, and the version without the keys.
    """

    def execute(dataset: lance.LanceDataset, use_index: bool) -> Counter[str]:
        builder = dataset.merge_insert(list(base.primary_key)).when_matched_delete()
        return _execute(dataset, builder, keys, use_index)

    def accept(version: int) -> bool:
        try:
            return _is_pending(open_base(base.location, version=version), selections)
        except TableSetupError:
            # Cleaned up already.
            return False

    return _traced_commit("delete", base, keys, execute, accept=accept)


def _upsert(base: BaseTable, rows: pa.Table, selections: Sequence[RegionSelection]) -> Counter[str]:
    """Upsert the rows and record the progress in one commit, or raise LostRaceError."""

    def execute(dataset: lance.LanceDataset, use_index: bool) -> Counter[str]:
        builder = (
            dataset.merge_insert(list(base.primary_key))
            .when_matched_update_all()
            .when_not_matched_insert_all()
        )
        builder.mark_sstables_as_compacted(
            [CompactedSsTable(str(selection.region_id), selection.last) for selection in selections]
        )
        return _execute(dataset, builder, rows, use_index)

    accept = _can_rebase_onto(base, selections)
    with write_rows_behind(base.location, rows.nbytes):
        metrics, _ = _traced_commit("upsert", base, rows, execute, accept=accept)
    return metrics


def _can_rebase_onto(
    base: BaseTable, selections: Sequence[RegionSelection]
) -> Callable[[int], bool]:
    """Return a predicate: may this merge be rebased onto a version newer than ``base``?

    Lance's check looks for rows that both commits touched, and misses three cases, so each version
    in between is inspected:

    * it changed the merge progress of one of our regions: another merger may have merged one of
      several generations of ours, and inserted a key which a later one of ours deletes, after our
      delete pass;
    * it added fragments without moving any merge progress: another process wrote to the base table
      directly and may have inserted a key that is new in this merge too. Lance compares inserted
      keys only of merges that join, and not of those that look keys up in an index;
    * it added fragments of regions that may have keys of ours, since another client named one of
      them: see :mod:`memwal.lsm.region_places`. The other merger may have planned before our
      generations were flushed.

    A commit that moves only the progress of other regions is safe: regions have disjoint keys.
    """
    versions = {base.version: base}
    own = [selection.region_id for selection in selections]
    places = RegionPlaces(base)

    def accept(version: int) -> bool:
        for number in range(base.version + 1, version + 1):
            if number not in versions:
                try:
                    versions[number] = open_base(base.location, version=number)
                except TableSetupError:
                    # Cleaned up already: its changes cannot be found out any more.
                    return False
            before, after = versions[number - 1], versions[number]
            if not _is_pending(after, selections):
                return False
            added = set(after.dataset.fragment_ids()) - set(before.dataset.fragment_ids())
            moved = dict(after.details.merged.items() - before.details.merged.items())
            if added and (not moved or places.foreign([*own, *moved])):
                return False
        return True

    return accept


def _execute(
    dataset: lance.LanceDataset,
    builder: lance.dataset.MergeInsertBuilder,
    rows: pa.Table,
    use_index: bool,
) -> Counter[str]:
    """Run a pass; return Lance's counts, and the bytes that it read and wrote."""
    # Lance's own retries would run the pass on a version whose progress was not checked.
    builder = builder.conflict_retries(0).use_index(use_index)
    metrics = builder.execute(rows)
    counted = dataset.io_stats_snapshot()
    return Counter(
        rows_upserted=metrics["num_inserted_rows"] + metrics["num_updated_rows"],
        rows_deleted=metrics["num_deleted_rows"],
        bytes_read=counted.read_bytes,
        bytes_written=counted.written_bytes,
    )


def _traced_commit(
    what: str,
    base: BaseTable,
    rows: pa.Table,
    execute: Callable[[lance.LanceDataset, bool], Counter[str]],
    *,
    accept: Callable[[int], bool] | None = None,
) -> tuple[Counter[str], int]:
    """Try a commit once, in a span of its own; LostRaceError if another commit was first.

    Return the counts, and the version that was created, or that of ``base`` if none was needed.

    If the index on the key cannot be read, the rows are joined instead: an index build after the
    merge replaces it.
    """

    def commit(use_index: bool) -> tuple[Counter[str], int]:
        doing = f"merging into {base.location}"
        metrics, version = commit_durably(
            base, lambda dataset: execute(dataset, use_index), doing=doing, accept=accept
        )
        # No metrics if the commit was stored although Lance then raised.
        return metrics or Counter(), version or base.version

    attributes = {ROWS: rows.num_rows, VERSION: base.version}
    with span(f"memwal.merge.{what}", base.location, attributes=attributes):
        # An index that misses rows would make this insert keys that the base table has, and
        # delete none. The version that is matched is the one whose indexes are trusted here:
        # another commit in between changes what Lance compares, never what it matches.
        if rows.num_rows < _JOIN_FROM_ROWS and not unusable_indexes(base):
            try:
                return commit(use_index=True)
            except (CorruptDataError, ObjectNotFoundError) as error:
                if not is_index_damage(error.__cause__ or error):
                    raise
                logger.warning("%s; merging without an index", error)
        return commit(use_index=False)
