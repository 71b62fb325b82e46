"""Rows of the regions' logs in every version, for the log grain of a feed.

The collector keeps the log entries of the generations that it keeps, and the entries that are not
flushed yet. So missing entries belong to generations that were merged and collected, and
TokenExpiredError names them. It also names entries that a person abandoned: no generation has their
rows.

Entries never change. A writer, merger or collector at work changes whether an entry is there, and
nothing else: each range of entries is listed before its first row is returned, and an entry that is
gone after that is the same error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError
from memwal.feed.base_changes import expired
from memwal.format.paths import MAX_COUNTER, TOMBSTONE
from memwal.lsm.memtable.indexes import UnflushedRows
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.abandon import read_abandoned
from memwal.lsm.wal.log import LogSurvey, gap_error, read_log, survey_log
from memwal.lsm.wal.logged_rows import split_entry
from memwal.lsm.wal.replay import BatchJoiner
from memwal.reader.sources.generation import GenerationSource, open_memtable
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.location import TableLocation
from memwal.util.arrays import Mask, Numbers

# Limits of the bytes, and of the entries, whose rows are in memory together.
_PART_BYTES: Final = 8 << 20
_PART_ENTRIES: Final = 4096


@dataclass(frozen=True, slots=True)
class LogRange:
    """Entries of a region's log."""

    region_id: UUID
    after: int  # position before the first entry
    last: int  # position of the last entry
    generation: int  # of entries that record none


@dataclass(frozen=True, slots=True, eq=False)
class LoggedPart:
    """Rows of adjacent entries of a log, oldest first."""

    source: GenerationSource  # of these rows; the row address of each is its number
    deleted: Mask  # which rows are tombstones
    # Shape (entries, 3): position, generation and number of the first row of each entry.
    entries: Numbers


def check_logged(location: TableLocation, log: LogRange) -> LogSurvey:
    """List the entries of a range; TokenExpiredError if one was collected or abandoned."""
    store, region_id = location.store, log.region_id
    for record in read_abandoned(store, region_id):
        if record.first_position <= log.last and record.last_position > log.after:
            rows = f"entries {record.first_position} to {record.last_position}"
            raise expired(location, f"{rows} of the log of region {region_id} were abandoned")
    survey = survey_log(store, region_id, after=log.after, hint=log.last)
    if survey.missing is None or survey.missing > log.last:
        return survey
    latest = RegionManifestStore(store, region_id).read_latest()
    if latest is None or latest.replay_after < survey.missing:
        raise gap_error(region_id, survey.missing, newest=survey.tip - 1)
    positions = survey.entries["position"]
    behind = positions[positions > survey.missing]
    last = min(int(behind[0]) - 1 if len(behind) else log.last, log.last)
    rows = f"entries {survey.missing} to {last}"
    raise expired(location, f"{rows} of the log of region {region_id} were collected")


def read_logged(base: BaseTable, log: LogRange, survey: LogSurvey) -> Iterator[LoggedPart]:
    """Read the rows of a range in order, except rows that a repair put into quarantine."""
    row_schema = RowSchema.of(base)
    joiner = BatchJoiner(row_schema.schema)
    batches: list[pa.RecordBatch] = []
    entries: list[tuple[int, int, int]] = []
    generation, rows, size = log.generation, 0, 0
    found = read_log(
        base.location.store,
        log.region_id,
        after=log.after,
        before=log.last + 1,
        epoch=MAX_COUNTER,
        survey=survey,
    )
    try:
        for position, entry in found:
            generation = entry.generation or generation
            entries.append((position, generation, rows))
            for batch in split_entry(row_schema, log.region_id, position, entry)[0]:
                rows += batch.num_rows
                size += batch.nbytes
                batches += joiner.add(batch)
            if size >= _PART_BYTES or len(entries) >= _PART_ENTRIES:
                yield _part(base, log.region_id, row_schema, [*batches, *joiner.finish()], entries)
                batches, entries, rows, size = [], [], 0, 0
    except CorruptDataError:
        # It was collected since the listing.
        check_logged(base.location, log)
        raise
    batches += joiner.finish()
    if rows:
        yield _part(base, log.region_id, row_schema, batches, entries)


def _part(
    base: BaseTable,
    region_id: UUID,
    row_schema: RowSchema,
    batches: Sequence[pa.RecordBatch],
    entries: Sequence[tuple[int, int, int]],
) -> LoggedPart:
    rows = UnflushedRows.of(0, row_schema.schema, base.primary_key, batches)
    flags = pc.fill_null(rows.snapshot.view.column(TOMBSTONE), False)
    return LoggedPart(
        open_memtable(base, region_id, rows), flags.to_numpy(), np.array(entries, np.int64)
    )
