"""Merge progress of a divided merge: the commit that follows the one with the rows.

A divided merge makes two commits: one with the rows (an ``Update``), then one with the progress of
its regions. In between, the base table has rows of generations that still count as pending. Readers
that merge see the same rows before and after. What processes that pause, die or repeat do:

* a merger dies in between: the next merger records the progress for it (:func:`finish_runs`). If
  that cannot be done any more, the generations stay pending and are merged again: the same keys
  get the same rows;
* a merger pauses in between, and another one merges the same regions meanwhile: the other one may
  have merged fewer generations, so that the base table has older rows of some keys again. To record
  all generations now would lose the newer rows. The progress of a region is therefore recorded only
  if no commit in between merged the region: the progress in the details did not change, and no
  ``Update`` of a divided merge names it (:mod:`memwal.base_table.commit_records`);
* a commit in between deleted or changed rows, and did not mark regions as merged: it may be the
  delete pass of another merger, which deleted what a later generation wrote, or a ``Restore``.
  Nothing is recorded. What somebody deleted directly at that moment comes back: for readers that
  merge it was never gone;
* the record of a commit in between was cleaned up: what it did is unknown. Nothing is recorded.

The progress is committed by compare-and-swap on the version whose predecessors were looked at, so
that no commit is overlooked. Where it is not recorded, the generations stay pending, which is
always safe.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from memwal.base_table.commit import commit_details
from memwal.base_table.commit_records import (
    DETAILS_CHANGE,
    MARKED,
    REWRITE,
    commit_record,
    read_details,
)
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import ConflictError, MemWalError
from memwal.jobs.merge.run_files import Intent, read_intents, run_dir
from memwal.storage.location import TableLocation
from memwal.util.retry import retry_lost_races

logger = logging.getLogger(__name__)

# Commits that take no row away.
_KEEPS_ROWS = frozenset({"Append", DETAILS_CHANGE, REWRITE, "UpdateConfig", "ReserveFragments"})


def record_progress(location: TableLocation, version: int, merged: Mapping[UUID, int]) -> BaseTable:
    """Record that the rows of these generations are in the base table since ``version``.

    ``merged`` has the newest merged generation of each region. Regions that another commit merged
    since are left out, see the module. Returns the table as it is then.
    """
    before = open_base(location, version=version)

    def attempt() -> BaseTable:
        base = open_base(location)
        undisturbed = _undisturbed(base, before, merged)
        if not undisturbed:
            return base
        progress = {**base.details.merged, **undisturbed}
        new = commit_details(base, replace(base.details, merged=progress))
        return open_base(location, version=new)

    return retry_lost_races(
        attempt,
        exhausted=ConflictError(
            f"the rows are in {location} since version {version}, and every attempt to record the "
            "progress met another commit; the next merge records it"
        ),
    )


def _undisturbed(base: BaseTable, before: BaseTable, merged: Mapping[UUID, int]) -> dict[UUID, int]:
    """Return the progress of the regions that no commit after ``before`` merged."""
    own = {
        region_id: generation
        for region_id, generation in merged.items()
        if base.details.merged.get(region_id, 0) == before.details.merged.get(region_id, 0)
        and generation > base.details.merged.get(region_id, 0)
    }
    progress = before.details.merged
    for version in range(before.version + 1, base.version + 1):
        if not own:
            break
        record = commit_record(base, version)
        if record is None:
            return {}
        if record.rows is not None:
            own = {key: number for key, number in own.items() if key not in record.rows.merged}
        elif record.kind not in _KEEPS_ROWS:
            after = read_details(base, version).merged
            # A marked commit has rows of the regions that it marks, and no others.
            if after == progress or record.kind != MARKED:
                return {}
            progress = after
        else:
            progress = read_details(base, version).merged
    return own


def finish_runs(location: TableLocation) -> None:
    """Record the progress of runs that died after the commit of their rows.

    A run that is alive may be among them; whoever comes second finds the progress recorded. The
    files of a run are deleted when all its generations are merged, whoever did it. Costs a listing
    if there are none.
    """
    for run_id, intent in read_intents(location.store).items():
        try:
            merged = open_base(location).details.merged
            if any(merged.get(region_id, 0) < last for region_id, last in intent.merged.items()):
                version = _find_commit(location, run_id, intent)
                if version is None:
                    continue
                record_progress(location, version, intent.merged)
                logger.info("finished merge %s of %s, which died or still runs", run_id, location)
            location.store.delete_folder(run_dir(run_id))
        except MemWalError as error:
            # The generations stay pending, and are merged again.
            logger.warning("the progress of merge %s is not recorded: %s", run_id, error)


def _find_commit(location: TableLocation, run_id: UUID, intent: Intent) -> int | None:
    """Return the version with the rows of a run; None if there is none."""
    base = open_base(location)
    for version in range(intent.version + 1, base.version + 1):
        record = commit_record(base, version)
        if record is not None and record.rows is not None and record.rows.run_id == run_id:
            return version
    return None
