"""Rows of a log entry as stored rows of the table, without rows that no flush could store.

A writer of memwal checks rows before it writes them to the log; other clients may not, and earlier
versions did not find all JSON that Lance cannot store. Unless such rows are set aside
(:mod:`memwal.jobs.verify.repairs.set_aside`), the region cannot be claimed: a claim that skipped
them would lose rows that a client had acknowledged, and a flush of them fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.paths import wal_key
from memwal.format.wal_entry import WalEntry
from memwal.lsm.logged_blobs import blob_reader, from_logged
from memwal.lsm.row_schema import RowSchema
from memwal.region.rows import check_known_columns

_MAX_EXAMPLES = 3


@dataclass(frozen=True, slots=True, eq=False)
class UnusableRows:
    """Rows of a log entry that cannot be stored in the table."""

    position: int  # of the entry
    rows: pa.Table  # stored rows
    numbers: npt.NDArray[np.int64]  # row number of each within the entry, ascending
    reasons: tuple[str, ...]  # fault of each

    def __str__(self) -> str:
        examples = [
            f"row {number}: {reason}"
            for number, reason in zip(self.numbers, self.reasons[:_MAX_EXAMPLES], strict=False)
        ]
        return f"{len(self.numbers)} rows cannot be stored; {'; '.join(examples)}"


def convert_entry(
    row_schema: RowSchema, region_id: UUID, position: int, entry: WalEntry
) -> list[pa.RecordBatch]:
    """Return all rows of an entry as stored rows.

    Raises CorruptDataError if a row cannot be stored; the message names the entry, the rows, and
    the repair.
    """
    batches, unusable = split_entry(row_schema, region_id, position, entry)
    if unusable is not None:
        raise CorruptDataError(
            f"entry {position} of the log of region {region_id} ({wal_key(region_id, position)}): "
            f"{unusable}. Nothing was changed. Put these rows into quarantine, and keep all other "
            "rows: memwal verify TABLE --repair --yes"
        )
    return batches


def split_entry(
    row_schema: RowSchema, region_id: UUID, position: int, entry: WalEntry
) -> tuple[list[pa.RecordBatch], UnusableRows | None]:
    """Return the rows of an entry as stored rows, and apart the rows that cannot be stored.

    Raises CorruptDataError if the columns do not fit the table, and NewerFormatError if one belongs
    to a newer protocol.
    """
    if row_schema.is_logged_schema(entry.schema):
        batches = list(entry.batches)
    else:
        batches = _converted(row_schema, region_id, position, entry)
    # A writer of memwal has made all other checks.
    is_ours = entry.writer_id is not None
    find = row_schema.find_refused_json if is_ours else row_schema.find_problems
    problems: dict[int, str] = {}
    start = 0
    for batch in batches:
        batch_problems = find(batch)
        problems |= {start + number: problem for number, problem in batch_problems.items()}
        start += batch.num_rows
    if not problems:
        return batches, None
    rows = pa.Table.from_batches(batches, row_schema.schema)
    numbers = np.array(sorted(problems), np.int64)
    usable = np.ones(start, np.bool_)
    usable[numbers] = False
    unusable = UnusableRows(
        position, rows.take(pa.array(numbers)), numbers, tuple(problems[n] for n in numbers)
    )
    return rows.filter(pa.array(usable)).to_batches(), unusable


def _converted(
    row_schema: RowSchema, region_id: UUID, position: int, entry: WalEntry
) -> list[pa.RecordBatch]:
    check_known_columns(entry.schema, row_schema.schema, name=wal_key(region_id, position))
    try:
        read = blob_reader(row_schema.store, region_id, entry.schema.metadata)
        return [
            rows
            for batch in entry.batches
            for rows in row_schema.convert_logged(from_logged(batch, read))
        ]
    except InvalidInputError as error:
        raise CorruptDataError(
            f"entry {position} of the log of region {region_id} ({wal_key(region_id, position)}) "
            f"does not fit the table: {error}. "
            "Change the table's schema so that they fit; or abandon the region's unflushed "
            "rows by opening its writer with replay=False"
        ) from error
