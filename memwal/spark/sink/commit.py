"""Commit of a write at the driver: the rows of all tasks go into the regions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa

from memwal.errors import (
    ConflictError,
    MemWalError,
    OutcomeUnknownError,
    PartialWriteError,
    RegionFencedError,
    StoreUnavailableError,
    WriterClosedError,
)
from memwal.lsm.wal.applied_steps import AppliedStep, Step, is_step_visible
from memwal.spark.sink.changes import ChangeColumns
from memwal.spark.sink.staged_rows import RegionStream
from memwal.table import Table
from memwal.util.retry import retry_errors

# Memory of the commit, unless one region alone has more.
_GROUP_BYTES: Final = 256 << 20
# Errors that another process causes while it claims the regions, or that pass.
_TRANSIENT_ERRORS: Final = (
    RegionFencedError,
    WriterClosedError,
    ConflictError,
    OutcomeUnknownError,
    StoreUnavailableError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCommit:
    """Writes rows that tasks staged into the regions of a table."""

    table: Table
    changes: ChangeColumns
    schema: pa.Schema  # the table's columns that are written
    partial: bool = False
    step: Step | None = None  # which each region takes once; without it, the rows are upserted

    def write(self, parts: Collection[RegionStream]) -> AppliedStep:
        """Write all rows of each region in one call, several regions at once; flush them.

        Returns the regions that wrote their rows, and the regions that had the step before.
        """
        written: list[UUID] = []
        skipped: list[UUID] = []
        for group in _group_regions(parts):
            store = self.table.location.store
            rows = pa.concat_tables(part.read(store) for of in group.values() for part in of)
            done = self._write_regions(tuple(sorted(group)), rows)
            written += done.written
            skipped += done.skipped
        return AppliedStep(written=tuple(written), skipped=tuple(skipped))

    def _write_regions(self, regions: tuple[UUID, ...], rows: pa.Table) -> AppliedStep:
        """Write rows; try again while other processes claim the regions."""
        table, step = self.table, self.step
        upserts, deletes = self.changes.newest(rows, self.schema, table.primary_key)
        _, spec = table.region_spec()
        deletes = deletes.select(list(dict.fromkeys([*table.primary_key, *spec.columns])))

        def attempt() -> AppliedStep:
            # Checked without a claim, so that no writer is fenced if there is nothing to write.
            store = table.location.store
            if step is not None and all(is_step_visible(store, r, step) for r in regions):
                return AppliedStep(skipped=regions)
            # Only these regions, each of which is in one group: if the table was divided in another
            # way since the tasks, a region would take a step with a part of its rows only.
            with table.writer(region_ids=regions) as writer:
                if step is not None and table.primary_key:
                    return writer.apply(upserts=upserts, deletes=deletes, **asdict(step))
                if step is not None:
                    return writer.apply(appends=upserts, **asdict(step))
                if not table.primary_key:
                    writer.append(upserts)
                else:
                    writer.upsert(upserts, partial=self.partial)
                    writer.delete(deletes)
            return AppliedStep(written=regions)

        # Rows without key and step would be added twice.
        attempts = 6 if step is not None or table.primary_key else 1
        return retry_errors(
            attempt,
            (MemWalError,),
            attempts,
            first_wait=0.5,
            longest_wait=2.5,
            passes=_is_transient,
        )


def _group_regions(parts: Collection[RegionStream]) -> Iterator[dict[UUID, Sequence[RegionStream]]]:
    """Yield groups of whole regions that fit into memory, each region once."""
    by_region = defaultdict(list)
    for part in parts:
        by_region[part.region_id].append(part)
    group: dict[UUID, Sequence[RegionStream]] = {}
    size = 0
    for region_id, of_region in by_region.items():
        length = sum(part.length for part in of_region)
        if group and size + length > _GROUP_BYTES:
            yield group
            group, size = {}, 0
        group[region_id] = of_region
        size += length
    if group:
        yield group


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, PartialWriteError):
        return all(_is_transient(failure.error) for failure in error.failures)
    return isinstance(error, _TRANSIENT_ERRORS)
