"""Read one part of a plan of changes in a task, at the plan's snapshot.

Like a load, a task finds the newest row of each key itself, from the keys of the generations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.errors import ConflictError, ObjectNotFoundError, TableSetupError
from memwal.feed.base_changes import NO_CHANGES, changes_since
from memwal.feed.change_rows import Reading, Since, changes_schema
from memwal.reader.sources.generation import ReadSources, open_all, open_memtable
from memwal.reader.sources.log_tails import read_tail
from memwal.reader.sources.plan import ReadPlan
from memwal.reader.sources.snapshot import TableSnapshot, open_version
from memwal.spark.source.changes_plan import ChangesPart, ChangesSnapshot
from memwal.spark.source.read_tags import renew_if_due
from memwal.storage.location import TableLocation


def read_changes(location: TableLocation, part: ChangesPart) -> Iterator[pa.RecordBatch]:
    """Read the changes of a part, with the columns of a feed; renews the snapshot's tags while it
    reads.

    Raises ConflictError if files of the snapshot are no longer stored.
    """
    snapshot = part.snapshot
    try:
        with lance_errors(f"reading {location}"):
            for batch in _read(location, part):
                for tag in snapshot.tags:
                    renew_if_due(location, tag)
                if batch.num_rows:
                    yield batch
    except (ObjectNotFoundError, TableSetupError) as error:
        raise ConflictError(
            f"files of version {snapshot.version} of {location} that the changes need are no "
            f"longer stored ({error}). A stream that starts again plans its batch anew; a data "
            "frame has to be loaded again. If this happens to data frames or streams in use, give "
            "them a longer protect_seconds, or a user who may write tags"
        ) from error


def _read(location: TableLocation, part: ChangesPart) -> Iterator[pa.RecordBatch]:
    snapshot = part.snapshot
    base = open_version(location, snapshot.version)
    if base.digest != snapshot.digest:
        raise TableSetupError(f"version {snapshot.version} belongs to another table by now")
    regions = {region_id for region_id, _ in part.generations}
    is_whole = bool(part.marks) or part.removed or snapshot.is_one_group
    generations = [s for s in snapshot.generations if is_whole or s.region_id in regions]
    logs = {
        log.region_id: read_tail(base, log)
        for log in snapshot.logs
        if is_whole or log.region_id in regions
    }
    sources = open_all(base, generations)
    sources += [
        open_memtable(base, region_id, rows)
        for region_id, followed in logs.items()
        for rows in followed.rows
    ]
    sources.sort(key=lambda source: source.generation)
    plan = ReadPlan(snapshot=TableSnapshot(base, {}), consistency="flushed")
    reading = Reading(
        ReadSources(plan, tuple(sources)),
        logs,
        _since(base, snapshot, is_removed_read=part.removed),
        changes_schema(base, snapshot.columns),
        snapshot.filter,
    )
    chosen = [
        at
        for at, source in enumerate(sources)
        if (source.region_id, source.generation) in part.generations
    ]
    yield from reading.batches(chosen, part.unpacked_marks(), removed=part.removed)


def _since(base: BaseTable, snapshot: ChangesSnapshot, *, is_removed_read: bool) -> Since | None:
    """Return the rows that the token's reader has seen; finds the removed keys again.

    That takes a request for each version, and less than to send the removed rows. Versions that
    were cleaned up since make rows that a compaction moved look removed: they are found again.
    """
    if snapshot.after is None:
        return None
    changes = replace(NO_CHANGES, undone=snapshot.undone)
    if is_removed_read:
        changes = changes_since(snapshot.after, base, snapshot.seen, snapshot.stored)
    return Since(snapshot.after, snapshot.seen, changes, snapshot.named, snapshot.unseen)
