"""What the failures of a write's parts mean for the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

import pyarrow as pa

from memwal.errors import PartialWriteError, RegionFailure
from memwal.region.routing import RegionAssignment
from memwal.writer.handle import Part, as_error

Route = Callable[[pa.RecordBatch], list[tuple[RegionAssignment, pa.RecordBatch]]]
"""Splits rows by region."""


def settle_one(parts: Sequence[Part]) -> None:
    """Raise what the failure of a write to one region means."""
    for _, part in parts:
        if part.error is not None:
            raise as_error(part.error)


def settle(route: Route, batches: Iterable[pa.RecordBatch], parts: Sequence[Part]) -> None:
    """Raise what the failures of some regions mean for the whole write."""
    errors = {region_id: as_error(w.error) for region_id, w in parts if w.error is not None}
    if not errors:
        return
    kinds = {type(error) for error in errors.values()}
    if len(errors) == len(parts) and len(kinds) == 1:
        raise next(iter(errors.values()))
    positions = _positions(route, batches)
    failures = [RegionFailure(i, error, positions[i]) for i, error in errors.items()]
    raise PartialWriteError(
        f"{len(errors)} of {len(parts)} regions did not take their rows "
        f"({sum(len(f.rows) for f in failures):,} rows; the others are durable): "
        + "; ".join(f"{f.region_id}: {f.error}" for f in failures[:3]),
        failures,
    )


def _positions(route: Route, batches: Iterable[pa.RecordBatch]) -> dict[UUID, pa.Array]:
    """Which rows belong to each region."""
    found: dict[UUID, list[pa.Array]] = {}
    start = 0
    for batch in batches:
        numbers = pa.array(range(start, start + batch.num_rows), pa.int64())
        start += batch.num_rows
        numbered = batch.append_column("", numbers)
        for assignment, rows in route(numbered):
            found.setdefault(assignment.region_id, []).append(rows.column(rows.num_columns - 1))
    return {region_id: pa.concat_arrays(parts) for region_id, parts in found.items()}
